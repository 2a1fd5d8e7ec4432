"""The identity that two engines must share for one to read the other's pages: the model, and the page layout."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_layout import KVLayout
from ridgeline.core.ops.matrix.interleaved import in_rows


class Identity(NamedTuple):
    """The identity of an engine's KV pages: engines with equal ones can exchange pages."""

    model: bytes
    """The digest of the model's config and weights."""
    pages: str
    """The layout of the pages, as a text that two engines compare."""
    page_bytes: int
    """The number of bytes that a KV page takes on the connection."""


def identity_of(config: Mapping[str, Any], model: Model, layout: KVLayout, page_bytes: int) -> Identity:
    """Return the identity of an engine's model and KV pages.

    Of every weight, as it computes, the digest covers the shape, the format and the sum of each row, whatever row
    layout this machine uses. All weights are read once, as in the first step. Adapters are not included: the keys of
    their pages identify them (prefix.namespace_of).

    Args:
        config: The config that the model was built from.
        model: The model, with weights.
        layout: The layout of the KV pages.
        page_bytes: The bytes of a page in a message.
    """
    state = hashlib.blake2b(b"ridgeline kv model 2", digest_size=32)
    state.update(json.dumps(config, sort_keys=True, default=str).encode())
    adapters = set(map(id, model.adapter_weights()))
    interleaved = {id(weight) for _, part in model.stored_modules() for weight in part.interleaved_parameters()}
    for weight in (each for each in model.parameters() if id(each) not in adapters):
        own = weight.detach()
        if id(weight) in interleaved:
            own = in_rows(own)
        state.update(f"{tuple(own.shape)} {weight.dtype}\n".encode())
        if own.numel():
            state.update(_sums(own).cpu().numpy().tobytes())
    groups = "; ".join(
        f"{len(group.layers)} layers of {group.spec}, {group.page_size} positions" for group in layout.groups
    )
    return Identity(state.digest(), f"pages of {layout.page_size} positions: {groups}", page_bytes)


def _sums(weight: Tensor) -> Tensor:
    """Return a checksum of each row of a weight: the sum of its bytes, eight at a time as integers.

    A row in which any number differs gives another sum, except for changes that happen to cancel each other.
    """
    count = weight.shape[0] if weight.dim() > 1 else 1
    rows = weight.contiguous().view(-1).view(torch.uint8).view(count, -1)
    whole = rows.shape[1] % 8 == 0 and rows.storage_offset() % 8 == 0
    return (rows.view(torch.int64) if whole else rows).sum(1, dtype=torch.int64)


def check_transfer(model: Model, ranks: int, *, prefix_cache: bool, name: str = "this model") -> None:
    """Check that the KV pages of a model can go from one engine to another.

    Args:
        model: The model.
        ranks: The number of processes that share it.
        prefix_cache: Whether the engine has a prefix cache.
        name: The name of the model, for the error message.

    Raises:
        ModelRefused: If the model excludes it.
        ValueError: If a setting excludes it.
    """
    kept = [spec for spec in model.kv_specs if spec.is_cached]
    why = ""
    if not model.has_head:
        why = "does not generate text"
    elif any(spec.is_state for spec in kept):
        why = "keeps a recurrent state, which is not stored in KV pages"
    elif not all(spec.grows for spec in kept) or not kept:
        why = "has an encoder, which must run on the engine that decodes" if kept else "has no KV cache"
    if why:
        raise ModelRefused(
            f"{name} {why}, so prefill and decode cannot run on different engines: leave --split, --kv-listen and "
            "--kv-from out"
        )
    if ranks > 1:
        raise ValueError(
            "KV transfer does not work with tensor parallelism, because each rank has only a part of every page: "
            "leave --tensor-parallel out, or give --tensor-parallel 1"
        )
    if not prefix_cache:
        raise ValueError(
            "KV transfer needs the prefix cache, which stores the pages that arrive: leave --no-prefix-cache out"
        )
