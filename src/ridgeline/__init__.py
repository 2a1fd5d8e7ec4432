"""Ridgeline: an inference engine that predicts, measures and explains its own speed."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ridgeline.version import __version__

if TYPE_CHECKING:
    from ridgeline.diffusion.loading import load_pipeline
    from ridgeline.diffusion.request import Request
    from ridgeline.engine import LLM, AsyncLLM, EngineSettings, SamplingParams, StructuredOutputs

__all__ = [
    "LLM",
    "AsyncLLM",
    "EngineSettings",
    "Request",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
    "load_pipeline",
]
_ELSEWHERE = {"Request": "diffusion.request", "load_pipeline": "diffusion.loading"}  # others are the engine's


def __getattr__(name: str) -> Any:
    """The engine, or what draws, when it is first asked for: `ridgeline plan` and `--version` do without (PEP 562)."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ridgeline.{_ELSEWHERE.get(name, 'engine')}"), name)
