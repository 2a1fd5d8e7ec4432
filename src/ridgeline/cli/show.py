"""`ridgeline show` describes a config.json without reading weights."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from ridgeline.cli import options
from ridgeline.cli.class_status import class_status
from ridgeline.cli.console import print_json
from ridgeline.core.checkpoint.adapter import Adapter, adapt, read_adapters
from ridgeline.core.checkpoint.embedding_config import read_embedding, with_pooling
from ridgeline.core.checkpoint.gguf_config import tensor_bytes
from ridgeline.core.checkpoint.source import catalogue_name, open_source
from ridgeline.core.models import Fields, ModelRefused, build, family_of
from ridgeline.core.models.common.architecture_name import ArchitectureName, parse
from ridgeline.core.models.common.embedder import Embedder
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import ParameterBreakdown, layers_of, parameter_breakdown
from ridgeline.core.models.common.recipes import Recipe, read_recipe
from ridgeline.core.models.common.sizes import HeadSharing, ModelSizes, describe_latents, sizes_of
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.number_formats import format_of
from ridgeline.util.document import terminal_renderer
from ridgeline.util.document.elements import Document, DocumentTable, Facts, TableRow, Tone, columns
from ridgeline.util.document.humanize import gb, gib, say_gb, say_gib, three_digits
from ridgeline.util.json_data import json_data, json_object, json_select


def show(
    model: options.ConfigName,
    lora: options.PricedLora = None,
    rope: options.Rope = None,
    as_json: options.Json = False,
) -> None:
    """Show a model's architecture, sizes and parameter counts from its config.json, without its weights."""
    source = open_source(catalogue_name(model) or model).with_rope(rope)
    fields, embedding = source.config, read_embedding(source)
    name = parse(fields.architecture) if fields.architecture else None
    try:
        with class_status(fields):
            built = build(fields)
        built = built if embedding is None else with_pooling(built, embedding)
    except ModelRefused as refusal:
        if name is None:
            raise
        title = f"{name.family} {name.version}".rstrip()  # the name is informative even if the model is refused
        raise ModelRefused(f"{title} ({name.kind}, {name.task}) cannot be built: {refusal}") from None
    counted, adapters = parameter_breakdown(built), read_adapters(options.adapters_of(lora, "--lora"))
    if source.gguf is not None:  # the breakdown counts F16 and mixed BF16 as held in memory, not as stored
        counted = dataclasses.replace(counted, nbytes=float(tensor_bytes(source.gguf)))
    adapt(built, family_of(fields), adapters)
    if as_json:
        report = {"adapters": [_adapter_json(adapter, built) for adapter in adapters]} if adapters else {}
        print_json(_as_json(fields, built, counted) | report)
    else:
        shown = document(fields, built, counted)
        tables = (_adapters(adapters, built, counted),) if adapters else ()
        terminal_renderer.show(dataclasses.replace(shown, blocks=(*shown.blocks, *tables)))


def _adapter_json(adapter: Adapter, model: Model) -> dict[str, Any]:
    return {
        **json_select(adapter, "name", "made_for=base", "rank"),
        "matrices": len(adapter.matrices),
        "parameters": adapter.parameters,
        "bytes": adapter.parameters * model.storage.dtype.itemsize,
        "flops_per_token": 2 * adapter.parameters,
    }


def _adapters(adapters: Sequence[Adapter], model: Model, counted: ParameterBreakdown) -> DocumentTable:
    """Return a table of what each adapter adds to the model and to a step."""
    heads = ("adapter", "made for", "rank", "matrices", "parameters", "share", "bytes per step", "FLOPs per token")
    rows = []
    for adapter in adapters:
        report = _adapter_json(adapter, model)
        share = f"{adapter.parameters / counted.total:.2%}"
        numbers = (report["parameters"], share, report["bytes"], report["flops_per_token"])
        shown = tuple(each if isinstance(each, str) else f"{each:,}" for each in numbers)
        rows.append(
            TableRow((adapter.name, adapter.base or "?", f"{adapter.rank}", f"{len(adapter.matrices)}", *shown))
        )
    return DocumentTable(columns(*heads), tuple(rows))


def _as_json(fields: Fields, model: Model, counted: ParameterBreakdown) -> dict[str, Any]:
    recipe, sizes = read_recipe(fields), sizes_of(model)
    return {
        "architecture": family_of(fields).architecture,
        "name": json_data(_name(fields, sizes)),
        **json_select(model, "traced_from", "priced_only", "context", "vocabulary"),
        "layers": sum(layers_of(model)),
        "dtype": format_of(model.storage.dtype).name,
        "weights": recipe.name or format_of(model.storage.dtype).name,
        "tied": model.tied,
        "unread": [*fields.unread(), *recipe.unread],
        "kv_bytes_per_token": sum(spec.bytes_per_token for spec in model.kv_specs),
        "sizes": json_data(sizes),
        **json_object(counted),
    }


