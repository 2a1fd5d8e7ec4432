"""Small values for the sizes in a config of transformers, by the names of the fields and the relations between them."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from math import lcm
from typing import Any, TypeAlias

from ridgeline.core.models.from_transformers.small_layers import Values, is_layer_field

VOCABULARY = 96
"""The tokens of a small model. Its special tokens are the last of them."""
POSITIONS = 128
"""The positions of a small model."""
SCALED_POSITIONS = 16
"""The fewest positions of a small model before the scaling of rotary embeddings, and those before longrope's."""
HEAD_DIMENSIONS = (16, 24, 32, 64)
"""The head dimensions of small models: the first of them from which rotary embeddings take pairs for each section."""
HIDDEN = 64
"""The hidden size of a small model without attention heads."""

HIDDEN_SIZES = ("hidden_size", "n_embd", "d_model", "embed_dim", "dim", "embedding_dim", "emb_dim")
"""Fields that have the hidden size; a config has the first that it has as its own."""
HEADS = (
    "num_attention_heads",
    "n_head",
    "n_heads",
    "num_heads",
    "attention_heads",
    "decoder_attention_heads",
    "num_decoder_attention_heads",
    "encoder_attention_heads",
)
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads")
HEAD_DIMS = (
    "qk_nope_head_dim",
    "head_dim",
    "dim_head",
    "d_head",
    "attention_head_dim",
    "kv_channels",
    "attention_head_size",
    "d_kv",
)
POSITION_FIELDS = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_seq_len",
    "context_length",
    "model_max_length",
    "max_sequence_length",
    "seq_length",
    "max_source_positions",
    "max_target_positions",
)
STATE_HEADS = (
    ("mamba_n_heads", "mamba_d_head"),
    ("mamba_num_heads", "mamba_head_dim"),
    ("n_mamba_heads", "mamba_headdim"),
)
"""Fields whose products are a multiple of the hidden size in state-space layers."""
STATE_GROUPS = 2
"""The most groups that the heads of a small state-space layer are in."""
FREE_STATE_HEADS = 4
"""The heads of small state-space layers whose width is no multiple of the hidden size."""
_ROUNDED = 64
"""The multiple to which xLSTM rounds the width of queries and keys."""
ROPES = ("rope_parameters", "rope_scaling")

Rule: TypeAlias = "Callable[[SmallSizes, int], int]"


