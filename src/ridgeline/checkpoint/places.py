"""The places in a model on meta that the tensors of its checkpoint fill, found by name."""

import re
from collections.abc import Iterable, Set

import torch

from ridgeline.checkpoint.folder import Checkpoint
from ridgeline.checkpoint.settling import settle
from ridgeline.models.family import Family
from ridgeline.models.network import Network
from ridgeline.ops.attention import ONE_SCALE, Attention
from ridgeline.ops.expert_layout import INTERLEAVED, MXFP4_BLOCKS, STACKED, TURNED, UNGATED
from ridgeline.ops.experts import Experts
from ridgeline.ops.matrix import Fp8Matrix
from ridgeline.ops.matrix.fp8 import SCALE_NAMES
from ridgeline.ops.stored import Stored

# The scales of a layer's keys and values: k_scale and v_scale in compressed-tensors, with the name of a projection in
# ModelOpt, and kv_scale or the output scales of the projections in AutoFP8.
_KV_SCALE = re.compile(r"(.*\.self_attn)\.(?:(?:[kv]_proj\.)?(k|v|kv)_scale|([kv])_proj\.output_scale)")


class Naming:
    """The places in a model on meta that the tensors of a checkpoint go to.

    places: the module that takes each tensor, and the tensor's name there.
    """

    def __init__(self, model: Network, family: Family, checkpoint: Checkpoint) -> None:
        with torch.device("meta"):
            model.expand()
        settle(model, family, checkpoint)
        self._family, self._passed_over, self._tables = family, model.passed_over, model.tables
        there = _own_names(family, checkpoint.entries)
        _lay_out_experts(model, there)
        _name_scales(model, there)
        self.places: dict[str, tuple[Stored, str]] = model.tensors()

    def place(self, name: str) -> str:
        """Return the model's name of a tensor, with the trunk's name added if the checkpoint leaves it out; "" for a
        second copy of a table of tokens."""
        own = _own_name(self._family, name)
        whole = _own_name(self._family, self._family.trunk + name)
        found = whole if not self._knows(own) and self._knows(whole) else own
        return found if self._tables is None else self._tables.renamed.get(found, found)

    def _knows(self, own: str) -> bool:
        return own in self.places or (self._tables is not None and own in self._tables.names)

    def ignored(self, name: str) -> bool:
        """Whether nothing reads a tensor of the checkpoint: a second copy of a table of tokens, or scales of keys and
        values that are kept in another format than the checkpoint says."""
        if not self.place(name):
            return True
        patterns = (*self._family.ignored, *self._passed_over, _KV_SCALE.pattern)
        return any(re.fullmatch(pattern, name) for pattern in patterns)


def _own_name(family: Family, name: str) -> str:
    """Return the model's name of a checkpoint's tensor. Scales of keys and values belong to attention."""
    if (scale := _KV_SCALE.fullmatch(name)) is not None:
        name = f"{scale[1]}.attend.{scale[2] or scale[3]}_scale"
    return family.own_name(name)


def _own_names(family: Family, names: Iterable[str]) -> Set[str]:
    """Return the names that the model may have for a checkpoint's tensors, with the trunk's name and without."""
    places = [_own_name(family, name) for name in names]
    return {*places, *(family.trunk + place for place in places)}


def _name_scales(model: Network, there: Set[str]) -> None:
    """Note which of two names the scales of fp8 matrices have, and whether keys and values share one scale."""
    for path, module in model.named_modules():
        if isinstance(module, Fp8Matrix):
            named = (own for own in SCALE_NAMES if model.checkpoint_name(f"{path}.{own}") in there)
            module.names = ("weight", next(named, SCALE_NAMES[0]))
        elif isinstance(module, Attention) and module.k_scale is not None:
            module.one_scale = model.checkpoint_name(f"{path}.{ONE_SCALE}") in there


def _lay_out_experts(model: Network, there: Set[str]) -> None:
    """Choose the layout in which the checkpoint stores the experts of each layer.

    Older tools write a tensor for each matrix of each expert, and newer ones a single tensor for a layer. Llama 4 has
    the latter, transposed, or the former if it is meant to be quantised. gpt-oss has a single tensor for a layer, in
    one of two number formats.
    """
    for path, op in model.ops():
        if not isinstance(op, Experts):
            continue
        layout, first = (STACKED, "gate_up_proj") if op.gated else (UNGATED, "up_proj")
        whole = model.checkpoint_name(f"{path}.{first}") in there
        if op.layout is None and whole:
            op.layout = layout
        elif op.layout is TURNED and not whole:
            op.layout = None
        elif op.layout is INTERLEAVED and model.checkpoint_name(f"{path}.gate_up_proj_blocks") in there:
            op.layout = MXFP4_BLOCKS