def document(fields: Fields, model: Model, counted: ParameterBreakdown) -> Document:
    """Return the name, the sizes and the parameter counts of a model."""
    architecture, recipe, sizes = family_of(fields).architecture, read_recipe(fields), sizes_of(model)
    name = _name(fields, sizes)
    title = " ".join(part for part in (name.family, name.version) if part)
    lacking = " and ".join(fields.other_inputs())
    facts = (
        *_origin(model),
        ("model", _sizes(model, recipe)),
        ("layer", _layer(sizes)),
        ("KV cache", _kept(model, sizes)),
        ("weights", _weights(model, recipe, counted.nbytes)),
        *((("left out", f"what {lacking} describes: only the text model is read"),) if lacking else ()),
    )
    tables = (
        (_sharing(sizes), _parameters(model, counted))
        if sizes.sharing and model.kv_specs
        else (_parameters(model, counted),)
    )
    called = title if model.traced_from else f"family {title}"  # a class has no family here
    return Document(f"{architecture}: {called}, {name.kind}, for {name.task}", (Facts(facts), *tables))


def _origin(model: Model) -> Iterator[tuple[str, str]]:
    """Yield where the definition of a model comes from if no family has it, and why it does not run if it does not."""
    if model.traced_from:
        yield "definition", f"traced from its class in {model.traced_from}, because no family here builds it"
    if model.priced_only:
        yield "runs", f"no, it can only be priced: {model.priced_only}"


def _name(fields: Fields, sizes: ModelSizes) -> ArchitectureName:
    """Return the parsed architecture name, with the kind MoE if only the config says so (Nemotron 3)."""
    name = parse(family_of(fields).architecture)
    return name if sizes.mixture is None else dataclasses.replace(name, kind="MoE")


def _kept(model: Model, sizes: ModelSizes) -> str:
    differ = len({(op.heads, op.spec.heads) for _, op in model.ops_of(Attention)}) > 1
    where = " in most layers" if differ else ""
    shared = {
        "MHA": f" as MHA: each of {sizes.heads} heads has its own",
        "GQA": f" as GQA: {sizes.heads} query heads share {sizes.kv_heads} KV heads{where}",
        "MQA": f" as MQA: {sizes.heads} query heads share one KV head",
    }
    form = shared.get(sizes.form, "")
    if latents := describe_latents(model):
        form = f" as {sizes.form}: {latents} of {sizes.heads} heads"
    stored = model.storage.kv
    if not model.kv_specs:
        return "none, because a text runs in one step"
    line = f"{sum(spec.bytes_per_token for spec in model.kv_specs):,.0f} bytes per token{form}"
    line += f", stored in {stored.name}" if stored else ""
    state = sum(spec.slot_bytes for spec in model.kv_specs if spec.is_state)
    return f"{line}, {state:,.0f} bytes per sequence" if state else line


def _sizes(model: Model, recipe: Recipe) -> str:
    reaches = {spec.reach for spec in model.kv_specs}
    windows, chunks = (sorted(r.size for r in reaches if r.kind == kind) for kind in ("window", "chunked"))
    return (
        f"{' + '.join(map(str, layers_of(model)))} layers, context {model.context:,}, "
        f"vocabulary {model.vocabulary:,}, {_stored(model, recipe)}, "
        f"{_head(model)}"
        + (f", sliding window {', '.join(f'{w:,}' for w in windows)}" if windows else "")
        + (f", attention in chunks of {', '.join(f'{c:,}' for c in chunks)}" if chunks else "")
        + (f", most layers attend to {near} tokens on either side" if (near := _near(model)) else "")
    )


def _near(model: Model) -> int:
    """Return the largest neighbourhood of local attention layers; 0 if there are none."""
    return max((reach.size for reach in model.attention_patterns if reach.kind == "local"), default=0)


def _head(model: Model) -> str:
    """Return a text that says what the model computes from the last hidden states."""
    if isinstance(model, Embedder) and not model.labels:
        return f"no head: the {model.mode} of a text's hidden states is its vector of {model.width:,}"
    if isinstance(model, Embedder):
        if model.trunk.pooled:
            return f"scores of {model.labels:,} label{'s' * (model.labels != 1)} from the head of its class"
        return (
            f"scores of {model.labels:,} label{'s' * (model.labels != 1)} from the {model.mode} of a text's hidden "
            "states"
        )
    if not model.has_head:
        return "no head: a text's hidden states are pooled into a vector"
    return f"head {'tied to the embedding' if model.tied else 'untied'}"


