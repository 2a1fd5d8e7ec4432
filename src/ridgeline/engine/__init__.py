"""The engine: many requests, one model, steps.

A request's way: `llm.py` (a script) or `async_llm.py` (a server) -> `engine.py` -> `scheduler.py` over `kv/` makes a
`plan.py` -> `runner.py` turns it into a `batch.py` and runs the model -> `sampling/` -> `events.py`, and `result.py`
gathers them. `setup.py` puts it all together for a folder.
"""

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.llm import LLM
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.result import Choice, Completion
from ridgeline.engine.setup import EngineSettings

__all__ = ["LLM", "AsyncLLM", "Choice", "Completion", "EngineSettings", "SamplingParams"]
