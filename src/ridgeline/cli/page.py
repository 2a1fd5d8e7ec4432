"""`ridgeline page` exports the web page as one file, and its data as JSON."""

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
    help="Export the web page as one file, or print the tables that it computes with.",
    epilog=(
        f"\b\nAs one file:  {EXAMPLES['page export']}\nServed:       {EXAMPLES['serve']}, then open "
        "http://127.0.0.1:8000"
    ),
)


@page.command()
def tables(
    model: options.ConfigName,
    weights: options.Weights = None,
    kv: options.KV = None,
    devices: options.Devices = 1,
    enable_dp_attention: options.DpAttention = False,
) -> None:
    """Print the price of a model as JSON: the tables from which the web page computes a plan."""
    stored = StoredModel(weights, kv, devices, enable_dp_attention)
    _say(model_table(open_source(catalogue_name(model) or model), stored))


@page.command("cards", hidden=True)  # the name until 2026-11
@page.command()
def devices() -> None:
    """Print the devices and engines of the catalogue as JSON: the tables of the web page."""
    _say(build_device_tables(catalogue()))


page.command()(export)


def _say(table: object) -> None:
    print(json.dumps(table, separators=(",", ":")))
