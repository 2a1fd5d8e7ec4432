"""The roofline of a plan: its prefill and its decode step, for one user and for the users of the plan."""

from dataclasses import replace

from ridgeline.price.crossovers import matrix_flops
from ridgeline.price.device_roofline import roofline
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.plan_text import describe_users
from ridgeline.price.plan.request_phases import PhasePrice, decode_step, decoder_phases, prefill_step, price_phase
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import percent, say, three_digits
from ridgeline.util.document.roofline_chart import Point, Roofline


def roofline_phases(plan: DeploymentPlan) -> list[tuple[int, PhasePrice]]:
    """Return the prefill and the decode step of one user, of the workload's batch and of the plan's users.

    Each comes with its number of requests, which all arrive at once.
    """
    case, workload = plan.case, plan.workload
    counts = dict.fromkeys((1, workload.batch, plan.reported_load.users))
    return [
        (count, price_phase(case.price, case.device, phase))
        for count in sorted(counts)
        for phase in decoder_phases(case, replace(workload, batch=count))
    ]


def plan_roofline(plan: DeploymentPlan) -> Roofline:
    """Return the roofline chart of a plan on one device, from matrix products and the traffic of weights and KV."""
    case, workload, devices = plan.case, plan.workload, plan.case.setup.devices
    first = prefill_step(case, workload, 0, min(workload.computed, workload.prompt_step))
    later = decode_step(case, 1, workload.context, workload.encoded)
    formats = dict.fromkeys(name for step in (first, later) for name in matrix_flops(step.cost))
    points = sorted((_point(*each) for each in roofline_phases(plan)), key=lambda point: point.step == "decode")
    note = f"one of {devices} devices" if devices > 1 else ""
    return roofline(plan.name, case.device, formats, points, note=note)


def roofline_table(plan: DeploymentPlan) -> DocumentTable:
    """Return the points of the chart as a table."""
    rows = []
    for count, phase in roofline_phases(plan):
        point = _point(count, phase)
        cells = (three_digits(phase.intensity), three_digits(phase.ridge), say(point.flops_per_second, "FLOP/s"))
        rows.append(TableRow((phase.name, f"{count:,}", *cells, percent(point.of_roof), phase.limit)))
    heads = ("", "users", "FLOP per byte", "ridge", "expected", "of its roof", "limit")
    notes = (
        "FLOP: of matrix products. Bytes: of weights and KV. The roof is what the peaks of the formats and the memory "
        "bandwidth allow. The expected rate includes launches, communication and host time.",
    )
    return DocumentTable(columns(*heads, words=(0, 6)), tuple(rows), notes)


def _point(count: int, phase: PhasePrice) -> Point:
    flops = phase.intensity * phase.memory_bytes
    at_roof, name = flops / max(phase.arithmetic, phase.memory), f"{phase.name}, {describe_users(count)}"
    rate = flops / phase.seconds.expected
    return Point(name, phase.name, phase.intensity, rate, at_roof, measured=False)
