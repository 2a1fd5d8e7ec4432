"""The JSON data of the page by name, as its tabs request it: from a server, or from blocks of a single-file page.

`cards.json` has devices and engines, and `models.json` the models and the tables that a single-file page has.
`tables/MODEL.json?weights=fp8&devices=8` is the price of a model. By default the formats are those of the model's
config, and there is one device. A single-file page may have more, such as `traffic.json`, the results of load tests.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from ridgeline.core.checkpoint.catalogue import CATALOGUE, config_of, model_names
from ridgeline.core.checkpoint.source import MODEL, Component, ModelSource, open_source
from ridgeline.core.models import family_of
from ridgeline.core.models.common.fields import Fields
from ridgeline.learn.page.device_tables import build_device_tables
from ridgeline.learn.page.model_tables import StoredModel, model_table
from ridgeline.price.devices import catalogue_devices

CARDS, MODELS, TRAFFIC = "cards.json", "models.json", "traffic.json"

MOST_DEVICES = 8

CONFIG = "config.json"
"""The name of a model of which only the config is known."""


def device_data() -> Mapping[str, Any]:
    """Return the contents of `cards.json` for the devices of the catalogue."""
    return build_device_tables(catalogue_devices())


def models_data(
    tables: Mapping[str, Sequence[StoredModel]] | None = None, served: Iterable[str] = ()
) -> Mapping[str, Any]:
    """Return the contents of `models.json`: the models that the page offers, and the tables that it has.

    Args:
        tables: Tables that a single-file page has of each model; None for a server, which can make any.
        served: Models that the server runs.
    """
    names = [*served, *writers()] if tables is None else list(tables)
    return {
        "models": [{"name": name, "served": name in served} for name in dict.fromkeys(names)],
        "tables": None if tables is None else [table_name(name, each) for name in tables for each in tables[name]],
    }


def writers() -> list[str]:
    """Return the catalogue's models that generate text; only these have tables."""
    return [name for name in model_names() if family_of(config_of(name)).generates]


def table_data(name: str, opened: str, stored: StoredModel) -> Mapping[str, Any]:
    """Return the table of a model under another name.

    Args:
        name: Name in the table and in errors.
        opened: Name that opens the model, which neither the table nor an error reveals.
        stored: Formats and number of devices.

    Raises:
        ValueError: If the model cannot be stored in these formats.
    """
    source = open_source(opened)
    config = Fields(source.config.values, name, source.config.elsewhere)
    alone = {MODEL: replace(source.model, config=config)}
    return model_table(replace(source, name=name, components=alone), stored)


def config_table(values: Mapping[str, Any], stored: StoredModel) -> Mapping[str, Any]:
    """Return the table of the model that a config.json describes, as `ridgeline page tables config.json` does.

    Args:
        values: Contents of the config, which is not stored in a file.
        stored: Formats and number of devices.

    Raises:
        ValueError: If the config does not describe a supported model, or the model cannot be stored in these formats.
    """
    config = Fields(values, CONFIG)
    source = ModelSource("the model", None, {MODEL: Component(MODEL, CATALOGUE, config.architecture, config)}, {})
    return model_table(source, stored) | {"model": CONFIG, "command": stored.command(CONFIG)}


def table_name(model: str, stored: StoredModel) -> str:
    """Return the name of a table; `source.js` uses the same name."""
    fields = {"weights": stored.weights, "kv": stored.kv}
    if stored.devices != 1:
        fields["devices"] = str(stored.devices)
    if stored.own_attention:
        fields["attention"] = "1"
    query = urlencode({name: value for name, value in fields.items() if value is not None}, quote_via=quote)
    return f"tables/{quote(model, safe='')}.json" + (f"?{query}" if query else "")


def stored_of(query: str) -> StoredModel:
    """Return a model's formats, number of devices and attention mode from a query such as `weights=fp8`.

    The query is part of a table's name. `attention=1` stands for data-parallel attention.

    Raises:
        ValueError: If the query is malformed, a parameter is unknown, the number of devices is invalid, or a single
            device has data-parallel attention. Formats are not checked here.
    """
    fields = dict(parse_qsl(query, strict_parsing=bool(query)))
    unknown = fields.keys() - {"weights", "kv", "devices", "attention"}
    if unknown:
        raise ValueError(f"{min(unknown)} is not a parameter of a table; use weights, kv, devices or attention")
    devices = fields.get("devices", "1")
    if not (devices.isascii() and devices.isdigit() and 1 <= int(devices[:4]) <= MOST_DEVICES):
        raise ValueError(f"devices must be a number from 1 to {MOST_DEVICES}")
    return StoredModel(
        fields.get("weights"), fields.get("kv"), int(devices), own_attention=fields.get("attention") == "1"
    )
