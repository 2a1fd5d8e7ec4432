"""Ridgeline: an inference engine that predicts, measures and explains its own speed."""

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ridgeline.util.version import __version__

# By default PyTorch's idle threads spin on the cores that the threads of our kernels need. PyTorch reads this variable
# when it is first imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

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
}  # all other names are in ridgeline.engine


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562).

    `ridgeline plan` and `--version` thereby start without importing the engine.
    """
    if name == "Request":  # the name before 0.1; to be removed after that release
        # Import first: the imports change the warning filters, which would repeat a warning issued before them.
        found = __getattr__("DiffusionRequest")
        message = "ridgeline.Request will be removed in the release after 0.1; use ridgeline.DiffusionRequest"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return found
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"ridgeline.{_ELSEWHERE.get(name, 'engine')}"), name)
