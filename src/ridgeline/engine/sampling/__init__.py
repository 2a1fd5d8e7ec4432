"""From logits to tokens; the order in which things happen is listed in sampler.py."""

from typing import TYPE_CHECKING, Any

from ridgeline.engine.sampling.row import (
    HiddenStates,
    History,
    Outcome,
    PromptLogprob,
    RowFailure,
    Sampled,
    SampleRow,
    Scored,
)

if TYPE_CHECKING:
    from ridgeline.engine.sampling.sampler import sample, score

__all__ = [
    "HiddenStates",
    "History",
    "Outcome",
    "PromptLogprob",
    "RowFailure",
    "SampleRow",
    "Sampled",
    "Scored",
    "sample",
    "score",
]


def __getattr__(name: str) -> Any:
    """The sampler when it is first asked for: it needs torch, and the engine's bookkeeping does not (PEP 562)."""
    if name not in ("sample", "score"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ridgeline.engine.sampling import sampler

    return getattr(sampler, name)
