"""The engine: many requests, one model, steps.

A request's way: `llm.py` (a script) or `async_llm.py` (a server) -> `engine.py` -> `scheduler.py` over `kv/` makes a
`step_plan.py` -> `runner.py` turns it into a `batch_builder.py` and runs the model -> `sampling/` -> `events.py` ->
`output_processor.py` makes text of the tokens, and `result.py` gathers it. `setup.py` puts it all together for a
folder. `worker/` steps an engine for somebody else, in a thread or a process.

What decides (requests, scheduler, plans, pages) imports without torch: a simulation needs no more.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.engine.async_llm import AsyncLLM
    from ridgeline.engine.engine_settings import EngineSettings
    from ridgeline.engine.llm import LLM
    from ridgeline.engine.params import SamplingParams
    from ridgeline.engine.result import Choice, Completion
    from ridgeline.engine.structured_output_params import StructuredOutputs

_HOMES = {
    "LLM": "llm",
    "AsyncLLM": "async_llm",
    "Choice": "result",
    "Completion": "result",
    "EngineSettings": "engine_settings",
    "SamplingParams": "params",
    "StructuredOutputs": "structured_output_params",
}

__all__ = ["LLM", "AsyncLLM", "Choice", "Completion", "EngineSettings", "SamplingParams", "StructuredOutputs"]


def __getattr__(name: str) -> Any:
    """Each name when it is first asked for (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
