"""Ridgeline: an inference engine that predicts, measures and explains its own speed."""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ridgeline.util.version import __version__

if TYPE_CHECKING:
    from ridgeline.engine import LLM, AsyncLLM, EngineSettings, SamplingParams, StructuredOutputs
    from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
    from ridgeline.media.diffusion.pipeline_loader import load_pipeline

__all__ = [
    "LLM",
    "AsyncLLM",
    "DiffusionRequest",
    "EngineSettings",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
    "load_pipeline",
]
_ELSEWHERE = {
    "DiffusionRequest": "media.diffusion.diffusion_request",
    "load_pipeline": "media.diffusion.pipeline_loader",
}  # others are the engine's


def __getattr__(name: str) -> Any:
    """The engine, or what draws, when it is first asked for: `ridgeline plan` and `--version` do without (PEP 562)."""
    if name == "Request":  # its name before 0.1, removed after it
        # Before the warning: the imports change warning filters, after which it would come twice.
        found = __getattr__("DiffusionRequest")
        message = "ridgeline.Request will be removed in the release after 0.1; use ridgeline.DiffusionRequest"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return found
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ridgeline.{_ELSEWHERE.get(name, 'engine')}"), name)
