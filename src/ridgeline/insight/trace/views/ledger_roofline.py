"""The roofline chart of a ledger, with a point for each op class of each step."""

from ridgeline.insight.trace.trace_ledger import StepLedger
from ridgeline.price.device_roofline import roofline
from ridgeline.util.document import humanize
from ridgeline.util.document.roofline_chart import Point, Roofline


def ledger_roofline(ledger: StepLedger) -> Roofline:
    """Return the roofline chart of a ledger: a point for each op class of each step that computes and moves data."""
    points, unplaced = _points(ledger)
    formats = dict.fromkeys(name for step in ledger.steps for name, flops in step.cost.flops.items() if flops)
    note = "" if ledger.at_hand else "measured on another machine"
    return roofline(ledger.model, ledger.device, formats, points, unplaced, note)


def _points(ledger: StepLedger) -> tuple[list[Point], list[str]]:
    points: list[Point] = []
    unplaced: list[str] = []
    for step in ledger.steps:
        whole = ledger.whole(step.name)
        for group in ledger.classes():
            total = group.totals[step.name]
            seconds = total.measured or total.expected
            flops, moved = total.cost.total_flops, total.cost.total_bytes
            if flops and moved and seconds:
                measured, at_bound = total.measured > 0, flops / total.bound
                points.append(
                    Point(group.label, step.name, flops / moved, flops / seconds, at_bound, measured, seconds / whole)
                )
            elif moved and seconds:
                unplaced.append(f"{group.label} ({step.name}) {humanize.say(moved / seconds, 'B/s')}")
    return points, unplaced
