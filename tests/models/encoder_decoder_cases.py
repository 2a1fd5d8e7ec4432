"""The encoder-decoders that are compared with transformers; sizes small, odd and different from each other."""

from typing import Any

from models.configs import BART_SIZES
from models.parity_cases import ParityCase

_T5: dict[str, Any] = {
    "vocab_size": 97,
    "d_model": 36,
    "d_kv": 10,
    "d_ff": 44,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 3,
    "relative_attention_num_buckets": 10,
    "relative_attention_max_distance": 17,
    "n_positions": 96,
    "feed_forward_proj": "relu",
    "decoder_start_token_id": 0,
}
_GATED = {"feed_forward_proj": "gated-gelu"}
_BART = BART_SIZES | {
    "max_position_embeddings": 96,
    "activation_function": "gelu",
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "forced_eos_token_id": None,
}
_MARIAN = _BART | {"activation_function": "swish", "scale_embedding": True, "pad_token_id": 96, "eos_token_id": 0}

_bart = ParityCase.of("bart", _BART)
_marian = ParityCase.of("marian", _MARIAN)
_t5 = ParityCase.of("t5", _T5)
_umt5 = ParityCase.of("umt5", _T5 | _GATED | {"vocab_size": 89})

CASES = (
    _t5("tied", {}),
    _t5("v1.1", _GATED | {"tie_word_embeddings": False}, without={"scale_decoder_outputs": True}),
    _t5("gated", _GATED, without={"feed_forward_proj": "gated-relu"}),
    _t5("gated-silu", {"feed_forward_proj": "gated-silu"}, without={"feed_forward_proj": "gated-relu"}),
    _t5("as-deep-as-the-encoder", {"num_decoder_layers": None, "num_layers": 2}),
    _t5("one-layer-one-head", {"num_layers": 1, "num_decoder_layers": 1, "num_heads": 1}),
    _t5("buckets", {"relative_attention_num_buckets": 7}),
    _t5("farthest", {}, without={"relative_attention_max_distance": 30}),
    _t5("large-eps", {"layer_norm_epsilon": 0.3}, without={"layer_norm_epsilon": 1e-6}),
    _t5("sharded", {}, layout=("sharded",)),
    _t5("head-repeated", {}, layout=("head repeated",)),
    _t5("no-architectures", {}, layout=("no architectures",)),
    _umt5("untied", {"tie_word_embeddings": False}),
    _umt5("tied", {"tie_word_embeddings": True}),
    _umt5("relu", {"feed_forward_proj": "relu"}, without={"feed_forward_proj": "gelu"}),
    _bart("plain", {}),
    _bart("scaled", {"scale_embedding": True}, without={"scale_embedding": False}),
    _bart("relu", {"activation_function": "relu"}, without={"activation_function": "gelu"}),
    _bart("sharded", {}, layout=("sharded",)),
    _bart("head-repeated", {}, layout=("head repeated",)),
    _marian("plain", {}),
    _marian("not-scaled", {"scale_embedding": False}, without={"scale_embedding": True}),
    _marian("odd-width", {"d_model": 33, "encoder_attention_heads": 3, "decoder_attention_heads": 1}),
)
