"""Rows of tokens: a prompt, the token that begins an image, and the image's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import Tensor

from zoo.digits.prompts import captions
from zoo.digits_ar.autoencoder import CODES
from zoo.tales import tokenizer as tales

PLACE, BEGIN, END = "<image_placeholder>", "<begin_of_image>", "<end_of_image>"
"""Tokens of Janus. The first and the last are of prompts with images in them."""
NO_TARGET = -100


def train_tokenizer(vocab_size: int, prompts: int = 20000) -> Tokenizer:
    """A tokenizer of at most `vocab_size` tokens, as many as the words of prompts make; it puts `<s>` before a text."""
    return tales.train_tokenizer(captions(prompts), vocab_size, (PLACE, BEGIN, END))


def rows_of(tokenizer: Tokenizer, prompts: Sequence[str], images_BN: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets of prompts and the tokens of their images, int64 [B, T] each, padded behind them, where no
    position sees it. Ids are those of image tokens, then those of text, moved on by CODES; targets are of image
    tokens, NO_TARGET elsewhere."""
    begin = tokenizer.token_to_id(BEGIN)
    texts = [[CODES + token for token in (*text.ids, begin)] for text in tokenizer.encode_batch(list(prompts))]
    length = max(map(len, texts)) + images_BN.shape[1] - 1
    inputs = torch.zeros(len(texts), length, dtype=torch.int64)
    targets = torch.full_like(inputs, NO_TARGET)
    for row, (text, image) in enumerate(zip(texts, images_BN, strict=True)):
        drawn = slice(len(text) - 1, len(text) - 1 + len(image))
        inputs[row, : drawn.stop] = torch.cat([torch.tensor(text), image[:-1]])
        targets[row, drawn] = image
    return inputs, targets
