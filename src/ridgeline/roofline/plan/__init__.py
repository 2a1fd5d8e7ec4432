"""`ridgeline plan`: what a model needs and does on a card, from its config alone.

`workload.py` says what is asked and `case.py` where; `memory.py` subtracts, `phases.py` prices prefill and decode,
`serving.py` puts users on it. `levers.py`, `compare.py` and `fit.py` price what could be different, `words.py` says it.
"""

from ridgeline.roofline.plan.case import Setup
from ridgeline.roofline.plan.plan import Plan, make_plan
from ridgeline.roofline.plan.workload import Workload

__all__ = ["Plan", "Setup", "Workload", "make_plan"]
