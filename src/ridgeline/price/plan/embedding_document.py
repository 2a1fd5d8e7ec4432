"""The plan of an embedding model as a document and as JSON: the summary and the sections with its details."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ridgeline.price.error_interval import Kind, scaled
from ridgeline.price.interval_text import (
    describe_cases,
    describe_factors,
    describe_interval,
    time_interval,
)
from ridgeline.price.plan.embedding_plan import EmbeddingPlan, lengths
from ridgeline.price.plan.energy import describe_energy, joules_per_token
from ridgeline.price.plan.plan_audio import describe_cost
from ridgeline.price.plan.plan_document import classes_table, factors_note, phases_table
from ridgeline.price.plan.plan_text import rate_with, time_with
from ridgeline.price.plan.request_phases import PhasePrice
from ridgeline.price.trust_export import trust_json
from ridgeline.util.document.elements import Document, DocumentBlock, DocumentTable, Facts, Heading, TableRow, columns
from ridgeline.util.document.humanize import gb, gb_cell, gib, gib_cell, say_gib, say_seconds, three_digits
from ridgeline.util.json_data import json_select


def embedding_document(plan: EmbeddingPlan, sections: Sequence[str] | None = None) -> Document:
    """Return the summary with the times of one text and of a full step, or the given sections.

    With all sections in the order of `SECTIONS`, the summary comes first.
    """
    title, devices = plan.case.device.title, plan.case.setup.devices
    devices_text = f"{devices} x {title}" if devices > 1 else title
    blocks: list[DocumentBlock] = []
    if sections is None or tuple(sections) == tuple(SECTIONS):
        blocks += [Facts(tuple(_answer(plan))), _times(plan)]
    for name in sections or ():
        heading, table = SECTIONS[name]
        blocks += [Heading(heading), table(plan)]
    return Document(f"{plan.name} on {devices_text}: vectors of texts of {plan.length:,} tokens", tuple(blocks))


def _answer(plan: EmbeddingPlan) -> list[tuple[str, str]]:
    held = f"{say_gib(gib(plan.taken))} of {say_gib(gib(plan.budget))} usable"
    kept = f"KV of the texts {say_gib(gib(plan.kv))}" if plan.kv else "no KV: a text runs in one step"
    parts = (
        f"weights {say_gib(gib(plan.weights))}, activations per step {say_gib(gib(plan.activations))}, overhead "
        f"{say_gib(gib(plan.overhead))}; {kept}"
    )
    rate, alone, intervals = plan.texts_per_second, plan.one.seconds, plan.case.intervals
    prefill, load = intervals["prefill"], intervals["load"]
    each = f"{plan.texts:,} per step" if plan.full.steps == 1 else f"one text in {plan.full.steps:,} steps"
    facts = [
        ("fits", f"{'yes' if plan.fits else 'no'}: {held} ({parts})"),
        (
            "texts",
            f"{rate_with(load, rate)} texts of {plan.length:,} tokens per second, {each}; {_limit(plan.full)}",
        ),
        ("one text", f"{time_with(prefill, alone)} alone; {_limit(plan.one)}"),
    ]
    if cost := _cost(plan):
        facts.append(("cost", cost))
    facts.append(("trust", _trust(plan)))
    return facts + [("note", note) for note in plan.case.notes]


def _trust(plan: EmbeddingPlan) -> str:
    """Return what the intervals come from: measurements, and how well device, engine and format are known."""
    prefill, load = plan.case.intervals["prefill"], plan.case.intervals["load"]
    alone = plan.one.seconds
    one = describe_interval("one text", prefill, alone.expected, alone.floor)
    cases = describe_cases(prefill, plan.case.setup.device)
    return f"{one}; {describe_factors('texts per second and their cost', load)}; {cases}"


def _cost(plan: EmbeddingPlan) -> str:
    """Return the dollars and the energy of a million tokens, as far as they are known."""
    dollars, kwh = plan.dollars_per_million, plan.kwh_per_million_tokens
    cost = ""
    if dollars is not None:
        cost = f"{describe_cost(dollars, None, plan.cost_factors)} tokens"
    if kwh is None:
        return cost
    factors = plan.cost_factors
    return (
        f"{cost or 'per million tokens'}{', and ' if cost else ': '}{describe_energy(kwh, plan.case.device, factors)}"
    )


def _times(plan: EmbeddingPlan) -> DocumentTable:
    prefill = plan.case.intervals["prefill"]
    rows = (
        TableRow((
            phase.about, *(say_seconds(s) for s in dataclasses.astuple(phase.seconds)),
            time_interval(prefill, phase.seconds.expected, phase.seconds.floor),
            three_digits(phase.seconds.per_second(texts).expected),
            phase.limit,
        ))
        for phase, texts in ((plan.one, 1), (plan.full, plan.texts))
    )  # fmt: skip
    heads = ("step", "floor", "bound", "expected", "8 of 10 measurements", "texts/s", "limit")
    return DocumentTable(columns(*heads, words=(0, 4)), tuple(rows))


def _limit(phase: PhasePrice) -> str:
    times, side = (phase.balance, "over") if phase.balance >= 1 else (1 / phase.balance, "under")
    return f"{phase.limit}-bound, {three_digits(times)} times {side} the ridge"


def _memory(plan: EmbeddingPlan) -> DocumentTable:
    parts = ("weights", plan.weights), ("activations per step", plan.activations), ("overhead", plan.overhead)
    kept = (("KV of the texts of a step", plan.kv),) if plan.kv else ()
    rows = (*parts, *kept, ("total", plan.taken), ("usable", plan.budget))
    cells = (TableRow((name, gib_cell(gib(nbytes)), gb_cell(gb(nbytes)))) for name, nbytes in rows)
    return DocumentTable(columns("per device", "GiB", "GB"), tuple(cells))


def _lengths(plan: EmbeddingPlan) -> DocumentTable:
    rows = []
    for other in lengths(plan):
        rate, cost = other.texts_per_second.expected, other.dollars_per_million
        cells = (
            f"{other.length:,}",
            f"{other.texts:,}",
            three_digits(rate),
            three_digits(rate * other.length),
            other.full.limit,
        )
        rows.append(TableRow((*cells, "" if cost is None else three_digits(cost), "yes" if other.fits else "no")))
    heads = ("tokens per text", "texts per step", "texts/s", "tokens/s", "limit", "$/M tokens", "fits")
    note = describe_factors("8 of 10 measurements:", plan.case.intervals["load"])
    return DocumentTable(columns(*heads), tuple(rows), (note,))


SECTIONS: Mapping[str, tuple[str, Callable[[EmbeddingPlan], DocumentTable]]] = MappingProxyType(
    {
        "memory": ("Memory", _memory),
        "steps": ("Work of a step", lambda plan: phases_table((plan.one, plan.full))),
        "classes": (
            "Time by operation class, and the roof that limits it",
            lambda plan: classes_table((plan.one, plan.full), factors_note(plan.case.intervals, "prefill")),
        ),
        "lengths": ("Texts by length, with as many per step as its token limit allows", _lengths),
    }
)
"""The sections that users can request by name, in the order of --full."""

_KIND_OF: Mapping[str, Kind] = MappingProxyType(
    {
        "texts_per_second": "load", "one": "prefill", "full": "prefill", "dollars_per_million_tokens": "load",
        "kwh_per_million_tokens": "load", "joules_per_token": "load",
    }
)  # fmt: skip


def embedding_json(plan: EmbeddingPlan) -> dict[str, Any]:
    """Return the main figures of an embedding model's plan as JSON data, in SI units, bytes and seconds."""
    return {
        "model": json_select(plan, "name", "case.model.context") | {"weights": plan.case.recipe.name or "as stored"},
        **json_select(plan, "device=case.device.name", "case.setup.devices"),
        "workload": json_select(plan, "input=length", "texts"),
        "memory": json_select(plan, "weights", "activations", "overhead", "kv", "budget", "fits"),
        **json_select(plan, "texts_per_second", "one=one.seconds", "full=full.seconds", "full.limit"),
        **json_select(plan, "dollars_per_million_tokens=dollars_per_million", "kwh_per_million_tokens"),
        "joules_per_token": joules_per_token(plan.kwh_per_million_tokens),
        **json_select(plan.case, "notes", "model.traced_from", "model.priced_only", "unmodelled"),
        "intervals": _intervals(plan),
        "trust": trust_json(plan.case.setup.device, plan.case.setup.engine, plan.case.intervals, _KIND_OF),
    }


def _intervals(plan: EmbeddingPlan) -> dict[str, tuple[float, float] | None]:
    """Return the interval of each expected figure, in the figure's unit."""
    prefill, load = plan.case.intervals["prefill"], plan.case.intervals["load"]
    million, kwh = plan.dollars_per_million, plan.kwh_per_million_tokens
    joules = joules_per_token(kwh)
    rate, one, full = plan.texts_per_second, plan.one.seconds, plan.full.seconds
    return {
        "texts_per_second": load.around_rate(rate.expected, rate.floor),
        "one": prefill.around_time(one.expected, one.floor),
        "full": prefill.around_time(full.expected, full.floor),
        "dollars_per_million_tokens": None if million is None else scaled(million, plan.cost_factors),
        "kwh_per_million_tokens": None if kwh is None else scaled(kwh, plan.cost_factors),
        "joules_per_token": None if joules is None else scaled(joules, plan.cost_factors),
    }
