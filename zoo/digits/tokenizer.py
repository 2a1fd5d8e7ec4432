"""The byte-level BPE of `digits`, trained on its prompts, and the chat template that Z-Image puts around them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer
from torch import Tensor

from zoo.bpe import byte_level_bpe, padded_rows
from zoo.digits.model import TEXT
from zoo.digits.prompts import captions

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|endoftext|>"
CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
"""Qwen3's, of turns of a user."""


def templated(prompt: str) -> str:
    """What the encoder reads of a prompt: its chat template, up to where an answer would begin."""
    return f"{START}user\n{prompt}{END}\n{START}assistant\n"


def train_tokenizer(vocab_size: int, prompts: int = 20000) -> Tokenizer:
    """A tokenizer of at most `vocab_size` tokens, as many as the words of prompts make."""
    texts = [f"user\n{text}\nassistant\n" for text in captions(prompts)]
    return byte_level_bpe(texts, vocab_size, (PAD, START, END))


def encoded(tokenizer: Tokenizer, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Tokens of the templated prompts, padded, int64 [B, 32], and which of them are no padding, bool [B, 32]. Raises
    ValueError for a prompt that is longer."""
    texts = [encoding.ids for encoding in tokenizer.encode_batch([templated(prompt) for prompt in prompts])]
    return padded_rows(prompts, texts, TEXT, tokenizer.token_to_id(PAD), done="read")
