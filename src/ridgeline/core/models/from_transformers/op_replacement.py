"""The replacement of the parts of a transformers class by ops.

An `nn.Linear` becomes our Linear op, an `nn.Embedding` our Embedding op and a module of experts our Experts op, at the
same place, so that they are quantised, adapted and executed by our kernels. Any other module that owns parameters keeps
its code: its class is replaced by a subclass that is an op too (`ClassNorm`, `ClassExperts`) or that only loads its
parameters (`ClassPart`).
"""

from inspect import signature

import torch
from torch import nn

from ridgeline.core.models.from_transformers.class_code_ops import ClassNorm, ClassOp, ClassPart, OwnParameters
from ridgeline.core.models.from_transformers.class_experts import ClassExperts, GroupedMatrices
from ridgeline.core.models.from_transformers.class_ops import (
    ClassEmbedding,
    ClassHead,
    ClassLinear,
    ClassMLP,
    ReadableMatrix,
)
from ridgeline.core.models.from_transformers.expert_names import single_expert_names
from ridgeline.core.models.from_transformers.not_bridged import NotBridged
from ridgeline.core.models.from_transformers.op_recognition import (
    embedding_scale_of,
    gated_mlp_of,
    rms_norm_of,
)
from ridgeline.core.models.from_transformers.rank_collectives import join_ranks
from ridgeline.core.models.from_transformers.rank_part import WHOLE_CLASS, RankPart
from ridgeline.core.models.from_transformers.routed_experts import (
    FlatExperts,
    RoutedExperts,
    flat_experts,
    routed_experts,
)
from ridgeline.core.ops.collective import AllGather, AllReduce

_GROUPS = ("expert_size",), ("tokens_per_expert",), ("group_sizes",)
"""The names of the argument with the number of rows of each expert, after the rows themselves."""


def replace_modules(model: nn.Module, dtype: torch.dtype, head: nn.Module | None, part: RankPart = WHOLE_CLASS) -> None:
    """Replace the modules of a class on the meta device by ops, in place.

    Args:
        model: The model of the class, constructed from the config of a rank if it is divided.
        dtype: The dtype of the ops' results.
        head: The output projection; None if the model has none.
        part: The part of the class that this rank holds.
    """
    made = dict[nn.Module, nn.Module]()
    names = {model.get_submodule(path): names for path, names in single_expert_names(model).items()}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child not in made:
                experts = routed_experts(child, names.get(child), part)
                made[child] = _op_of(child, dtype, part, is_head=child is head) if experts is None else experts
                _add_collective(parent, name, made[child], part)
            setattr(parent, name, made[child])


def _add_collective(parent: nn.Module, name: str, op: nn.Module, part: RankPart) -> None:
    """Make an op that takes the place of a class's module join its results over the ranks, if these are parts."""
    match op:
        case ClassHead() if op.matrix.spec.split is not None:
            join_ranks(parent, name, op, AllGather(op.matrix.spec.outputs, op.matrix.spec.shard))
        case ReadableMatrix() if op.matrix.spec.split == "row":
            join_ranks(parent, name, op, AllReduce(op.matrix.spec.outputs, op.matrix.spec.dtype, op.matrix.spec.shard))
        case ClassEmbedding() if op.shard.size > 1:
            join_ranks(parent, name, op, AllReduce(op.width, op.dtype, op.shard))
        case ClassMLP():
            _add_collective(op, op.down, op.get_submodule(op.down), part)
        case FlatExperts():
            _add_collective(op, "mlp", op.mlp, part)
        case ClassExperts() if part.divides(op):
            join_ranks(parent, name, op, AllReduce(part.hidden, op.dtype, part.shard))
        case GroupedMatrices() if part.divides_inputs(op):
            join_ranks(parent, name, op, AllReduce(op.outputs, op.dtype, part.shard))
        case RoutedExperts() if (shard := next(iter(op.specs.values())).shard).size > 1:
            join_ranks(parent, name, op, AllReduce(op.hidden, op.dtype, shard, part.gathered))


def _op_of(module: nn.Module, dtype: torch.dtype, part: RankPart, *, is_head: bool) -> nn.Module:
    """Return the op that takes the place of a module, or the module itself if it owns no parameters."""
    if type(module) is nn.Linear:
        return ClassHead(part.spec_of_head(module)) if is_head else ClassLinear(part.spec_of(module))
    if isinstance(module, nn.Embedding) and module.max_norm is None and len(module._parameters) == 1:
        scale = 1.0 if type(module) is nn.Embedding else embedding_scale_of(module)
        if scale is not None:
            entries, shard = module.num_embeddings, part.tokens_of(module)
            return ClassEmbedding(entries, module.embedding_dim, dtype, shard, scale=None if scale == 1 else scale)
    for name, buffer in list(module.named_buffers(recurse=False)):
        if name not in module._non_persistent_buffers_set:  # a checkpoint fills it, as it fills parameters
            del module._buffers[name]
            module.register_parameter(name, nn.Parameter(buffer, requires_grad=False))
    if next(module.parameters(recurse=False), None) is None:
        return flat_experts(module, part) or gated_mlp_of(module, part.spec_of) or module
    if (norm := rms_norm_of(module, dtype)) is not None:
        if part.divides(module):  # the ranks would have to add up the squares of their parts
            raise NotBridged("it norms the vectors of all devices together")
        return norm
    has_parts = any(next(child.parameters(), None) is not None for child in module.children())
    if has_parts or (kind := _kind_of(module)) is None:
        module.__class__ = type(type(module).__name__, (ClassPart, type(module)), {"rank": part.shard})
        module.add_module("own_parameters", OwnParameters(module, dtype))
        return module
    module.__class__ = type(type(module).__name__, (kind, type(module)), {"rank": part.shard})
    assert isinstance(module, ClassOp)
    if not isinstance(getattr(type(module), "dtype", None), property):
        module.dtype = dtype
    return module


def _kind_of(module: nn.Module) -> type[ClassOp] | None:
    """Return the class of op that a module with parameters is; None if no op has its cost, which is then traced."""
    own = list(module.parameters(recurse=False))
    if isinstance(module, nn.LayerNorm) and type(module).forward is not nn.LayerNorm.forward:
        return None  # its vectors may lie along another dimension
    if all(parameter.dim() == 1 for parameter in own) and "norm" in type(module).__name__.lower():
        return ClassNorm
    takes = tuple(signature(module.forward).parameters)
    if takes[1:] in _GROUPS and [parameter.dim() for parameter in own] == [3]:
        return GroupedMatrices
    routes = hasattr(module, "has_gate") or "top_k_index" in takes
    if routes and all(parameter.dim() > 1 for parameter in own):
        return ClassExperts
    return None
