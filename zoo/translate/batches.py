"""Pairs as batches of about one length, so that little of them is padding."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from zoo.translate.pairs import Pair
from zoo.translate.tokenizer import PAD

LONGEST = 64
"""Tokens of a source or a target to train on; longer pairs, a few in ten thousand, are left out."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Sources and targets int64 [sentences, positions], padded with `<pad>` after `</s>`."""

    source: Tensor
    target: Tensor

    @property
    def tokens(self) -> int:
        """Tokens of the targets, padding apart."""
        return int((self.target != PAD).sum())


def pad(rows: list[list[int]]) -> Tensor:
    """[rows, longest row]."""
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def encode_pairs(pairs: list[Pair], tokenizer: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """Token ids of both sides, each ended by `</s>`."""
    sources = tokenizer.encode_batch([pair.english for pair in pairs])
    targets = tokenizer.encode_batch([pair.french for pair in pairs])
    return [(s.ids, t.ids) for s, t in zip(sources, targets, strict=True)]


def batched(rows: list[tuple[list[int], list[int]]], tokens: int) -> Iterator[Batch]:
    """Rows as they come, in batches of at most so many positions, padding and both sides counted."""
    taken: list[tuple[list[int], list[int]]] = []
    width = [0, 0]
    for row in rows:
        wider = [max(w, len(side)) for w, side in zip(width, row, strict=True)]
        if taken and sum(wider) * (len(taken) + 1) > tokens:
            yield Batch(pad([s for s, _ in taken]), pad([t for _, t in taken]))
            taken, wider = [], [len(side) for side in row]
        taken.append(row)
        width = wider
    yield Batch(pad([s for s, _ in taken]), pad([t for _, t in taken]))


def passes(pairs: list[Pair], tokenizer: Tokenizer, tokens: int, seed: int) -> Iterator[tuple[int, Batch]]:
    """Batches for ever, with the number of the pass: shuffled, and a fifth of the pairs without their final stop."""
    drawn, number = random.Random(seed), 0
    told = encode_pairs(pairs, tokenizer), encode_pairs([pair.without_stop() for pair in pairs], tokenizer)
    while True:
        rows = [without if drawn.random() < 0.2 else whole for whole, without in zip(*told, strict=True)]
        rows = [row for row in rows if max(map(len, row)) <= LONGEST]
        drawn.shuffle(rows)
        rows.sort(key=lambda row: (len(row[0]), len(row[1])))  # stable: neighbours differ from pass to pass
        batches = list(batched(rows, tokens))
        drawn.shuffle(batches)
        for batch in batches:
            yield number, batch
        number += 1
