"""A small copy of any config of transformers, which keeps every choice that changes the mathematics."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ridgeline.core.models.from_transformers.small_layers import Values, is_layer_field, keep_layers
from ridgeline.core.models.from_transformers.small_sizes import VOCABULARY, SmallSizes, is_token_id

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

DROPPED = ("quantization_config", "compression_config", "dtype", "torch_dtype", "transformers_version", "_name_or_path")
"""Fields that describe the stored weights or the file, and no mathematics."""

PLAIN_ROPE: Values = {"rope_type": "default", "rope_theta": 10000.0}
COMPLETED: Mapping[str, Values] = {
    "cohere_compass_text": {"rope_parameters": {"full_attention": PLAIN_ROPE}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "n_shared_experts": 2, "num_experts_per_tok": 6},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "qwen4_exp_text": {
        "indexer_n_heads": 8,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 256,
        "indexer_budget": 2048,
        "indexer_compress_ratio": 16,
    },
    "xmod": {"default_language": "en_XX"},
}
"""Fields without which a class builds no model although its default config lacks them, by `model_type`."""


def small_config(config: "PreTrainedConfig", *, layers: int | None = None) -> "PreTrainedConfig":
    """Return a copy of a config whose model is small and computes the same mathematics.

    Layer kinds, norms, activations, kinds of rotary embedding, the ratio of heads to KV heads, experts, shared KV
    layers, softcaps and tied weights stay. Widths, heads, vocabulary and layers become few. Windows, chunks and the
    keys that sparse attention chooses become fewer than 24 tokens, so that a text of 24 tokens passes all of them.
    Quantisation is left out.

    Args:
        config: The config of a model of any size. It is not changed.
        layers: The number of layers. By default, a whole period of the layers' pattern, or a layer of each kind.

    Raises:
        ValueError: The config class refuses the small values.
    """
    values = config.to_dict()
    # A class may write each layer as two entries, which it joins again when it reads them.
    values |= {name: value for name, value in vars(config).items() if name in values and is_layer_field(name)}
    values = _all_completed(values, config.model_type)
    return type(config).from_dict(_small(values, _widths(values), _tokens(values), layers))


def _small(values: Values, widths: dict[int, int], tokens: dict[int, int], layers: int | None = None) -> Values:
    """Return small values for the fields of a config, and for those of the configs inside it.

    Args:
        values: The fields of the config.
        widths: The small hidden size for each hidden size in the whole config.
        tokens: The small id for each token id in the whole config.
        layers: The number of layers.
    """
    own = {name: value for name, value in values.items() if name not in DROPPED}
    inside = {name: _small(value, widths, tokens, layers) for name, value in own.items() if is_config(name, value)}
    sizes = SmallSizes(own, widths, tokens)
    return sizes.of({name: value for name, value in keep_layers(own, layers).items() if name not in inside}) | inside


def is_config(name: str, value: Any) -> bool:
    """Return whether a field is a config inside a config."""
    named = isinstance(value, dict) and ("model_type" in value or name.endswith("_config"))
    return named and name not in ("per_layer_config", *DROPPED)


def _all_completed(values: Values, model_type: str) -> Values:
    """Return the fields of a config and of the configs inside it, with values that their classes need."""
    inside = {
        name: _all_completed(value, value.get("model_type", ""))
        for name, value in values.items()
        if is_config(name, value)
    }
    return _completed(values | inside, COMPLETED.get(model_type, {}))


def _completed(values: Values, more: Values) -> Values:
    """Return fields with a value for each that is None, empty or missing."""
    values = dict(values)
    for name, value in more.items():
        if is_config(name, values.get(name)):
            values[name] = _completed(values[name], value)
        elif values.get(name) is None or values[name] == {}:
            values[name] = value
    return values


def _widths(values: Values) -> dict[int, int]:
    """Return the small hidden size for each hidden size, so that what connects two parts of a model fits both."""
    widths: dict[int, int] = {}
    for name, value in values.items():
        if is_config(name, value):
            widths |= _widths(value)
    sizes = SmallSizes(values, {}, {})
    return widths | ({sizes.hidden: sizes.small_hidden} if sizes.hidden else {})


def _tokens(values: Values) -> dict[int, int]:
    """Return a small id for each token id that a small vocabulary lacks: the last ones, and equal for equal ids."""
    large = sorted({token for token in _token_ids(values) if token >= VOCABULARY})
    return {token: VOCABULARY - 1 - place % (VOCABULARY // 2) for place, token in enumerate(large)}


def _token_ids(values: Values) -> Iterator[int]:
    for name, value in values.items():
        if is_config(name, value):
            yield from _token_ids(value)
        elif is_token_id(name):
            yield from (token for token in (value if isinstance(value, list) else [value]) if isinstance(token, int))