class SmallSizes:
    """The sizes of one config and their small values.

    Args:
        values: The fields of the config.
        widths: The small hidden size for each hidden size of configs that this one is connected to.
        tokens: The small id for each token id outside the small vocabulary.
    """

    def __init__(self, values: Values, widths: Mapping[int, int], tokens: Mapping[int, int]) -> None:
        self.values = values
        self.widths = widths
        self.tokens = tokens
        self.hidden = _first(values, HIDDEN_SIZES)
        self.heads = _first(values, HEADS)
        self.kv_heads = _first(values, KV_HEADS) or self.heads
        self.head_dim = _first(values, HEAD_DIMS) or self.hidden // max(self.heads, 1)
        self.small_head_dim = self._small_head_dim()
        self.head_scale = self.head_dim / self.small_head_dim if self.heads else 8.0
        scales = [large / small for large, small in widths.items()]
        self.scale = self.hidden / self.small_hidden if self.hidden else max(scales, default=32.0)

    def of(self, values: Values) -> Values:
        """Return the small values of fields."""
        small = {name: self._small(name, value) for name, value in values.items()}
        for restore in (self._state_heads, self._sums, self._derived):
            restore(small)
        return small

    @cached_property
    def small_kv_heads(self) -> int:
        """The number of KV heads of the small model."""
        return min(self.kv_heads, 4 if self.heads < 2 * self.kv_heads else 2)

    @cached_property
    def small_heads(self) -> int:
        """The number of heads of the small model, each KV head serving at most four."""
        return self.small_kv_heads * min(self.heads // max(self.kv_heads, 1), 4)

    @cached_property
    def small_hidden(self) -> int:
        """The hidden size of the small model, which is wider or narrower than all heads together as the original."""
        if not self.heads or not self.hidden:
            return min(self.hidden or HIDDEN, HIDDEN)
        inner, small_inner = self.heads * self.head_dim, self.small_heads * self.small_head_dim
        ratio = min(self.hidden / inner, 1.25)
        if "qk_dim_factor" in self.values:  # its class rounds the width of queries to whole multiples in a part only
            return min(self.hidden, round(_ROUNDED / self.values["qk_dim_factor"]))
        step = 8 if self.hidden % self.heads else lcm(8, self.small_heads)  # some classes refuse a remainder
        wanted = small_inner if ratio == 1 else max(_multiple(32, step) or step, _multiple(small_inner * ratio, step))
        return min(self.hidden, wanted)

    @cached_property
    def context_ratio(self) -> float:
        """The positions of the original for each position before the scaling of its rotary embeddings."""
        positions = _first(self.values, POSITION_FIELDS)
        before = (_first(rope, ("original_max_position_embeddings",)) for rope in self._ropes())
        return next((positions / number for number in before if number), 1.0)

    @cached_property
    def scaled_positions(self) -> int:
        """The positions of the small model before the scaling of its rotary embeddings."""
        longrope = any("long_factor" in rope for rope in self._ropes())
        return SCALED_POSITIONS if longrope else max(SCALED_POSITIONS, round(POSITIONS / self.context_ratio))

    @cached_property
    def positions(self) -> int:
        """The positions of the small model."""
        return round(self.scaled_positions * self.context_ratio)

    def _small_head_dim(self) -> int:
        """Return the first head dimension from which rotary embeddings take a pair for each of their sections."""
        sections = max((len(own["mrope_section"]) for own in self._ropes() if own.get("mrope_section")), default=2)
        part = min(self._rotary_parts())
        fit = next((dim for dim in HEAD_DIMENSIONS if int(dim * part) // 2 >= sections), HEAD_DIMENSIONS[-1])
        return min(fit, self.head_dim) or fit

    def _rotary_parts(self) -> list[float]:
        fields = (self.values, *self._ropes())
        parts = [own.get(name) or 1.0 for own in fields for name in ("partial_rotary_factor", "rotary_pct")]
        return [*parts, (_first(self.values, ("qk_rope_head_dim",)) or self.head_dim) / max(self.head_dim, 1)]

    def _ropes(self) -> list[Values]:
        """Return the parameters of rotary embeddings: those of one, or those for each layer type."""
        given = [self.values[name] for name in ROPES if isinstance(self.values.get(name), dict)]
        return list(chain(given, *([own for own in rope.values() if isinstance(own, dict)] for rope in given)))

    def _small(self, name: str, value: Any) -> Any:
        if name in ROPES and isinstance(value, dict):
            return self._rope(value)
        if name == "per_layer_config" and isinstance(value, dict):
            return {layer: self.of(own) for layer, own in value.items()}
        if name in ("id2label", "label2id") or is_layer_field(name):
            return value
        if isinstance(value, dict):
            return {key: self._small(name, own) for key, own in value.items()}
        if isinstance(value, list):
            return [self._small(name, own) for own in value]
        if not isinstance(value, int) or isinstance(value, bool):
            return value
        return self._token(value) if is_token_id(name) else self._size(name, value)

    def _token(self, value: int) -> int:
        return self.tokens.get(value, value)

    def _size(self, name: str, value: int) -> int:
        rule = next((rule for pattern, rule in RULES if pattern.fullmatch(name)), None)
        return min(value, rule(self, value)) if rule else value

    def _rope(self, value: Values) -> Values:
        small: dict[str, Any] = {key: self._rope(own) if isinstance(own, dict) else own for key, own in value.items()}
        for key in ("short_factor", "long_factor"):
            if isinstance(small.get(key), list):
                small[key] = _resampled(small[key], max(1, round(len(small[key]) / self.head_scale)))
        if isinstance(small.get("mrope_section"), list):
            rotated = _first(self.values, ("qk_rope_head_dim",)) or 2 * sum(small["mrope_section"])
            small["mrope_section"] = _shares(small["mrope_section"], round(rotated / self.head_scale) // 2)
        if _is_int(small.get("original_max_position_embeddings")):
            small["original_max_position_embeddings"] = self.scaled_positions
        return small

    def _state_heads(self, small: Values) -> None:
        """Make the heads of a state-space layer fill the same multiple of the hidden size, if it is a whole one."""
        names = (*STATE_HEADS, ("num_heads", "head_dim")) if "expand" in self.values else STATE_HEADS
        for count, dim in names:
            if not _is_int(self.values.get(count)) or not _is_int(self.values.get(dim)) or not self.hidden:
                continue
            times, rest = divmod(self.values[count] * self.values[dim], self.hidden)
            inner = FREE_STATE_HEADS * small[dim] if rest else times * self.small_hidden
            small[dim] = max(fit for fit in range(1, small[dim] + 1) if inner % (STATE_GROUPS * fit) == 0)
            small[count] = inner // small[dim]
            if _is_int(small.get("mamba_d_ssm")):
                small["mamba_d_ssm"] = inner

    def _sums(self, small: Values) -> None:
        """Make the head dimension of queries and keys the sum of its parts again."""
        parts = ("qk_nope_head_dim", "qk_rope_head_dim")
        if _is_int(small.get("qk_head_dim")) and all(_is_int(small.get(name)) for name in parts):
            small["qk_head_dim"] = sum(small[name] for name in parts)

    def _derived(self, small: Values) -> None:
        """Fill what classes read without a default of their own."""
        for name, value in (("head_dim", self.small_head_dim), ("num_key_value_heads", self.small_heads)):
            if self.heads and name in small and small[name] is None:
                small[name] = value


def is_token_id(name: str) -> bool:
    """Return whether a field has the id of a token, or ids of tokens."""
    return re.fullmatch(r"\w*(token_id|token_ids|token_index)", name) is not None


def _hidden(sizes: SmallSizes, value: int) -> int:
    """Return a width like the hidden size: an equal one stays equal, a multiple stays a multiple."""
    if value == sizes.hidden:
        return sizes.small_hidden
    return sizes.widths[value] if value in sizes.widths else max(8, _multiple(value / sizes.scale, 8))


def _connected(sizes: SmallSizes, value: int) -> int:
    """Return the small hidden size where a part of the model takes that of another."""
    return sizes.widths.get(value, value)


def _inner(sizes: SmallSizes, value: int) -> int:
    """Return the width of an MLP: at most three times the hidden size."""
    return min(_hidden(sizes, value), 3 * sizes.small_hidden)


def _expert(sizes: SmallSizes, value: int) -> int:
    """Return the width of an expert: at most half the hidden size."""
    return max(16, min(_hidden(sizes, value), sizes.small_hidden // 2))


def _inner_of_all(sizes: SmallSizes, value: int) -> int:
    """Return the width of the MLP of a config with one width, which is the experts' if there are any."""
    one = not any(EXPERT_WIDTH.fullmatch(name) for name in sizes.values)
    experts = one and any(EXPERTS.fullmatch(name) for name in sizes.values)
    return _expert(sizes, value) if experts else _inner(sizes, value)


def _chosen_keys(sizes: SmallSizes, value: int) -> int:
    """Return the keys that sparse attention chooses: of 24, of 12 pairs, or of what compression makes of 24."""
    return 3 if "compress_rates" in sizes.values else 6 if "index_kpool" in sizes.values else 7


def _image(sizes: SmallSizes, value: int) -> int:
    """Return the side of an image of four by four patches."""
    return min(value, 4 * _first(sizes.values, ("patch_size",)) or value)


def _head_dim(sizes: SmallSizes, value: int) -> int:
    return max(4, _multiple(value / sizes.head_scale, 4))


def _heads(sizes: SmallSizes, value: int) -> int:
    """Return a number of heads that is to the heads as the original was, and a multiple of the KV heads if it was."""
    if not sizes.heads:
        return min(value, 4)
    heads = max(1, value * sizes.small_heads // sizes.heads)
    return heads if value % sizes.kv_heads else max(1, heads // sizes.small_kv_heads) * sizes.small_kv_heads


def _scaled_positions(sizes: SmallSizes, value: int) -> int:
    return min(value, sizes.scaled_positions)


def _positions(sizes: SmallSizes, value: int) -> int:
    return min(value, sizes.positions)


def _at_most(limit: int) -> Rule:
    return lambda _, value: min(value, limit)


def _same(_: SmallSizes, value: int) -> int:
    return value


EXPERT_WIDTH = re.compile(r"\w*(moe|expert)\w*(intermediate|ffn|hidden)\w*")
EXPERTS = re.compile(r"num_experts|n_routed_experts|num_local_experts|moe_num_experts")
RULES: tuple[tuple[re.Pattern[str], Rule], ...] = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (r"\w*vocab\w*", _at_most(VOCABULARY)),
        (r"codebook_size", _at_most(64)),
        (r"original_max_position_embeddings", _scaled_positions),
        ("|".join(POSITION_FIELDS), _positions),
        # limits that a text of 24 tokens passes
        (r"local_attention", _at_most(10)),
        (r"attention_window", _at_most(6)),
        (r"(\w+_)?window(_\w+)?", _at_most(5)),
        (r"attention_chunk_size|floor_scale|log_scaling_n_floor", _at_most(6)),
        (r"(\w+_)?chunk_size(_\w+)?", _at_most(8)),
        (r"index_topk_blocks", _at_most(2)),
        (r"index_block_size", _at_most(4)),
        (r"compress_rates", _at_most(8)),
        (r"block_size", _at_most(2)),
        (r"index_topk", _chosen_keys),
        (r"index_kpool", _at_most(2)),
        (r"indexer_budget", _at_most(8)),
        (r"indexer_compress_ratio", _at_most(2)),
        (r"rel_extent", _at_most(12)),
        # experts
        (EXPERTS.pattern + r"|zero_expert_num", _at_most(8)),
        (r"n_group|num_expert_group", _at_most(4)),
        (r"topk_group", _at_most(2)),
        (r"num_experts_per_tok(en)?|moe_topk|moe_k|moe_top_k|top_k_experts", _at_most(3)),
        (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", _at_most(2)),
        # numbers that are no widths
        (r"(\w+_)?(kernel|conv1d|filter|init|initializer)(_\w+)?", _same),
        (r"(\w+_)?(multiple_of|divisible_by)", _at_most(8)),
        (r"(\w+_)?multiple_size", _same),
        # heads and their dimensions
        (r"(\w+_)?(rank|lowrank)", _at_most(24)),
        (r"(\w+_)?(d_state|state_size)", _at_most(16)),
        (r"(\w+_)?(n_groups|ngroups)|o_groups", _at_most(STATE_GROUPS)),
        (r"(\w+_)?(head_dim|headdim|d_head|head_size)(_\w+)?|kv_channels|dim_head|d_kv|rotary_dim", _head_dim),
        (r"query_pre_attn_scalar|(\w+_)?(key|value)_dim|d_rel", _head_dim),
        (r"(\w+_)?(heads|n_head)(_\w+)?|num_query_groups", _heads),
        # widths
        (r"(\w+_)?(input|output)_size", _connected),
        (r"image_size|crop_size", _image),
        (r"(\w+_)?(out_channel|conv_channels)", _hidden),
        (EXPERT_WIDTH.pattern, _expert),
        (r"intermediate_size|ffn_hidden_size", _inner_of_all),
        (r"(\w+_)?(intermediate|ffn|ff|dff|inner|feed_forward)(_\w+)?", _inner),
        (r"(\w+_)?(hidden|embd|embed|d_model|dim|width|embedding|bottleneck|latent)(_\w+)?|d_embed", _hidden),
    )
)
"""The rule for the small value of a field: that of the first pattern that matches the field's name."""


def _shares(parts: Sequence[int], total: int) -> list[int]:
    """Split a total in the proportion of parts, each at least one."""
    shares = [max(1, part * total // sum(parts)) for part in parts]
    while sum(shares) < total:
        place = max(range(len(parts)), key=lambda place: parts[place] * total / sum(parts) - shares[place])
        shares[place] += 1
    while sum(shares) > total:
        shares[shares.index(max(shares))] -= 1
    return shares


def _resampled(items: Sequence[float], length: int) -> list[float]:
    return [items[place * len(items) // length] for place in range(length)]


def _multiple(value: float, of: int) -> int:
    return round(value / of) * of


def _first(values: Values, names: Sequence[str]) -> int:
    return next((values[name] for name in names if _is_int(values.get(name))), 0)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
