"""Adaptation of a model on meta to its checkpoint: shared token tables, and how each module is stored."""

import re
from collections.abc import Mapping
from functools import partial

from ridgeline.core.checkpoint.folder import Checkpoint, open_checkpoint
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.priced_module import PricedModule

# The scales of a layer's keys and values: k_scale and v_scale in compressed-tensors, with the name of a projection in
# ModelOpt, and kv_scale or the output scales of the projections in AutoFP8.
KV_SCALE = re.compile(r"(.*\.self_attn)\.(?:(?:[kv]_proj\.)?(k|v|kv)_scale|([kv])_proj\.output_scale)")


def own_name(family: Family, name: str) -> str:
    """Return the model's name of a checkpoint tensor; scales of keys and values belong to the attention module."""
    if (scale := KV_SCALE.fullmatch(name)) is not None:
        name = f"{scale[1]}.attend.{scale[2] or scale[3]}_scale"
    return family.model_name(name)


def match_to_checkpoint(model: PricedModule, family: Family, checkpoint: Checkpoint) -> None:
    """Adapt a model on meta to its checkpoint: share or separate token tables, and set how modules are stored.

    A second call changes only modules that were created since the first.
    """
    stored_names: dict[str, str] = {}  # by the model's names
    for name in checkpoint.entries:
        for own in (own_name(family, name), own_name(family, family.backbone_prefix + name)):
            stored_names.setdefault(own, name)
    for path, module in model.stored_modules():
        module.match_checkpoint(partial(_dtype_of, model, checkpoint, stored_names, path))
    _settle_tables(model, checkpoint, stored_names)


def _dtype_of(
    model: PricedModule, checkpoint: Checkpoint, stored_names: Mapping[str, str], path: str, name: str
) -> str | None:
    """Return the dtype in the checkpoint of the tensor `name` of the module at `path`, or None if there is none."""
    stored = stored_names.get(model.checkpoint_name(f"{path}.{name}"))
    return None if stored is None else checkpoint.entries[stored].dtype


def match_to_source(model: PricedModule, family: Family, source: ModelSource) -> None:
    """Adapt a model to the checkpoint of its source, before the model is priced.

    A GGUF file itself says whether its head is the embedding. A folder without weights is left to the loader.
    """
    if source.gguf is None and source.folder is not None and source.has_weights:
        match_to_checkpoint(model, family, open_checkpoint(source.folder))


def _settle_tables(model: PricedModule, checkpoint: Checkpoint, stored_names: Mapping[str, str]) -> None:
    """Share or separate a model's token tables (embeddings and head) as the checkpoint stores them."""
    tables = model.tables
    if tables is None or tables.resolved:
        return
    there = {own: name for own, name in stored_names.items() if own in tables.names}
    dtype = model.storage.dtype
    model.arrange_tables(tables.resolve_ties(there, lambda a, b: checkpoint.same(there[a], there[b], dtype)), there)
