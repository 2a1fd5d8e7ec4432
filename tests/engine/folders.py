"""Folders with a whole small model in them: config, random weights, tokenizer, and what else a release has."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer

from engine.small_models import LLAMA, small_model
from text.tiny_tokenizers import byte_level, metaspace

SPECIAL = ("<bos>", "<eos>", "<think>", "</think>")
CHAT = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
THINKING_CHAT = CHAT.replace("assistant:", "assistant:<think>")


def write_model(
    folder: Path,
    *,
    config: Mapping[str, Any] = LLAMA,
    pieces: str = "bytes",
    template: str | None = None,
    generation: Mapping[str, Any] | None = None,
) -> Path:
    """Fill `folder` with a model that the engine can load.

    pieces: "bytes" for byte-level BPE, "words" for a SentencePiece-like vocabulary, whose decoder drops one space.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder, byte_level() if pieces == "bytes" else metaspace(), template)
    config = {**config, "vocab_size": vocabulary, "eos_token_id": vocabulary - 3}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    model = small_model(config)
    save_file({model.checkpoint_name(n): p for n, p in model.named_parameters()}, folder / "model.safetensors")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return folder


def write_tokenizer(folder: Path, pipeline: Tokenizer, template: str | None, *, specials: Sequence[str] = ()) -> int:
    """Write tokenizer.json and tokenizer_config.json; returns the size of the vocabulary. SPECIAL come last in it."""
    pipeline.add_special_tokens([AddedToken(literal, normalized=False) for literal in (*specials, *SPECIAL)])
    pipeline.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": "<bos>", "eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}
    if template is not None:
        config["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return int(pipeline.get_vocab_size())
