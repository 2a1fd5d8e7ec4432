"""The inference engine, which runs many requests on one model in a sequence of steps.

The path of a request: `llm.py` (for a script) or `async_llm.py` (for a server) adds it to `engine.py`. The
`scheduler.py` allocates KV pages from `kv/` and produces a `step_plan.py`. The `runner.py` turns the plan into a batch
(`batch_builder.py`) and runs the model. `sampling/` chooses tokens from the logits, and the engine reports them as
`events.py`. `output_processor.py` turns the tokens into text, and `result.py` collects it. `setup.py` builds all of
this for a checkpoint folder. `worker/` steps an engine in a thread or process of its own.

The modules that make decisions (requests, scheduler, plans, pages) import without torch, because a simulation needs
only them.
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
    """Import a public name when it is first accessed (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
