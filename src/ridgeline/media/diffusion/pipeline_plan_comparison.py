"""An image or a video on many GPUs: ranked by dollars for each seller, and by speed if no price is known."""

from collections.abc import Sequence
from typing import Any

from ridgeline.media.diffusion.pipeline_plan import PipelinePlan
from ridgeline.media.diffusion.pipeline_plan_page import answer_json, image_or_video, refusals
from ridgeline.price.interval_text import time_interval
from ridgeline.price.plan.comparison import Unpriced
from ridgeline.util.document.elements import Column, Document, DocumentTable, TableRow
from ridgeline.util.document.humanize import gib, gib_cell, say_seconds, three_digits
from ridgeline.util.json_data import json_select


def compare_pipeline_document(plans: Sequence[PipelinePlan], unpriced: Unpriced) -> Document:
    """Return a document that ranks GPUs for an image or video, per seller, with a note on too small GPUs."""
    some, rows = plans[0], list[TableRow | str]()
    for seller, ranked in _rankings(plans):
        heading = f"{seller}: cheapest {image_or_video(some)}s first" if seller else f"{unpriced.words}: fastest first"
        rows += [*([""] if rows else []), heading, *map(_row, ranked)]
    what = image_or_video(some)
    notes = [
        f"8 of 10: the interval of the time per {what} that holds 8 of 10 measurements of such cases; rates and costs "
        "vary with it.",
        "--seller NAME and --prices FILE choose the prices.",
    ]
    if unpriced.elsewhere:
        notes.append(
            f"other sellers have prices for some of the GPUs without one: --seller {', '.join(unpriced.elsewhere)}"
        )
    if unable := [plan for plan in plans if plan.fit.verdict == "no"]:
        short = (f"{p.device.name} by {gib_cell(gib(p.fit.least - p.fit.budget))}" for p in unable)
        notes.append(f"do not fit, missing GiB per GPU: {', '.join(short)}")
    notes += refusals(some)
    more = ("per hour", "$/h", f"$/{what}")
    table_columns = (
        Column("devices", words=True, whole=True), Column(f"per {what}"), Column("8 of 10", words=True, whole=True),
        *map(Column, more), Column("fits", words=True),
    )  # fmt: skip
    frames = f" x {some.geometry.frames} frames" if some.geometry.frames > 1 else ""
    title = f"{some.name}: {some.geometry.size}{frames}, {some.job.passes} passes"
    return Document(
        title,
        (DocumentTable(table_columns, tuple(rows), tuple(notes)),),
        ("Requests run one after the other, so none waits in a queue."),
    )


def compare_pipeline_json(plans: Sequence[PipelinePlan]) -> dict[str, Any]:
    """Return the GPUs for an image or video as JSON data, in ranked order, then those with too little memory."""
    ranked = [plan for _, each in _rankings(plans) for plan in each]
    unable = (plan for plan in plans if plan.fit.verdict == "no")
    return {"cards": [_offer(plan) for plan in (*ranked, *unable)], "notes": refusals(plans[0])}


def _offer(plan: PipelinePlan) -> dict[str, Any]:
    price = plan.device.price
    return {
        **json_select(plan, "device.name", "devices", "seller=device.price.asked_by"),
        "dollars_per_hour": None if price is None else price.dollars * plan.devices,
        **answer_json(plan),
    }


def _rankings(plans: Sequence[PipelinePlan]) -> list[tuple[str, list[PipelinePlan]]]:
    """Return the ranked plans by seller, those without a price last."""
    by_seller: dict[str, list[PipelinePlan]] = {}
    for plan in plans:
        if plan.fit.verdict != "no":
            price = plan.device.price
            by_seller.setdefault("" if price is None else f"{price.asked_by} ({price.date})", []).append(plan)
    order = sorted(by_seller, key=lambda seller: (seller == "", -len(by_seller[seller])))
    return [(seller, sorted(by_seller[seller], key=_cost)) for seller in order]


def _cost(plan: PipelinePlan) -> float:
    return plan.each.expected if plan.dollars is None else plan.dollars


def _row(plan: PipelinePlan) -> TableRow:
    price, name = plan.device.price, plan.device.name if plan.devices == 1 else f"{plan.devices} x {plan.device.name}"
    hourly = "" if price is None else f"{price.dollars * plan.devices:.2f}"
    dollars = "" if plan.dollars is None else three_digits(plan.dollars)
    seconds, an_hour = plan.each.expected, three_digits(plan.an_hour.expected)
    around = time_interval(plan.interval, seconds, plan.each.floor)
    return TableRow((name, say_seconds(seconds), around, an_hour, hourly, dollars, plan.fit.verdict))
