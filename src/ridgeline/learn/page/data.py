"""Data of the page by name, as its tabs ask for it: by request of a server, as blocks of a file.

`cards.json` is cards and engines, `models.json` which models there are and how they may be stored, and
`tables/MODEL.json?weights=fp8&devices=8` a model's price; what is left out is as the model's config says it.
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
"""What a model is called of which there is nothing but its config."""


def device_data() -> Mapping[str, Any]:
    """Of `cards.json`: the catalogue's."""
    return build_device_tables(catalogue_devices())


def models_data(
    tables: Mapping[str, Sequence[StoredModel]] | None = None, served: Iterable[str] = ()
) -> Mapping[str, Any]:
    """Of `models.json`. tables: of a file, which it has of each model; None for a server, which makes any. served: the
    models that run there.
    """
    names = [*served, *writers()] if tables is None else list(tables)
    return {
        "models": [{"name": name, "served": name in served} for name in dict.fromkeys(names)],
        "tables": None if tables is None else [table_name(name, each) for name in tables for each in tables[name]],
    }


def writers() -> list[str]:
    """The models of the catalogue that write text, which tables are of."""
    return [name for name in model_names() if family_of(config_of(name)).writes]


def table_data(name: str, opened: str, stored: StoredModel) -> Mapping[str, Any]:
    """The table of a model under this name. opened: what opens it, which neither the table nor an error tells. Raises
    ValueError for what cannot be stored so.
    """
    source = open_source(opened)
    config = Fields(source.config.values, name, source.config.elsewhere)
    alone = {MODEL: replace(source.model, config=config)}
    return model_table(replace(source, name=name, components=alone), stored)


def config_table(values: Mapping[str, Any], stored: StoredModel) -> Mapping[str, Any]:
    """The table of the model that a config.json describes, as `ridgeline page tables config.json` has it. values: of
    the file, which lies nowhere. Raises ValueError for what describes none, or none that can be stored so.
    """
    config = Fields(values, CONFIG)
    source = ModelSource("the model", None, {MODEL: Component(MODEL, CATALOGUE, config.architecture, config)}, {})
    return model_table(source, stored) | {"model": CONFIG, "command": stored.command(CONFIG)}


def table_name(model: str, stored: StoredModel) -> str:
    """What a table is called; `source.js` calls it so too."""
    said = {"weights": stored.weights, "kv": stored.kv}
    if stored.devices != 1:
        said["devices"] = str(stored.devices)
    if stored.own_attention:
        said["attention"] = "1"
    query = urlencode({name: value for name, value in said.items() if value is not None}, quote_via=quote)
    return f"tables/{quote(model, safe='')}.json" + (f"?{query}" if query else "")


def stored_of(query: str) -> StoredModel:
    """How a model of a table is stored, of the part of its name behind the question mark. Raises ValueError."""
    said = dict(parse_qsl(query, strict_parsing=bool(query)))
    unknown = said.keys() - {"weights", "kv", "devices", "attention"}
    if unknown:
        raise ValueError(f"{min(unknown)} is nothing that a table is asked by; give weights, kv, devices, attention")
    devices = said.get("devices", "1")
    if not (devices.isascii() and devices.isdigit() and 1 <= int(devices[:4]) <= MOST_DEVICES):
        raise ValueError(f"devices: a number from 1 to {MOST_DEVICES}")
    return StoredModel(said.get("weights"), said.get("kv"), int(devices), own_attention=said.get("attention") == "1")
