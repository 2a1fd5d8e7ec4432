"""The sizes of a model that users ask for, read off its ops: widths, heads, experts, and the KV bytes per token."""

from collections import Counter
from dataclasses import dataclass, field

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.util.json_data import json_name


@dataclass(frozen=True, slots=True)
class MixtureSizes:
    """The sizes of a model's mixtures of experts."""

    count: int
    """Number of experts of a layer."""
    active: int
    """Number of experts to which each token is routed."""
    width: int
    """The width of the feed-forward layer that is one expert."""
    layers: int
    """The number of layers that have experts."""


@dataclass(frozen=True, slots=True)
class HeadSharing:
    """The KV-cache size of a model under one form of attention, to compare the forms."""

    form: str
    """The form of attention: MHA, GQA, MQA or MLA.

    MHA has a KV head per query head (arXiv:1706.03762), GQA one per group of query heads (arXiv:2305.13245), MQA one
    for all (arXiv:1911.02150). MLA has one latent for all, from which each head computes its own (arXiv:2405.04434).
    """
    kv_heads: int
    """The number of KV heads of each layer."""
    bytes_per_token: float
    """The KV-cache bytes of one token under a form of attention."""
    reduction: float = field(metadata=json_name("less"))
    """The factor by which a form of attention needs fewer KV-cache bytes than MHA."""


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The widths, heads and experts of a model."""

    hidden: int
    """The width of a model's residual stream."""
    widths: tuple[int, ...]
    """The distinct widths of a model's feed-forward layers and shared experts, without routed experts, ascending."""
    heads: int
    """Query heads of most layers; 0 without attention."""
    kv_heads: int
    """KV heads of most layers; with MLA, as many as query heads; 0 without attention."""
    head_dim: int
    """Entries of a head in most layers; 0 without attention."""
    mixture: MixtureSizes | None
    """The sizes of the mixtures of experts; None without them."""
    form: str
    """The form of attention of a model: MHA, GQA, MQA or MLA; "" without attention."""
    sharing: tuple[HeadSharing, ...]
    """The KV-cache sizes of the model's form of attention and, to compare, of MHA and (except for MLA) MQA."""


def sizes_of(model: Model) -> ModelSizes:
    """Return the sizes of a model that is not divided over ranks."""
    hidden = model.hidden_width or model.ops_of(Embedding)[0][1].width
    widths = sorted({op.width for _, op in model.ops_of(ActivatedProjections)})
    experts = [op for _, op in model.ops_of(Experts)]
    mixture = MixtureSizes(experts[0].count, experts[0].active, experts[0].width, len(experts)) if experts else None
    attends = [op for _, op in model.ops_of(Attention)]
    if not attends:
        return ModelSizes(hidden, tuple(widths), 0, 0, 0, mixture, "", ())
    latents = [op for _, op in model.ops_of(LatentAttention)]
    if latents:
        heads = latents[0].heads
        return ModelSizes(hidden, tuple(widths), heads, heads, latents[0].sizes.key, mixture, "MLA", _latents(latents))
    ((heads, kv_heads, head_dim), _), *_ = Counter(
        (op.heads, op.spec.heads, op.spec.k_dim) for op in attends
    ).most_common()
    form = "MHA" if kv_heads == heads else "MQA" if kv_heads == 1 else "GQA"
    return ModelSizes(hidden, tuple(widths), heads, kv_heads, head_dim, mixture, form, _sharing(attends, form))


def describe_latents(model: Model) -> str:
    """Return a phrase for the latents that layers keep, from which keys and values are computed; "" if none do."""
    kept = dict.fromkeys(op.sizes.kept for _, op in model.ops_of(LatentAttention))
    if not kept:
        return ""
    numbers = " or ".join(f"{count:,}" for count in kept)
    return f"the latent of {numbers} numbers a token and layer, from which an engine computes keys and values"


def _latents(attends: list[LatentAttention]) -> tuple[HeadSharing, ...]:
    """Return the KV-cache sizes of latent attention (MLA) and of MHA with the same heads."""
    each = sum(op.heads * (op.sizes.key + op.sizes.value) * op.spec.bytes_per_token / op.sizes.kept for op in attends)
    own = sum(op.spec.bytes_per_token for op in attends)
    return HeadSharing("MHA", attends[0].heads, each, 1.0), HeadSharing("MLA", 1, own, each / own)


def _sharing(attends: list[Attention], form: str) -> tuple[HeadSharing, ...]:
    """Return the KV-cache sizes of MHA, of the model's own form and of MQA, without duplicates."""
    attends = [op for op in attends if op.spec.is_cached] or attends
    each = sum(op.spec.bytes_per_token / op.spec.heads * op.heads for op in attends)
    own = sum(op.spec.bytes_per_token for op in attends)
    one = sum(op.spec.bytes_per_token / op.spec.heads for op in attends)
    heads, kv_heads = attends[0].heads, attends[0].spec.heads
    forms = {"MHA": (heads, each), form: (kv_heads, own), "MQA": (1, one)}
    return tuple(HeadSharing(name, count, nbytes, each / nbytes) for name, (count, nbytes) in forms.items())
