"""`ridgeline plan`: what a model needs and does on a card, from its config alone.

`case.py` says what is asked and where, `demand.py` for how many; `memory.py` subtracts, `phases.py` prices the parts of
a request, `serving.py` puts users on it, `scores.py` prices attention by its score matrix, `alternatives.py` what could
be different, `comparison.py` the same on many cards; `trust.py` says how far off such figures were. `plan.py` joins
them; `answer.py` says it in a dozen lines and `words.py` in a paragraph, `page.py` and `compare_page.py` are documents,
`export.py` is JSON.
"""

from ridgeline.roofline.plan.case import Setup, Workload
from ridgeline.roofline.plan.demand import Demand
from ridgeline.roofline.plan.plan import Plan, make_plan

__all__ = ["Demand", "Plan", "Setup", "Workload", "make_plan"]
