"""Ridgeline: an inference engine that knows its own limits."""

__version__ = "0.1.0"

from ridgeline.engine import LLM, AsyncLLM, EngineSettings, SamplingParams

__all__ = ["LLM", "AsyncLLM", "EngineSettings", "SamplingParams", "__version__"]
