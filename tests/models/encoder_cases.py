"""The encoders that are compared with transformers. Sizes are small, odd and different from each other."""

from dataclasses import dataclass
from typing import Any

from models.parity_cases import ParityCase


@dataclass(frozen=True)
class EncoderCase(ParityCase):
    """A ParityCase whose answers are hidden states, or scores. labels: of a classifier, 0 for hidden states."""

    labels: int = 0


_BERT: dict[str, Any] = {
    "vocab_size": 83,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "max_position_embeddings": 70,
    "type_vocab_size": 2,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
}
_ROBERTA = _BERT | {"pad_token_id": 3, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
_MODERN: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 38,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "max_position_embeddings": 80,
    "local_attention": 7,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "cls_token_id": 1,
    "sep_token_id": 2,
}

_bert = EncoderCase.of("bert", _BERT)
_roberta = EncoderCase.of("roberta", _ROBERTA)
_modern = EncoderCase.of("modernbert", _MODERN)


def _ropes(whole: float, near: float) -> dict[str, Any]:
    each = {"full_attention": whole, "sliding_attention": near}
    return {"rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in each.items()}}


ENCODER_CASES = (
    _bert("plain", {}),
    _bert("one-head-one-layer", {"num_attention_heads": 1, "num_hidden_layers": 1}),
    _bert("large-eps", {"layer_norm_eps": 0.3}, without={"layer_norm_eps": 1e-12}),
    _bert("relu", {"hidden_act": "relu"}, without={"hidden_act": "gelu"}),
    _bert("bare", {}, layout=("bare",)),
    _bert("masked-lm", {}, layout=("masked LM", "old names")),
    _bert("no-architectures", {}, layout=("bare", "no architectures")),
    _bert("one-label", {}, labels=1),
    _bert("five-labels", {}, labels=5),
    _roberta("plain", {}),
    _roberta("offset", {}, without={"pad_token_id": 5, "max_position_embeddings": 70}),
    _roberta("two-types", {"type_vocab_size": 2}),
    _roberta("masked-lm", {}, layout=("masked LM",)),
    _roberta("one-label", {}, labels=1),
    EncoderCase("xlm-roberta-plain", "xlm-roberta", _ROBERTA),
    EncoderCase("xlm-roberta-one-label", "xlm-roberta", _ROBERTA, labels=1),
    _modern("plain", {}),
    _modern("biases", {"norm_bias": True, "attention_bias": True, "mlp_bias": True}),
    _modern("window", {}, without={"local_attention": 60}),
    _modern("every-second", {"layer_types": ["full_attention", "sliding_attention"] * 2}),
    _modern(
        "every-second-old", {}, layout=("no layer types",), without={"global_attn_every_n_layers": 2},
    ),
    _modern("all-whole", {"layer_types": ["full_attention"] * 4}),
    _modern("ropes", _ropes(37.0, 11.0), without=_ropes(11.0, 37.0)),
    _modern("window-even", {"local_attention": 8}, without={"local_attention": 6}),
    _modern("masked-lm", {}, layout=("masked LM",)),
    _modern("label-of-first", {"classifier_pooling": "cls"}, labels=1, without={"classifier_pooling": "mean"}),
    _modern("label-of-mean", {"classifier_pooling": "mean"}, labels=1, without={"classifier_pooling": "cls"}),
    _modern("three-labels", {"classifier_bias": True, "classifier_activation": "relu", "norm_bias": True}, labels=3),
)  # fmt: skip
