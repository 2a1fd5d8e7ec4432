"""The structure of a model on meta that depends on the tensors of its checkpoint: token tables, forms of modules."""

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
    """Return the model's name of a checkpoint's tensor. Scales of keys and values belong to attention."""
    if (scale := KV_SCALE.fullmatch(name)) is not None:
        name = f"{scale[1]}.attend.{scale[2] or scale[3]}_scale"
    return family.own_name(name)


def match_to_checkpoint(model: PricedModule, family: Family, checkpoint: Checkpoint) -> None:
    """Give a model on meta the token tables of its checkpoint (shared, or one for each use), and tell each module in
    what form the checkpoint has its tensors.

    A second call changes only modules that were created since.
    """
    stored_names: dict[str, str] = {}  # by the names that the model has for them
    for name in checkpoint.entries:
        for own in (own_name(family, name), own_name(family, family.trunk + name)):
            stored_names.setdefault(own, name)
    for path, module in model.stored_modules():
        module.match_checkpoint(partial(_dtype_of, model, checkpoint, stored_names, path))
    _settle_tables(model, checkpoint, stored_names)


def _dtype_of(
    model: PricedModule, checkpoint: Checkpoint, stored_names: Mapping[str, str], path: str, name: str
) -> str | None:
    """Return the dtype that a checkpoint has for the tensor `name` of the module at a path, None if it has none."""
    stored = stored_names.get(model.checkpoint_name(f"{path}.{name}"))
    return None if stored is None else checkpoint.entries[stored].dtype


def match_to_source(model: PricedModule, family: Family, source: ModelSource) -> None:
    """Settle a model as the checkpoint of a source holds it, before the model is priced.

    A GGUF file says itself whether its head is the embedding. A folder without weights is left to the loader.
    """
    if source.gguf is None and source.folder is not None and source.has_weights:
        match_to_checkpoint(model, family, open_checkpoint(source.folder))


def _settle_tables(model: PricedModule, checkpoint: Checkpoint, stored_names: Mapping[str, str]) -> None:
    """Arrange the token tables as the checkpoint holds them."""
    tables = model.tables
    if tables is None or tables.settled:
        return
    there = {own: name for own, name in stored_names.items() if own in tables.names}
    dtype = model.storage.dtype
    model.arrange_tables(tables.held(there, lambda a, b: checkpoint.same(there[a], there[b], dtype)), there)
