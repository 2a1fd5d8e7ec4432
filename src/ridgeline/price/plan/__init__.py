"""Capacity planning from a model's config alone: memory, users, latency and cost on a device (`ridgeline plan`).

`scenario.py` describes the workload and the deployment, `demand.py` the load to serve and `batch_job.py` jobs.
`device_memory.py` subtracts weights and activations from the memory, `request_phases.py` prices the phases of a
request, `load_estimate.py` adds users, `score_matrix.py` prices unfused attention, and `alternatives.py` varies the
deployment. `deployment_plan.py` joins all of these, and `comparison.py` ranks many devices for the same deployment.
`energy.py` converts the power limit of devices into the energy of tokens. `plan_answer.py` renders the plan in a dozen
lines, `plan_text.py` in a paragraph, `plan_document.py` and `comparison_document.py` as documents, `plan_report.py` as
a report with a roofline (`plan_roofline.py`) and sources (`report_sources.py`), `plan_export.py` as JSON, and
`comparison_csv.py` as CSV. The modules named after embeddings do the same for embedding models.
"""

from ridgeline.price.plan.demand import Demand
from ridgeline.price.plan.deployment_plan import DeploymentPlan, make_plan
from ridgeline.price.plan.scenario import Deployment, PlanWorkload

__all__ = ["Demand", "Deployment", "DeploymentPlan", "PlanWorkload", "make_plan"]
