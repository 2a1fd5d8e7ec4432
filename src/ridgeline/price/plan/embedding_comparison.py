"""A comparison of an embedding model on many devices, with one ranking per seller by dollars per token."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.price.device import Device
from ridgeline.price.interval_text import rate_interval
from ridgeline.price.plan.comparison import Unpriced
from ridgeline.price.plan.embedding_document import embedding_json
from ridgeline.price.plan.embedding_plan import EmbeddingPlan, embedding_plan
from ridgeline.price.plan.energy import ASSUMED, watt_hours_cell
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload
from ridgeline.util.document.elements import Column, Document, DocumentTable, TableRow
from ridgeline.util.document.humanize import gib, gib_cell, say_seconds, three_digits
from ridgeline.util.json_data import json_select


@dataclass(frozen=True, slots=True)
class EmbeddingComparison:
    """The plans of one embedding model on many devices."""

    plans: tuple[EmbeddingPlan, ...]
    """The plans of the devices that hold the model, one per device and price."""
    unable: tuple[EmbeddingPlan, ...]
    """The plans of the devices that do not hold the model."""
    unpriced: Unpriced
    """The heading and the further sellers for the devices without a price."""


def compare_embedding(
    name: str,
    models: ModelCache,
    setup: Deployment,
    workload: PlanWorkload,
    devices: Iterable[Device],
    unpriced: Unpriced,
) -> EmbeddingComparison:
    """Compare devices, each with the deployment's number of them, or one if they have no link.

    Args:
        name: The name of the model.
        models: The cache of priced models.
        setup: The deployment to repeat on each device.
        workload: The texts.
        devices: The devices, each once per price.
        unpriced: The description of the devices without a price.

    Raises:
        ModelRefused: If the model cannot be built or split in this way.
        ValueError: If the texts exceed the model's context.
    """
    plans = []
    for device in devices:
        count = setup.devices if device.link is not None else 1
        plans.append(embedding_plan(name, models, replace(setup, devices=count).on(device), workload))
    unable = {plan.case.device.name: plan for plan in plans if not plan.fits}
    return EmbeddingComparison(tuple(plan for plan in plans if plan.fits), tuple(unable.values()), unpriced)


def compare_embedding_document(compared: EmbeddingComparison) -> Document:
    """Return a document that ranks devices per seller, with a note on those that do not hold the model."""
    some = (*compared.plans, *compared.unable)[0]
    rows: list[TableRow | str] = []
    for seller, plans in _rankings(compared.plans):
        heading = f"{seller}: cheapest tokens first" if seller else f"{compared.unpriced.words}: fastest first"
        rows += [*([""] if rows else []), heading, *map(_row, plans)]
    around = Column("8 of 10", words=True, whole=True)
    rates, others = ("texts/s", "tokens/s"), ("one text", "$/h", "$/M", "Wh/M")
    table_columns = (
        Column("devices", words=True, whole=True), *map(Column, rates), around, *map(Column, others),
        Column("limit", words=True),
    )  # fmt: skip
    return Document(
        f"{some.name}: {some.case.weights} weights, vectors of texts of {some.length:,} tokens",
        (DocumentTable(table_columns, tuple(rows), tuple(_notes(compared))),),
        "full steps, one after the other; arrivals are evenly spaced: no queues",
    )


def compare_embedding_json(compared: EmbeddingComparison) -> dict[str, Any]:
    """Return the compared devices as JSON data: the rankings of all sellers, then devices that are too small."""
    ranked = [plan for _, plans in _rankings(compared.plans) for plan in plans]
    return {"cards": [_offer(plan) for plan in (*ranked, *compared.unable)]}


def _offer(plan: EmbeddingPlan) -> dict[str, Any]:
    setup = plan.case.setup
    return embedding_json(plan) | json_select(setup, "seller=device.price.asked_by", "dollars_per_hour=hourly")


def _rankings(plans: Sequence[EmbeddingPlan]) -> list[tuple[str, list[EmbeddingPlan]]]:
    """Return the plans of each seller, the cheapest tokens first; plans without a price come last."""
    by_seller: dict[str, list[EmbeddingPlan]] = {}
    for plan in plans:
        price = plan.case.setup.device.price
        by_seller.setdefault("" if price is None else f"{price.asked_by} ({price.date})", []).append(plan)
    order = sorted(by_seller, key=lambda seller: (seller == "", -len(by_seller[seller])))
    return [(seller, sorted(by_seller[seller], key=_cost)) for seller in order]


def _cost(plan: EmbeddingPlan) -> float:
    """Return the ranking key: dollars per token, or the speed if there is no price."""
    cost = plan.dollars_per_million
    return -plan.texts_per_second.expected if cost is None else cost


def _row(plan: EmbeddingPlan) -> TableRow:
    setup, rate, cost = plan.case.setup, plan.texts_per_second.expected, plan.dollars_per_million
    name = setup.device.name if setup.devices == 1 else f"{setup.devices} x {setup.device.name}"
    energy, one = plan.kwh_per_million_tokens, say_seconds(plan.one.seconds.expected)
    tokens, ceiling = rate * plan.length, plan.texts_per_second.floor * plan.length
    around = rate_interval(plan.case.intervals["load"], tokens, ceiling)
    return TableRow((
        name, three_digits(rate), three_digits(tokens), around, one,
        "" if setup.hourly is None else f"{setup.hourly:.2f}",
        "" if cost is None else three_digits(cost),
        "" if energy is None else watt_hours_cell(energy),
        plan.full.limit,
    ))  # fmt: skip


def _notes(compared: EmbeddingComparison) -> Iterator[str]:
    yield "$/M: dollars per million tokens at the expected rate; --seller NAME or --prices FILE chooses the prices."
    yield (
        "8 of 10: the interval of the tokens per second that holds 8 of 10 measurements of such cases; costs per token "
        "vary with it."
    )
    yield f"Wh/M: Wh per million tokens, {ASSUMED}"
    if compared.unpriced.elsewhere:
        yield (
            "other sellers offer some of the devices without a price: --seller "
            f"{', '.join(compared.unpriced.elsewhere)}"
        )
    if compared.unable:
        short = (f"{p.case.device.name} {gib_cell(gib(p.taken - p.budget))}" for p in compared.unable)
        yield f"does not fit (missing GiB per device): {', '.join(short)}"
