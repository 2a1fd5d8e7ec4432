"""The entry point of the `ridgeline` command, also for `python -m ridgeline`."""

import sys

from ridgeline.cli import process_setup


def main() -> None:
    """Prepare the process, then import and run the `ridgeline` command line."""
    process_setup.prepare()
    if sys.argv[1:2] == ["serve"]:
        process_setup.leave_on_sigterm()
    from ridgeline.cli.main import main as command

    try:
        command()
    finally:
        process_setup.signal_interrupts(quit_at_once=True)


if __name__ == "__main__":
    main()
