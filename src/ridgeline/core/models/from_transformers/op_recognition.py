"""The recognition of modules of a transformers class that compute what one of our ops computes.

A module is recognised by its results: its code runs once on small random numbers, and the op has to give the same. The
op then takes the module's place, because our kernels execute it and its cost is known.

Shapes: T rows of a step, D hidden, I inputs of a matrix.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from copy import copy
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.from_transformers.class_ops import ClassMLP, ClassRMSNorm, ReadableMatrix
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.matrix import MatrixSpec
from ridgeline.core.ops.nonlinearity import ACTIVATIONS
from ridgeline.core.ops.norm import RMSNorm

_GATED = ("gate_proj", "up_proj", "down_proj"), ("w1", "w3", "w2")
"""The names that classes have for the gate, up and down matrices of a gated MLP."""
_WIDTH = 24  # of the random rows
_ROUNDING = 1e-6
_MODULE_FIELDS = frozenset(vars(nn.Module()))
"""The attributes that every module has."""
# The errors of code that needs more than a small random module has.
_NEEDS_MORE = (AssertionError, AttributeError, IndexError, RuntimeError, TypeError, ValueError)


class _Kind:
    """A module of a class, equal to others whose code and attributes are the same.

    Each layer of a model has some. One of them is compared with our ops.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._key = tuple(_of_module(each) for each in module.modules())

    @override
    def __hash__(self) -> int:
        return hash(self._key)

    @override
    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Kind) and self._key == other._key


def _of_module(module: nn.Module) -> Hashable:
    """Return a key of a module's class and attributes, in which objects other than numbers stand for themselves."""
    values = {name: value for name, value in vars(module).items() if name not in _MODULE_FIELDS}
    held = (
        (name, value if isinstance(value, int | float | str | bool | None) else id(value))
        for name, value in values.items()
    )
    parameters = tuple((name, None if each is None else each.dtype) for name, each in module._parameters.items())
    return type(module), tuple(module._modules), parameters, tuple(map(id, module._buffers.values())), tuple(held)


def rms_norm_of(module: nn.Module, dtype: torch.dtype) -> ClassRMSNorm | None:
    """Return the RMSNorm op that computes what a norm of a class computes, or None if there is none."""
    weight = module._parameters.get("weight")
    eps = next(
        (value for name in ("variance_epsilon", "eps") if isinstance(value := getattr(module, name, None), float)), None
    )
    if len(module._parameters) != 1 or weight is None or weight.dim() != 1 or eps is None or any(module.children()):
        return None
    if weight.dtype != dtype:  # the class keeps it in fp32, and casts by code of its own
        return None
    variant = _norm_variant(_Kind(module), eps)
    return None if variant is None else ClassRMSNorm(len(weight), eps, dtype, **variant)


@lru_cache(maxsize=64)
def _norm_variant(kind: "_Kind", eps: float) -> Mapping[str, bool] | None:
    """Return the options with which the RMSNorm op computes what a norm of a class computes; None if there are none."""
    for variant in ({}, {"cast_last": True}, {"from_one": True}):
        norms = (ClassRMSNorm(_WIDTH, eps, each, **variant) for each in (torch.float32, torch.bfloat16))
        if all(_same_norm(kind.module, norm) for norm in norms):
            return variant
    return None


def _same_norm(module: nn.Module, norm: RMSNorm) -> bool:
    """Return whether a norm of a class and an op give the same vectors from the same random weight."""
    generator = torch.Generator().manual_seed(0)
    random = partial(torch.randn, generator=generator, device="cpu")
    norm.weight = nn.Parameter(random(_WIDTH).to(norm.dtype), requires_grad=False)
    x_TD = random(5, _WIDTH).to(norm.dtype) * 3
    twin = copy(module)
    twin._parameters = {"weight": norm.weight}
    return _agree(partial(twin.forward, x_TD), partial(norm.computed, x_TD))


