"""The `ridgeline` command, also as `python -m ridgeline`."""

import gc
import sys

from ridgeline.cli import process


def main() -> None:
    """Import and run it. What imports leave behind, torch above all, lives as long as the process: going through it
    again and again to see whether it is still needed takes a tenth of a short command, so that is not done."""
    process.prepare()
    if sys.argv[1:2] == ["serve"]:
        process.leave_on_sigterm()
    gc.disable()
    from ridgeline.cli.main import main as command

    gc.freeze()
    gc.enable()
    try:
        command()
    finally:
        process.signal_interrupts(quit_at_once=True)


if __name__ == "__main__":
    main()
