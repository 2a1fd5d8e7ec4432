"""Ridgeline: an inference engine that knows its own limits."""

from typing import TYPE_CHECKING, Any

from ridgeline.version import __version__

if TYPE_CHECKING:
    from ridgeline.engine import LLM, AsyncLLM, EngineSettings, SamplingParams, StructuredOutputs

__all__ = ["LLM", "AsyncLLM", "EngineSettings", "SamplingParams", "StructuredOutputs", "__version__"]


def __getattr__(name: str) -> Any:
    """The engine when it is first asked for: `ridgeline plan` and `--version` do without it (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from ridgeline import engine

    return getattr(engine, name)
