"""`ridgeline plan`: does it fit, how many users, how fast, what limits it, what it costs. Reads no weights."""

import json
from typing import Annotated, Any

import typer

from ridgeline.checkpoint.source import CATALOGUE, read_config
from ridgeline.cli import options
from ridgeline.cli.options import device_named, parse_dollars, parse_seconds, parse_tokens
from ridgeline.document.numbers import gib
from ridgeline.document.page import Document, Paragraph, Row, Table, columns
from ridgeline.document.terminal import show
from ridgeline.models import build
from ridgeline.models.bill import bill
from ridgeline.roofline.cards import cards
from ridgeline.roofline.device import HourlyPrice
from ridgeline.roofline.plan import Setup, Workload, make_plan
from ridgeline.roofline.plan.export import plan_json
from ridgeline.roofline.plan.page import plan_document


def _workload(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="Workload")


def _setup(*names: str, text: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="How it is set up")


_TPOT = "The most seconds a token after it on average, other users' prefills included, like 50ms."


def plan(
    model: options.OptionalConfigName = None,
    device: options.OptionalDeviceName = None,
    devices: options.Devices = 1,
    weights: options.Weights = None,
    kv: options.KV = None,
    memory_utilization: Annotated[float, _setup(text="The share of a card's memory that may be used.")] = 0.9,
    max_batch_tokens: options.MaxBatchTokens = "2k",
    input: options.Input = "1k",
    output: Annotated[str, _workload("Tokens generated.")] = "256",
    batch: options.Batch = 1,
    ttft: Annotated[str | None, _workload("The most seconds to the first token (TTFT), like 500ms.")] = None,
    tpot: Annotated[str | None, _workload(_TPOT)] = None,
    price: Annotated[
        str | None, _workload("Dollars for one card and hour, like 2.5; by default the catalogue's.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="The same on every card of the catalogue.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="The models and cards of the catalogue, and no plan.")] = False,
    as_json: options.Json = False,
) -> None:
    """Predict memory, speed, users and cost of a model on a card, as floor, bound and expected.

    TTFT: time to the first token. ITL: one decode step. TPOT: time per output token after the first on average, with
    the prefills of other users in between. Decode is priced at the running context, input + output / 2.
    """
    if listed:
        known = list_json()
        print(json.dumps(known)) if as_json else show(list_document(known))
        return
    if model is None or device is None:
        raise ValueError(f"{'MODEL' if model is None else '--device'} is missing; ridgeline plan --list names all")
    setup = Setup(
        device_named(device),
        devices,
        weights,
        kv,
        memory_utilization,
        None if price is None else HourlyPrice(parse_dollars(price, "--price"), "as given", "--price"),
    )
    workload = Workload(
        parse_tokens(input, "--input"),
        parse_tokens(output, "--output"),
        batch,
        None if ttft is None else parse_seconds(ttft, "--ttft"),
        None if tpot is None else parse_seconds(tpot, "--tpot"),
        parse_tokens(max_batch_tokens, "--max-batch-tokens"),
    )
    made = make_plan(model, read_config(model), setup, workload, cards(), compared=compare)
    if as_json:
        print(json.dumps(plan_json(made)))
    else:
        show(plan_document(made))


def list_json() -> dict[str, Any]:
    """Models with their parameters, and cards with bytes, bytes a second, FLOP/s and dollars an hour."""
    models = []
    for name in sorted(path.stem for path in CATALOGUE.glob("*.json")):
        counted = bill(build(read_config(name)))
        models.append({"name": name, "parameters": counted.total, "active_parameters": counted.active})
    return {
        "models": models,
        "cards": [
            {
                "name": card.name,
                "title": card.title,
                "memory_bytes": card.memory,
                "bandwidth": card.bandwidth,
                "bf16": card.peaks.get("bf16"),
                "dollars_per_hour": None if card.price is None else card.price.dollars,
            }
            for card in cards()
        ],
    }


def list_document(known: dict[str, Any]) -> Document:
    """Both as tables."""
    models, card_list = known["models"], known["cards"]
    return Document(
        f"{len(models)} models and {len(card_list)} cards",
        (
            Table(columns("model", "parameters", "active"), tuple(_model_row(model) for model in models)),
            Table(
                columns("card", "title", "GiB", "GB/s", "bf16 TFLOP/s", "$/h", words=(0, 1)),
                tuple(_card_row(card) for card in card_list),
            ),
            Paragraph("MODEL may also be a config.json, --device a card file (docs/plan.md), `this` or `cuda`."),
        ),
    )


def _model_row(model: dict[str, Any]) -> Row:
    total, active = model["parameters"], model["active_parameters"]
    return Row((model["name"], _billions(total), _billions(active) if active != total else ""))


def _card_row(card: dict[str, Any]) -> Row:
    peak, price = card["bf16"], card["dollars_per_hour"]
    memory, bandwidth = f"{gib(card['memory_bytes']):,.0f}", f"{card['bandwidth'] / 1e9:,.0f}"
    teraflops = "" if peak is None else f"{peak / 1e12:,.0f}"
    return Row((card["name"], card["title"], memory, bandwidth, teraflops, "" if price is None else f"{price:.2f}"))


def _billions(count: int) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 1e9 else f"{count / 1e6:,.0f} M"
