"""What commands say that compute where the package was installed without a compiler."""

from ridgeline.backends.cpu.library import missing
from ridgeline.cli.console import say


def missing_kernels_warning() -> str:
    """That there are no kernels of its own, why, and what to do; "" where there are, or nobody wants them."""
    why = missing()
    return f"no kernels of its own, on torch's alone it is several times slower: {why}" if why else ""


def warn_missing_kernels() -> None:
    """The same on stderr, if there is anything to say."""
    if said := missing_kernels_warning():
        say(said)
