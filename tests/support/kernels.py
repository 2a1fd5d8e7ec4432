"""The instruction sets for which there are kernels of ours, as far as this processor runs them."""

import os
from pathlib import Path

from ridgeline.backends.cpu.kernel_sources import unusable
from ridgeline.backends.cpu.library import PATH, Library, library

EMULATED_FOLDER = Path(os.environ.get("RIDGELINE_EMULATED", Path(__file__).parents[2] / "build" / "emulated"))
EMULATED_PATH = EMULATED_FOLDER / "ridgeline" / "backends" / "cpu" / PATH.name
"""The library of `make emulated`, whose sets compute with emulated AMX tiles."""


def load(name: str) -> Library:
    """Load the kernels of an instruction set, on one thread."""
    kernels = Library(EMULATED_PATH if name.startswith("amx_emulated") else PATH, name)
    kernels.threads(1)
    return kernels


def _runs(name: str) -> bool:
    try:
        load(name)
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
    found = tuple(name for name in ("plain", "avx2", "avx512", "avx512_bf16", "amx", "neon") if _runs(name))
    back_to_the_best()
    return found


def emulated_sets() -> tuple[str, ...]:
    """Return the sets with emulated tiles, or none if `make emulated` was not run.

    Sets of other sources would test code that is not this tree's, so they end the tests.
    """
    if not EMULATED_PATH.exists():
        return ()
    why = unusable(EMULATED_PATH, PATH.with_name("native"))
    assert not why, f"{EMULATED_PATH}: {why}: run make emulated"
    found = tuple(name for name in ("amx_emulated", "amx_emulated_avx512") if _runs(name))
    back_to_the_best()
    return found


SETS = instruction_sets()
EMULATED_SETS = emulated_sets()
BF16_SETS = tuple(name for name in (*EMULATED_SETS, *SETS) if name in ("amx_emulated_avx512", "avx512_bf16", "amx"))
"""The sets that multiply bf16 numbers and interleaved codes of integers."""
