"""The replacement of the parts of a transformers class by ops.

An `nn.Linear` becomes our Linear op, an `nn.Embedding` our Embedding op and a module of experts our Experts op, at the
same place, so that they are quantised, adapted and executed by our kernels. Any other module that owns parameters keeps
its code: its class is replaced by a subclass that is an op too (`ClassNorm`, `ClassExperts`) or that only loads its
parameters (`ClassPart`).
"""

from inspect import signature

import torch
from torch import nn

from ridgeline.core.models.from_transformers.class_code_ops import (
    ClassExperts,
    ClassNorm,
    ClassOp,
    ClassPart,
    OwnParameters,
)
from ridgeline.core.models.from_transformers.class_ops import ClassEmbedding, ClassHead, ClassLinear
from ridgeline.core.models.from_transformers.expert_names import single_expert_names
from ridgeline.core.models.from_transformers.op_recognition import (
    embedding_scale_of,
    gated_mlp_of,
    rms_norm_of,
    spec_of,
)
from ridgeline.core.models.from_transformers.routed_experts import flat_experts, routed_experts


def replace_modules(model: nn.Module, dtype: torch.dtype, head: nn.Module | None) -> None:
    """Replace the modules of a class on the meta device by ops, in place.

    Args:
        model: The model of the class.
        dtype: The dtype of the ops' results.
        head: The output projection; None if the model has none.
    """
    made = dict[nn.Module, nn.Module]()
    names = {model.get_submodule(path): names for path, names in single_expert_names(model).items()}
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child not in made:
                experts = routed_experts(child, names.get(child))
                made[child] = _op_of(child, dtype, is_head=child is head) if experts is None else experts
            setattr(parent, name, made[child])


def _op_of(module: nn.Module, dtype: torch.dtype, *, is_head: bool) -> nn.Module:
    """Return the op that takes the place of a module, or the module itself if it owns no parameters."""
    if type(module) is nn.Linear:
        return ClassHead(spec_of(module)) if is_head else ClassLinear(spec_of(module))
    if isinstance(module, nn.Embedding) and module.max_norm is None and len(module._parameters) == 1:
        scale = 1.0 if type(module) is nn.Embedding else embedding_scale_of(module)
        if scale is not None:
            return ClassEmbedding(
                module.num_embeddings, module.embedding_dim, dtype, scale=None if scale == 1 else scale
            )
    for name, buffer in list(module.named_buffers(recurse=False)):
        if name not in module._non_persistent_buffers_set:  # a checkpoint fills it, as it fills parameters
            del module._buffers[name]
            module.register_parameter(name, nn.Parameter(buffer, requires_grad=False))
    if next(module.parameters(recurse=False), None) is None:
        return flat_experts(module) or gated_mlp_of(module) or module
    if (norm := rms_norm_of(module, dtype)) is not None:
        return norm
    has_parts = any(next(child.parameters(), None) is not None for child in module.children())
    if has_parts or (kind := _kind_of(module)) is None:
        module.__class__ = type(type(module).__name__, (ClassPart, type(module)), {})
        module.add_module("own_parameters", OwnParameters(module, dtype))
        return module
    module.__class__ = type(type(module).__name__, (kind, type(module)), {})
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
    routes = hasattr(module, "has_gate") or "top_k_index" in signature(module.forward).parameters
    if routes and all(parameter.dim() > 1 for parameter in own):
        return ClassExperts
    return None
