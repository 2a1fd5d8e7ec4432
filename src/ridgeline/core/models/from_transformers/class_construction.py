"""The construction of the module of a transformers class on the meta device, and of the buffers that it computes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from ridgeline.core.models.from_transformers.attention_bridge import IMPLEMENTATION, register_attention
from ridgeline.core.models.from_transformers.not_bridged import NO_INTERFACE, NotBridged, summarise_error
from ridgeline.util.host import GIB

_MAX_BUFFERS = 4 * GIB
_CONTEXT = 2048
"""The context of a config that states none, because its positions have no limit."""
_NO_LIMIT = -1  # as XLNet's config states it


def context_of(config: Any) -> int:
    """Return the maximum number of positions of a config."""
    stated: int | None = getattr(config, "max_position_embeddings", None)
    return _CONTEXT if stated is None or stated == _NO_LIMIT else stated


def class_module(cls: Any, config: Any, dtype: torch.dtype, attention: str = IMPLEMENTATION) -> Any:
    """Return the model of a class on the meta device, with our attention as its implementation.

    Args:
        cls: The class, a `PreTrainedModel`.
        config: Its config, which is copied.
        dtype: The dtype of the parameters, apart from those that the class keeps in fp32.
        attention: The attention implementation of transformers.

    Raises:
        NotBridged: If the class has no such implementation, cannot be built from the config, or computes tables that
            would fill the memory.
    """
    implementations = {"attn_implementation": attention, "experts_implementation": "eager"}
    with constructing(config):
        module = cls._from_config(deepcopy(config), dtype=dtype, **implementations).eval()
        _move_parameters(module, dtype)
    refuse_large_buffers(module)
    return module


def _move_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    """Move parameters that a class makes in memory and in fp32, whatever the context is, to the meta device."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.is_meta:
                module._parameters[name] = nn.Parameter(parameter.to("meta", dtype), requires_grad=False)


@contextmanager
def constructing(config: Any) -> Iterator[None]:
    """Make tensors on the meta device while the context is open, in which a class is constructed.

    Args:
        config: The config of the class, for the error message.

    Raises:
        NotBridged: If the class raises an error.
    """
    register_attention()
    try:
        with torch.device("meta"):
            yield
    except Exception as error:  # a class may fail in any way
        if isinstance(error, KeyError) and error.args == (IMPLEMENTATION,):  # it has a table of implementations
            raise NotBridged(NO_INTERFACE) from None
        problem = _unknown_value(error, config.to_dict()) or summarise_error(error)
        raise NotBridged(f"it cannot be constructed from this config ({problem})") from None


def _unknown_value(error: Exception, values: Mapping[str, Any], section: str = "") -> str:
    """Return which field of a config has a value that a table of the class lacks, such as an activation; else "".

    Args:
        error: The error of the class.
        values: The config, or a section in the config.
        section: The names that lead to the section, with a dot.
    """
    if not isinstance(error, KeyError):
        return ""
    for name, value in values.items():
        inside = _unknown_value(error, value, f"{section}{name}.") if isinstance(value, Mapping) else ""
        if inside or error.args == (value,):
            return inside or f"{section}{name} is {value!r}, which transformers does not know"
    return ""


def refuse_large_buffers(module: nn.Module) -> None:
    """Raise NotBridged if the buffers that a class computes itself take more memory than those of any real model.

    Some classes have a mask of context x context numbers, and a config may state any context.
    """
    nbytes = sum(
        buffer.nbytes
        for each in module.modules()
        for name, buffer in each._buffers.items()
        if buffer is not None and name in each._non_persistent_buffers_set
    )
    if nbytes > _MAX_BUFFERS:
        raise NotBridged(f"its tables for the context of the config would take {nbytes / GIB:,.0f} GiB of memory")


def path_of(model: nn.Module, wanted: nn.Module) -> str:
    """Return the path of a module in a model."""
    return next(path for path, module in model.named_modules() if module is wanted)


def compute_buffers(owner: Any, module: nn.Module) -> None:
    """Compute the buffers of a class that no checkpoint contains, such as rotary frequencies, in CPU memory.

    Args:
        owner: The innermost `PreTrainedModel` that contains the module. It knows how to compute them.
        module: The module whose buffers, and those of its children, are computed.
    """
    held = {name: buffer for name, buffer in module._buffers.items() if buffer is not None}
    names = module._non_persistent_buffers_set & held.keys()
    for name in names:
        module._buffers[name] = torch.zeros_like(held[name], device="cpu")
    if names:
        with torch.device("cpu"), torch.no_grad():
            owner._init_weights(module)
    for child in module.children():
        compute_buffers(child if hasattr(child, "_init_weights") else owner, child)
