"""The `ridgeline` command, also as `python -m ridgeline`."""

import gc


def main() -> None:
    """Import and run it. What imports leave behind, torch above all, lives as long as the process: going through it
    again and again to see whether it is still needed takes a tenth of a short command, so that is not done."""
    gc.disable()
    from ridgeline.cli.main import main as command

    gc.freeze()
    gc.enable()
    command()


if __name__ == "__main__":
    main()
