"""`ridgeline plan`: what a model needs and does on a card, from its config alone.

`case.py` says what is asked and where; `memory.py` subtracts, `phases.py` prices the parts of a request, `serving.py`
puts users on it, `alternatives.py` prices what could be different. `plan.py` joins them, `words.py` says it, `page.py`
is all of it as a document, `export.py` as JSON.
"""

from ridgeline.roofline.plan.case import Setup, Workload
from ridgeline.roofline.plan.plan import Plan, make_plan

__all__ = ["Plan", "Setup", "Workload", "make_plan"]
