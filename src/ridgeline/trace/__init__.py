"""One token's way, priced beside measured.

`request.py` runs a request three times: as it is (`timeline.py`), with its steps repeated and hooked (`tracer.py`,
`measure.py`), and to look inside (`capture.py`, for `attention.py`, `lens.py`, `memory.py`, `experts.py`). `pricing.py`
puts the price beside what was measured: the `ledger.py`. Everything in `views/` is made from it; `reason.py` says why a
step is slow, `verdict.py` judges a whole run.
"""

from ridgeline.trace.ledger import Ledger
from ridgeline.trace.request import Subject, Wanted, trace
from ridgeline.trace.verdict import verdict

__all__ = ["Ledger", "Subject", "Wanted", "trace", "verdict"]
