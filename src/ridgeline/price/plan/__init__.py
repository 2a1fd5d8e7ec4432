"""`ridgeline plan`: what a model needs and does on a card, from its config alone.

`scenario.py` says what is asked and where, `demand.py` for how many; `device_memory.py` subtracts, `request_phases.py`
prices the parts of a request, `load_estimate.py` puts users on it, `score_matrix.py` prices attention by its score
matrix, `alternatives.py` what could be different, `comparison.py` the same on many cards; `trust.py` says how far off
such figures were. `deployment_plan.py` joins them; `plan_answer.py` says it in a dozen lines and `plan_text.py` in a
paragraph, `plan_document.py` and `comparison_document.py` are documents, `plan_export.py` is JSON.
"""

from ridgeline.price.plan.demand import Demand
from ridgeline.price.plan.deployment_plan import DeploymentPlan, make_plan
from ridgeline.price.plan.scenario import Deployment, PlanWorkload

__all__ = ["Demand", "Deployment", "DeploymentPlan", "PlanWorkload", "make_plan"]
