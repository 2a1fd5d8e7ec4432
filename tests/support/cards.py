"""Where kernels for cards are tested: on a card where there is one, else in Triton's interpreter on the processor."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec

import pytest
import torch

from ridgeline.backends.cpu.library import library
from ridgeline.backends.cuda.available import interpreted, triton_on
from ridgeline.backends.model_loader import prepare_on_gpu
from ridgeline.core.models.common.model import Model

HAS_CARD = torch.cuda.is_available()
DEVICE = torch.device("cuda" if HAS_CARD else "cpu")

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="triton is not installed: kernels for cards are not tested (pip install triton)"
)
needs_card = pytest.mark.skipif(not HAS_CARD, reason="torch sees no CUDA device here")

DTYPES = (torch.float32, torch.bfloat16)
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 1.6e-2}


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> bool:
    """Whether two tensors differ by no more than so much of the largest number."""
    found, wanted = found.double().cpu(), wanted.double().cpu()
    return bool((found - wanted).abs().max() <= tolerance * wanted.abs().max())


@contextmanager
def cards_compute() -> Iterator[None]:
    """While it lasts kernels for cards compute wherever tests put models: without a card, in Triton's interpreter."""
    with pytest.MonkeyPatch.context() as patch:
        if not HAS_CARD:
            patch.setenv("RIDGELINE_KERNELS", "triton")
        _look_again()
        yield
    _look_again()


def _look_again() -> None:
    for looked_up in (library, interpreted, triton_on):
        looked_up.cache_clear()


def placed(model: Model, device: torch.device = DEVICE) -> Model:
    """A copy of a model where cards compute, as engines load it there."""
    copied = deepcopy(model)
    prepare_on_gpu(copied, device)
    return copied


class _Event:
    """A moment of the processor, in the place of one of a card."""

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = time.perf_counter()

    def query(self) -> bool:
        return False

    def elapsed_time(self, other: "_Event") -> float:
        return 1e3 * (other.at - self.at)


def events_of_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on what measures a card measures this machine: events are told by its clock, and nothing is waited
    for."""
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    for name in ("_sleep", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
