"""From logits to tokens; the order in which things happen is listed in sampler.py."""

from typing import TYPE_CHECKING, Any

from ridgeline.engine.sampling.row import History, Outcome, RowFailure, Sampled, SampleRow

if TYPE_CHECKING:
    from ridgeline.engine.sampling.sampler import sample

__all__ = ["History", "Outcome", "RowFailure", "SampleRow", "Sampled", "sample"]


def __getattr__(name: str) -> Any:
    """The sampler when it is first asked for: it needs torch, and the engine's bookkeeping does not (PEP 562)."""
    if name != "sample":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ridgeline.engine.sampling.sampler import sample

    return sample
