"""`ridgeline page`: the page in a browser as one file, and what it is fed with."""

import json

import typer

from ridgeline.cli import options
from ridgeline.cli.examples import EXAMPLES
from ridgeline.cli.page_export import export
from ridgeline.core.checkpoint.source import catalogue_name, open_source
from ridgeline.learn.page.device_tables import build_device_tables
from ridgeline.learn.page.model_tables import StoredModel, model_table
from ridgeline.price.devices import catalogue_devices as catalogue

page = typer.Typer(
    help="The page in a browser as one file, and what it is fed with: prices as tables.",
    epilog=f"\b\nAs one file:  {EXAMPLES['page export']}\nServed:       {EXAMPLES['serve']}, then open http://127.0.0.1:8000",
)


@page.callback()
def _group() -> None:
    """The page in a browser as one file, and what it is fed with: prices as tables."""


@page.command()
def tables(
    model: options.ConfigName,
    weights: options.Weights = None,
    kv: options.KV = None,
    devices: options.Devices = 1,
    enable_dp_attention: options.DpAttention = False,
) -> None:
    """Print the price of a model as one JSON object, from which a page computes every figure of a plan."""
    stored = StoredModel(weights, kv, devices, enable_dp_attention)
    _say(model_table(open_source(catalogue_name(model) or model), stored))


@page.command()
def cards() -> None:
    """Print the cards and engines of the catalogue as one JSON object, on which a page prices a table."""
    _say(build_device_tables(catalogue()))


page.command()(export)


def _say(table: object) -> None:
    print(json.dumps(table, separators=(",", ":")))
