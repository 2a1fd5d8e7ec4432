"""One token's way, priced beside measured.

`request.py` runs a request three times: as it is (`timeline.py`), with its steps repeated and hooked (`tracer.py`,
`measure.py`), and to look inside (`capture.py`, for `attention.py`, `lens.py`, `memory.py`, `experts.py`). `pricing.py`
puts the price beside what was measured: the `ledger.py`. Everything in `views/` is made from it; `reason.py` says why a
step is slow, `account.py` judges a whole run.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.trace.ledger import Ledger
    from ridgeline.trace.request import Subject, Wanted, trace

_HOMES = {"Ledger": "ledger", "Subject": "request", "Wanted": "request", "trace": "request"}

__all__ = ["Ledger", "Subject", "Wanted", "trace"]


def __getattr__(name: str) -> Any:
    """Each name when it is first asked for (PEP 562): who wants a verdict does not wait for what traces."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
