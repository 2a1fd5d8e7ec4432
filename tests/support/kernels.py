"""The instruction sets for which there are kernels of ours, as far as this processor runs them."""

from ridgeline.backends.cpu.kernel_sources import unusable
from ridgeline.backends.cpu.library import PATH, Library, library


def _runs(name: str) -> bool:
    try:
        Library(name=name)
    except ValueError:
        return False
    return True


def back_to_the_best() -> None:
    """Undo the choice of an instruction set, which is the process's: what other tests find is the best, on one
    thread."""
    library.cache_clear()
    if kernels := library():
        kernels.threads(1)


def instruction_sets() -> tuple[str, ...]:
    """From the plainest to the best; none where the kernels were not compiled. Those of other sources would have all
    else run on torch, which nobody would notice: they end the tests."""
    if not PATH.exists():
        return ()
    assert not (why := unusable(PATH)), why
    found = tuple(name for name in ("plain", "avx2", "avx512", "avx512_bf16", "neon") if _runs(name))
    back_to_the_best()
    return found


SETS = instruction_sets()