def embedding_scale_of(module: nn.Module) -> float | None:
    """Return the factor by which a class's embedding multiplies the rows of its table, or None if it does more.

    It is 1 for an embedding that multiplies them by nothing.
    """
    numbers = [float(value) for value in vars(module).values() if isinstance(value, float)]
    numbers += [float(held) for held in module._buffers.values() if held is not None and held.numel() == 1]
    return next((scale for scale in (1.0, *numbers) if _same_embedding(module, scale)), None)


def _same_embedding(module: nn.Module, scale: float) -> bool:
    """Return whether an embedding of a class gives the rows of a random table times a factor."""
    ids_T, twin = torch.tensor([[3, 0, 5]], device="cpu"), copy(module)
    twin.__dict__["padding_idx"] = None  # only matters in training, and may lie outside the small table
    for dtype in (torch.float32, torch.bfloat16):
        op = Embedding(7, _WIDTH, dtype, scale=None if scale == 1 else scale)
        table = torch.randn(7, _WIDTH, generator=torch.Generator().manual_seed(0), device="cpu").to(dtype)
        op.weight = nn.Parameter(table, requires_grad=False)
        twin._parameters = {"weight": op.weight}
        if not _agree(partial(twin.forward, ids_T), lambda op=op: op(ids_T[0])[None]):
            return False
    return True


def gated_mlp_of(module: nn.Module, spec_of: Callable[[nn.Linear], MatrixSpec]) -> ClassMLP | None:
    """Return a gated MLP of our ops that computes what an MLP of a class computes, or None if there is none.

    Args:
        module: A module of a class on the meta device.
        spec_of: Returns the spec of a matrix.
    """
    matrices = {name: child for name, child in module.named_children() if type(child) is nn.Linear}
    names = next((names for names in _GATED if set(names) == set(matrices)), None)
    others = [child for name, child in module.named_children() if name not in matrices]
    if names is None or next(module.parameters(recurse=False), None) is not None or any(map(_has_parameters, others)):
        return None
    activation = _activation_of(_Kind(module), names)
    if activation is None:
        return None
    gate, up, down = (matrices[name] for name in names)
    specs = {name: spec_of(each) for name, each in zip(names[:2], (gate, up), strict=True)}
    return ClassMLP(specs, activation, ReadableMatrix(spec_of(down)), names[2])


@lru_cache(maxsize=64)
def _activation_of(kind: "_Kind", names: tuple[str, ...]) -> str | None:
    """Return the activation of an MLP of a class, whose matrices have these names; None if no op has it."""
    return next((name for name in ACTIVATIONS if _same_mlp(kind.module, names, name)), None)


def _same_mlp(module: nn.Module, names: Sequence[str], activation: str) -> bool:
    """Return whether an MLP of a class gives down(act(gate(x)) * up(x)) for small random matrices."""
    generator = torch.Generator().manual_seed(0)
    twin = copy(module)
    twin._modules = dict(module._modules)
    with torch.device("cpu"):
        for name, inputs, outputs in zip(names, (6, 6, 10), (10, 10, 6), strict=True):
            matrix = twin._modules[name] = nn.Linear(inputs, outputs)
            for parameter in matrix.parameters():
                parameter.data.normal_(generator=generator)
        x_TI = torch.randn(5, 6, generator=generator)
    gate, up, down = (twin.get_submodule(name) for name in names)
    return _agree(partial(twin.forward, x_TI[None]), lambda: down(ACTIVATIONS[activation](gate(x_TI)) * up(x_TI))[None])


def _agree(theirs: Any, ours: Any) -> bool:
    """Return whether two computations give the same tensor, apart from rounding in fp32."""
    try:
        with torch.inference_mode(), torch.device("cpu"):
            one, other = theirs(), ours()
    except _NEEDS_MORE:
        return False
    if not isinstance(one, Tensor) or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one, other) or (
        one.dtype == torch.float32 and bool((one - other).abs().max() <= _ROUNDING * other.abs().max())
    )


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None