def _stored(model: Model, recipe: Recipe) -> str:
    """Return the weight formats: `bf16`, or `fp8 128x128 and bf16` if a part is not quantised, as is usual."""
    dtype = format_of(model.storage.dtype).name
    return f"{recipe.name} and {dtype}" if recipe.name else dtype


def _layer(sizes: ModelSizes) -> str:
    """Return the sizes of a layer: `hidden size 4,096, FFN width 14,336, 32 heads over 8 KV heads of 128`."""
    parts = [f"hidden size {sizes.hidden:,}"]
    if sizes.widths:
        parts.append(f"FFN width {' and '.join(f'{width:,}' for width in sizes.widths)}")
    if sizes.mixture is not None:
        m = sizes.mixture
        parts.append(
            f"{m.count} experts of width {m.width:,} in {m.layers} layers, top-{m.active}: {m.active} per token"
        )
    if sizes.heads:
        parts.append(f"{sizes.heads} heads over {sizes.kv_heads} KV heads of {sizes.head_dim}")
    return ", ".join(parts)


def _sharing(sizes: ModelSizes) -> DocumentTable:
    """Return the KV bytes per token of the model's form of attention, of MHA and, except for MLA, of MQA.

    MHA has the most KV heads (one per query head), and MQA has one for all.
    """
    rows = tuple(
        TableRow(
            (each.form, f"{each.kv_heads:,}", f"{each.bytes_per_token:,.0f}", _reduction(each)),
            "strong" if each.form == sizes.form else "",
        )
        for each in sizes.sharing
    )
    return DocumentTable(columns("attention", "KV heads", "bytes per token", "smaller than MHA by"), rows)


def _reduction(form: HeadSharing) -> str:
    """Return by what factor a form of attention stores less than MHA; "" for MHA itself."""
    return "" if form.form == "MHA" else f"{three_digits(form.reduction)} x"


def _weights(model: Model, recipe: Recipe, nbytes: float) -> str:
    """Return the bytes and format of the weights, and whether activations are rounded as well."""
    stored = f"{_bytes(nbytes)}, stored as {recipe.name}" if recipe.name else _bytes(nbytes)
    stored += _format_shares(model)
    kinds = {share.stored.kind for _, op in model.weighted_ops() for share in op.storage_shares() if share.stored}
    return f"{stored}; activations are rounded to int8 too" if "w8a8" in kinds else stored


def _format_shares(model: Model) -> str:
    """Return the share of the parameters in each format, largest first; "" if the matrices have a single format."""
    held: dict[str, int] = {}
    for _, op in model.weighted_ops():
        for share in op.storage_shares():
            name = format_of(model.storage.dtype).name if share.stored is None else share.stored.name
            held[name] = held.get(name, 0) + share.parameters
    if len(held) <= 2:  # the model's dtype for norms and the like, and one format
        return ""
    total = sum(held.values())
    shares = (f"{count / total:.1%} {name}" for name, count in sorted(held.items(), key=lambda each: -each[1]))
    return f" ({', '.join(shares)} of the parameters)"


def _bytes(nbytes: float) -> str:
    return f"{nbytes:,.0f} bytes = {say_gb(gb(nbytes))} = {say_gib(gib(nbytes))}"


def _parameters(model: Model, counted: ParameterBreakdown) -> DocumentTable:
    """Return the parameters part by part, of the whole model and of one layer: the most common one if they differ."""
    rows = [
        _row(part, counted.layer.get(part), count, f"{count / counted.total:.1%}")
        for part, count in counted.parameters.items()
    ]
    rows.append(_row("total", sum(counted.layer.values()) if counted.layer else None, counted.total, "", "strong"))
    if counted.active != counted.total:
        active = "" if counted.layer else None
        rows.append(_row("active per token", active, counted.active, f"{counted.active / counted.total:.1%}"))
    one = "one layer" if counted.layers_alike else "most common layer"
    heads = ("part", *((one, "all") if counted.layer else ("all",)), "share")
    return DocumentTable(columns(*heads), tuple(rows))


def _row(part: str, layer: int | str | None, count: int, share: str, tone: Tone = "") -> TableRow:
    """Return a row of the parameter table.

    Args:
        part: The part of the model.
        layer: The parameters of one layer; None if the table has no such column.
        count: The parameters of all layers.
        share: The share of the model.
        tone: The style of the row.
    """
    one = [] if layer is None else [f"{layer:,}" if isinstance(layer, int) else layer]
    return TableRow((part, *one, f"{count:,}", share), tone)
