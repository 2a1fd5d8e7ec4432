"""The config of the part of a transformers class that one of several devices holds.

Tensor parallelism (arXiv:1909.08053) gives each rank an equal share of the heads of every layer and of the columns of
every MLP. A class that is constructed from a config with these smaller sizes has the matrices of one rank, and its code
computes what the rank computes, apart from the sums over ranks.
"""

import re
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

from ridgeline.core.models.from_transformers.small_layers import Values, is_layer_field
from ridgeline.core.models.from_transformers.small_sizes import HEADS, HIDDEN_SIZES, KV_HEADS
from ridgeline.core.ops.shard import Shard

_KV_HEAD_NAMES = re.compile(
    "|".join((*KV_HEADS, r"\w+_num_key_value_heads", "num_query_groups", "multi_query_group_num"))
)
_ATTENTION_HEADS = re.compile("|".join((*HEADS, r"\w+_num_attention_heads", "num_attention_heads_per_layer")))
_STATE_HEADS = re.compile(r"(linear|mamba)_(n|num)_(\w+_)?heads|n_mamba_heads|num_heads")
_STATE_GROUPS = re.compile(r"(mamba_)?n_?groups")
_STATE_WIDTHS = re.compile(r"(mamba_)?expand|lru_width|attention_hidden_size")
_COLUMNS = re.compile(
    r"(\w+_)?(intermediate|ffn_hidden|feed_forward)_size(_mlp)?|(\w+_)?ffn_dim|dim_ff|d_inner|n_inner"
)
# The sections of a config whose heads have a state, and those of encoders, which ranks do not divide.
_WITH_STATES = re.compile(r"linear_attn_config|ssm_config|mamba_config")
_OF_ENCODERS = re.compile(r"(vision|audio|image|speech|text_encoder|encoder)\w*")

ATTENTION, RECURRENCE, MLP = "attention", "recurrent layers", "MLPs"
PARTS = ATTENTION, RECURRENCE, MLP
"""The parts of a class that ranks divide."""


def rank_config(config: Any, shard: Shard, parts: AbstractSet[str]) -> Any:
    """Return the config of a rank's part of a class.

    Args:
        config: The config of the whole class, which is copied.
        shard: The rank.
        parts: The parts of the class that the ranks divide. The others are whole on each rank.

    Raises:
        Indivisible: If heads or columns do not divide equally.
    """
    values = config.to_dict()
    # A class may write each layer as two entries, which it joins again when it reads them.
    values |= {name: value for name, value in vars(config).items() if name in values and is_layer_field(name)}
    if ATTENTION in parts and "head_dim" not in config.attribute_map:  # where it is the name of another size
        values |= _head_size(values)
    return type(config).from_dict(_divided(values, shard, parts, with_states=False))


def _head_size(values: Values) -> Values:
    """Return the size of a head, which many classes compute from the number of heads if a config has none."""
    heads, hidden = (next((values[name] for name in names if values.get(name)), 0) for names in (HEADS, HIDDEN_SIZES))
    return {} if values.get("head_dim") or not heads else {"head_dim": hidden // heads}


def _divided(values: Values, shard: Shard, parts: AbstractSet[str], *, with_states: bool) -> Values:
    """Return the fields of a rank's config, or of a section in it.

    Args:
        values: The fields of the whole config.
        shard: The rank.
        parts: The parts of the class that the ranks divide.
        with_states: Whether the fields are of a section about layers with a state.
    """
    own = dict(values)
    for name, value in values.items():
        kind = _division_of(str(name), with_states=with_states)
        if isinstance(value, dict):
            if not _OF_ENCODERS.fullmatch(str(name)):
                own[name] = _divided(value, shard, parts, with_states=bool(_WITH_STATES.fullmatch(str(name))))
        elif kind is not None and kind[0] in parts:
            own[name] = _each(value, shard, kind[1])
    return own


def _division_of(name: str, *, with_states: bool) -> tuple[str, Callable[[Any, Shard], Any]] | None:
    """Return the part of a class whose size a field states, and the function from this size to a rank's; else None."""
    kinds = (
        (_COLUMNS, MLP, _columns),
        (_KV_HEAD_NAMES, ATTENTION, _kv_heads),
        *(() if with_states else ((_ATTENTION_HEADS, ATTENTION, _heads),)),
        (_STATE_HEADS, RECURRENCE, _heads),
        (_STATE_GROUPS, RECURRENCE, _groups),
        (_STATE_WIDTHS, RECURRENCE, _width),
    )
    return next((kind[1:] for kind in kinds if kind[0].fullmatch(name)), None)


def _heads(size: int, shard: Shard) -> int:
    return shard.part(size, "heads")


def _kv_heads(size: int, shard: Shard) -> int:
    return shard.for_kv_heads(size).part(size, "KV heads") if size else size


def _columns(size: int, shard: Shard) -> int:
    return shard.part(size, "columns of an MLP")


def _groups(size: int, shard: Shard) -> int:
    """Return the groups of heads that share a part of a state: whole if the ranks do not divide them."""
    return shard.if_divides(size).part(size, "groups")


def _width(size: float, shard: Shard) -> float:
    """Return a rank's width of a state, or factor from the hidden size to it, which may be below 1."""
    return size / shard.size if size % shard.size else size // shard.size


def _each(value: Any, shard: Shard, size_of: Callable[[Any, Shard], Any]) -> Any:
    """Return a rank's size, or its sizes if a list has one for each layer; a value that is no number stays."""
    if isinstance(value, list | tuple):
        return type(value)(_each(item, shard, size_of) for item in value)
    return size_of(value, shard) if isinstance(value, int | float) and not isinstance(value, bool) else value
