"""`ridgeline plan`: does it fit, how many users, how fast, what limits it, what it costs. Reads no weights."""

import json
from typing import Annotated, Any

import typer

from ridgeline.checkpoint import read_config
from ridgeline.cli import options
from ridgeline.cli.amounts import parse_dollars, parse_seconds, parse_tokens
from ridgeline.cli.device import device_named
from ridgeline.cli.plan_list import list_json, print_list
from ridgeline.cli.plan_view import line_width, print_plan
from ridgeline.roofline.cards import cards
from ridgeline.roofline.device import HourlyPrice
from ridgeline.roofline.plan import Setup, Workload, make_plan
from ridgeline.roofline.plan.report import plan_json


def _asked(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel="What is asked")


def _setup(*names: str, text: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel="How it is set up")


_MODEL = "A checkpoint folder, a config.json, or a name of the catalogue."
_WEIGHTS = "bf16, fp8 (weights and activations), int8 or int4 (weights only); by default as the config says."
_TPOT = "The most seconds a token after it on average, other users' prefills included, like 50ms."


def plan(
    model: Annotated[str | None, typer.Argument(help=_MODEL, show_default=False)] = None,
    device: Annotated[
        str | None, typer.Option(help="A card like h100-sxm, a .json or .toml file of one; `this` processor, `cuda`.")
    ] = None,
    devices: Annotated[int, typer.Option(help="Cards that every layer is divided over: 1, 2, 4, 8.")] = 1,
    weights: Annotated[str | None, _setup("--weights", "--dtype", text=_WEIGHTS)] = None,
    kv: Annotated[str | None, _setup("--kv", text="KV cache in bf16, fp8 or int8.")] = None,
    memory_utilization: Annotated[float, _setup(text="The share of a card's memory that may be used.")] = 0.9,
    max_batch_tokens: Annotated[str, _setup(text="Positions that a step may run; longer prompts take several.")] = "2k",
    input: Annotated[str, _asked("Prompt tokens; 1k is 1,024.")] = "1k",
    output: Annotated[str, _asked("Tokens generated.")] = "256",
    batch: Annotated[int, _asked("Requests side by side.")] = 1,
    ttft: Annotated[str | None, _asked("The most seconds to the first token (TTFT), like 500ms.")] = None,
    tpot: Annotated[str | None, _asked(_TPOT)] = None,
    price: Annotated[str | None, _asked("Dollars for one card and hour, like 2.5; by default the catalogue's.")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="The same on every card of the catalogue.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="The models and cards of the catalogue, and no plan.")] = False,
    as_json: options.Json = False,
) -> None:
    """Predict memory, speed, users and cost of a model on a card, as floor, bound and expected.

    TTFT: time to the first token. ITL: one decode step. TPOT: time per output token after the first on average, with
    the prefills of other users in between. Decode is priced at the running context, input + output / 2.
    """
    if listed:
        print(json.dumps(list_json())) if as_json else print_list(line_width())
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
        print_plan(made)
