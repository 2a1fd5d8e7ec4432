"""Small models as GGUF files: their configs by family, and a vocabulary of letters."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
from gguf import GGMLQuantizationType as Type
from transformers import PreTrainedModel

from support.checkpoints import random_model
from support.gguf_files import Choice, write_gguf

_BASE: dict[str, Any] = {
    "vocab_size": 97, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 7_000.0, "tie_word_embeddings": False, "bos_token_id": None, "eos_token_id": None,
    "pad_token_id": None,
}  # fmt: skip
_GEMMA2 = {
    "sliding_window": 5, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 3.0, "final_logit_softcapping": 9.0,
    "tie_word_embeddings": True, "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
CONFIGS: Mapping[str, dict[str, Any]] = {
    "llama": _BASE,
    "qwen2": {**_BASE, "tie_word_embeddings": True},
    "qwen3": {**_BASE, "head_dim": 64},
    "gemma2": _BASE | _GEMMA2,
}


def mixed(types: Mapping[str, Type], other: Type) -> Choice:
    """One type for all matrices but some."""
    return lambda name: types.get(name.split(".")[-2], other)


def made(path: Path, model_type: str, choose: Choice, **more: Any) -> PreTrainedModel:
    """Write a random model as a file; transformers' of what the file stands for."""
    config = CONFIGS[model_type] | more.pop("config", {})
    theirs = random_model(model_type, config, seed=7)
    tensors = {
        name: tensor
        for name, tensor in theirs.state_dict().items()
        if name != "lm_head.weight" or not config["tie_word_embeddings"]
    }
    theirs.load_state_dict(write_gguf(path, model_type, config, tensors, choose, **more), strict=False)
    theirs.tie_weights()
    return theirs


def letters(writer: gguf.GGUFWriter) -> None:
    """A SentencePiece vocabulary: five tokens that stand for no text, a space, letters, and what is never written."""
    tokens = ["<unk>", "<s>", "</s>", "<|user|>", "<|end|>", "▁", *map(chr, range(97, 97 + 26))]
    tokens += [f"x{n}" for n in range(65)]
    assert len(tokens) == CONFIGS["llama"]["vocab_size"]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types([2, 3, 3, 3, 3, *[1] * 92])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_eot_token_id(4)
    writer.add_unk_token_id(0)
    writer.add_chat_template("{% for m in messages %}<|user|>{{ m.content }}<|end|>{% endfor %}")
