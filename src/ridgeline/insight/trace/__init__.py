"""A tracer for one request: the predicted cost of every op next to its measured time.

`request_trace.py` runs a request unchanged (`timeline.py`), runs it again with repeated and hooked steps (`tracer.py`,
`measure.py`), and on request captures activations in one more forward pass (`capture.py`, for `attention_weights.py`,
`lens.py`, `feed_forward_memory.py` and `expert_routing.py`). `pricing.py` combines predictions and measurements into
the ledger (`trace_ledger.py`). `image_trace.py` traces a request for an image or a video, and `priced_trace.py` only
predicts one. `views/` formats the results; `bottleneck.py` explains why a step is slow, and `run_stats.py` evaluates a
whole run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.insight.trace.request_trace import TraceOptions, TraceSubject, trace

__all__ = ["TraceOptions", "TraceSubject", "trace"]


def __getattr__(name: str) -> Any:
    """Import a public name on first access (PEP 562), so that importing a part does not load the tracer."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.request_trace"), name)
