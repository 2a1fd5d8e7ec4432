"""One token's way, priced beside measured.

`request_trace.py` runs a request three times: as it is (`timeline.py`), with its steps repeated and hooked
(`tracer.py`, `measure.py`), and to look inside (`capture.py`, for `attention_weights.py`, `lens.py`,
`feed_forward_memory.py`, `expert_routing.py`). `pricing.py` puts the price beside what was measured: the
`trace_ledger.py`. Everything in `views/` is made from it; `bottleneck.py` says why a step is slow, `run_stats.py`
judges a whole run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.insight.trace.request_trace import TraceOptions, TraceSubject, trace
    from ridgeline.insight.trace.trace_ledger import Ledger

_HOMES = {
    "Ledger": "trace_ledger",
    "TraceSubject": "request_trace",
    "TraceOptions": "request_trace",
    "trace": "request_trace",
}

__all__ = ["Ledger", "TraceOptions", "TraceSubject", "trace"]


def __getattr__(name: str) -> Any:
    """Each name when it is first asked for (PEP 562): who wants a verdict does not wait for what traces."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
