"""Byte-level BPE, trained on the text that a model will read, and its files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor


def byte_level_bpe(texts: Iterable[str], vocab_size: int, special: tuple[str, ...]) -> Tokenizer:
    """A tokenizer of exactly `vocab_size` tokens, of which the special ones are the first. The caller says what goes
    around a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(token, special=True) for token in special],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def padded_rows(
    prompts: Sequence[str], ids: Sequence[Sequence[int]], length: int, padding: int, *, done: str
) -> tuple[Tensor, Tensor]:
    """Token ids of prompts, padded behind them, int64 [B, length], and which of them are no padding, bool [B, length].
    Raises ValueError naming the longest prompt where it is longer. done: what is done with as many."""
    counts = [len(each) for each in ids]
    if max(counts) > length:
        raise ValueError(f"{prompts[counts.index(max(counts))]!r} is {max(counts)} tokens; at most {length} are {done}")
    tokens = torch.tensor([[*each, *[padding] * (length - len(each))] for each in ids])
    return tokens, torch.arange(length) < torch.tensor(counts)[:, None]


def save_tokenizer(tokenizer: Tokenizer, folder: Path, longest: int, **special: str) -> None:
    """tokenizer.json and the tokenizer_config.json that transformers reads beside it. special: tokens by their role."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "model_max_length": longest,
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
