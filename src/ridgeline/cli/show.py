"""`ridgeline show`: what a config.json says, without weights."""

import dataclasses
import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ridgeline.checkpoint import read_config
from ridgeline.cli import options
from ridgeline.models import Fields, ModelRefused, build, family_of
from ridgeline.models.bill import Bill, bill
from ridgeline.models.model import Model
from ridgeline.models.naming import parse
from ridgeline.ops.formats import format_of

_SMALL = 1e9  # bytes; below it GB would lose the digits that matter


def show(
    model: Annotated[str, typer.Argument(help="A checkpoint folder, a config.json, or a name of the catalogue.")],
    as_json: options.Json = False,
) -> None:
    """Take a config.json apart: the name, the sizes, and where the parameters are. Reads no weights."""
    fields = read_config(model)
    name = parse(fields.architecture) if fields.architecture else None
    try:
        built = build(fields)
    except ModelRefused as refusal:
        if name is None:
            raise
        # What the name says is still worth knowing; the reason follows as the error.
        if not as_json:
            print(f"{fields.architecture}: {name.family} {name.version}".rstrip() + f", {name.kind}, {name.task}")
        raise ModelRefused(f"cannot be run: {refusal}") from None
    counted = bill(built)
    if as_json:
        print(json.dumps(_as_json(fields, built, counted)))
    else:
        _print(fields, built, counted)


def _as_json(fields: Fields, model: Model, counted: Bill) -> dict[str, Any]:
    return {
        "architecture": family_of(fields).architecture,
        "name": dataclasses.asdict(parse(family_of(fields).architecture)),
        "context": model.context,
        "vocabulary": model.vocabulary,
        "layers": len(model.kv_specs),
        "dtype": format_of(model.storage.dtype).name,
        "tied": model.tied,
        "kv_bytes_per_token": sum(spec.bytes_per_token for spec in model.kv_specs),
        **dataclasses.asdict(counted),
    }


def _print(fields: Fields, model: Model, counted: Bill) -> None:
    console = Console(highlight=False, soft_wrap=True)
    architecture = family_of(fields).architecture
    name = parse(architecture)
    title = " ".join(part for part in (name.family, name.version) if part)
    console.print(f"{architecture}: family {title}, {name.kind}, for {name.task}", markup=False)
    spec = model.kv_specs[0]
    windows = sorted({s.window for s in model.kv_specs if s.window is not None})
    console.print(
        f"{len(model.kv_specs)} layers, {spec.heads} KV heads of {spec.k_dim}, context {model.context:,}, "
        f"vocabulary {model.vocabulary:,}, {format_of(model.storage.dtype).name}, "
        f"head {'tied to the embedding' if model.tied else 'of its own'}"
        + (f", sliding window {', '.join(f'{w:,}' for w in windows)}" if windows else ""),
        markup=False,
    )
    console.print(f"KV cache {sum(s.bytes_per_token for s in model.kv_specs):,.0f} bytes a token", markup=False)
    table = Table("part", *(("one layer", "all") if counted.layer else ("all",)), "share", box=None, pad_edge=False)
    for column in table.columns[1:]:
        column.justify = "right"
    for part, count in counted.parameters.items():
        table.add_row(part, f"{counted.layer[part]:,}", f"{count:,}", f"{count / counted.total:.1%}")
    table.add_row("total", f"{sum(counted.layer.values()):,}", f"{counted.total:,}", "", style="bold")
    if counted.active != counted.total:
        table.add_row("active for a token", "", f"{counted.active:,}", f"{counted.active / counted.total:.1%}")
    console.print(table)
    console.print(
        f"weights {counted.nbytes:,.0f} bytes = {counted.nbytes / 1e9:.2f} GB = {counted.nbytes / 2**30:.2f} GiB"
        if counted.nbytes >= _SMALL
        else f"weights {counted.nbytes:,.0f} bytes = {counted.nbytes / 1e6:.2f} MB = {counted.nbytes / 2**20:.2f} MiB"
    )
