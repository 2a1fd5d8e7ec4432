"""The sizes of a model that people ask for, read off its ops: widths, heads, experts, and what a token's KV takes."""

from collections import Counter
from dataclasses import dataclass

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.latent_attention import LatentAttention


@dataclass(frozen=True, slots=True)
class MixtureSizes:
    """Experts of a layer, how many of them a token passes, the width of one, and how many layers have them."""

    count: int
    active: int
    width: int
    layers: int


@dataclass(frozen=True, slots=True)
class HeadSharing:
    """Keys and values of a token if so many heads had their own: MHA (each query head, arXiv:1706.03762), GQA (groups
    of them, arXiv:2305.13245), MQA (all share one, arXiv:1911.02150), MLA (one latent for all, of which each makes its
    own, arXiv:2405.04434). less: how many times less than MHA.
    """

    form: str
    kv_heads: int
    bytes_per_token: float
    less: float


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """hidden: of the residual stream. widths: of the feed-forward layers that are no mixture, each once. heads,
    kv_heads, head_dim: of most layers; 0 of a model without attention. sharing: the model's own form of attention, by
    its name, beside MHA and MQA.
    """

    hidden: int
    widths: tuple[int, ...]
    heads: int
    kv_heads: int
    head_dim: int
    mixture: MixtureSizes | None
    form: str
    sharing: tuple[HeadSharing, ...]


def sizes_of(model: Model) -> ModelSizes:
    """The sizes of an undivided model."""
    hidden = model.ops_of(Embedding)[0][1].width
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


def _latents(attends: list[LatentAttention]) -> tuple[HeadSharing, ...]:
    """What is kept, beside a key and a value of each head."""
    each = sum(op.heads * (op.sizes.key + op.sizes.value) * op.spec.bytes_per_token / op.sizes.kept for op in attends)
    own = sum(op.spec.bytes_per_token for op in attends)
    return HeadSharing("MHA", attends[0].heads, each, 1.0), HeadSharing("MLA", 1, own, each / own)


def _sharing(attends: list[Attention], form: str) -> tuple[HeadSharing, ...]:
    """The three forms, widest first; two where the model has one of them."""
    attends = [op for op in attends if op.spec.kept] or attends
    each = sum(op.spec.bytes_per_token / op.spec.heads * op.heads for op in attends)
    own = sum(op.spec.bytes_per_token for op in attends)
    one = sum(op.spec.bytes_per_token / op.spec.heads for op in attends)
    heads, kv_heads = attends[0].heads, attends[0].spec.heads
    forms = {"MHA": (heads, each), form: (kv_heads, own), "MQA": (1, one)}
    return tuple(HeadSharing(name, count, nbytes, each / nbytes) for name, (count, nbytes) in forms.items())
