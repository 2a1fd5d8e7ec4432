"""The byte-level BPE of `digits-video`, trained on its prompts, laid out as T5's: `</s>` ends every text."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from tokenizers import Tokenizer
from torch import Tensor

from zoo.bpe import padded_rows
from zoo.digits_video.data import DIRECTIONS
from zoo.digits_video.model import TEXT
from zoo.digits_video.prompts import caption
from zoo.translate.tokenizer import PAD, train_tokenizer


def tokenizer_of_prompts(vocab_size: int, prompts: int = 20000) -> Tokenizer:
    """A tokenizer of at most `vocab_size` tokens, as many as the words of prompts make."""
    random = Random(0)
    texts = (caption(random, random.randrange(10), random.choice(list(DIRECTIONS))) for _ in range(prompts))
    return train_tokenizer(texts, vocab_size)


def encoded(tokenizer: Tokenizer, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Tokens of prompts, padded, int64 [B, 32], and which of them are no padding, bool [B, 32]. Raises ValueError for a
    prompt that is longer."""
    texts = [encoding.ids for encoding in tokenizer.encode_batch(list(prompts))]
    return padded_rows(prompts, texts, TEXT, PAD, done="trained on")
