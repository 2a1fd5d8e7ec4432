"""The warning of compute commands on an installation without compiled CPU kernels."""

from ridgeline.backends.cpu.library import missing
from ridgeline.cli.console import say


def missing_kernels_warning() -> str:
    """Return a warning that there are no compiled CPU kernels, why, and what to do.

    Return "" if there are kernels or the user disabled them.
    """
    why = missing()
    return (
        f"Ridgeline's compiled CPU kernels are missing, and PyTorch's alone are several times slower: {why}"
        if why
        else ""
    )


def warn_missing_kernels() -> None:
    """Print a warning on stderr if there are no compiled CPU kernels."""
    if warning := missing_kernels_warning():
        say(warning)
