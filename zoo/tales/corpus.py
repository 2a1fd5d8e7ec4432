"""The mixture as training rows: documents tokenized, packed whole into rows of the context length, drawn by share.

A document always starts with `<s>`, as a prompt will; rows hold whole documents, so nothing is learned about cut ones.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor

from zoo.tales.text import read_classics, read_stories, remove_overlap
from zoo.tales.tokenizer import ends

IGNORED = -100


@dataclass(frozen=True)
class Corpus:
    """The three sources as text; `validation` is cut from the mended stories."""

    stories: list[str]
    sampled: list[str]
    classics: list[str]
    validation: list[str]

    def facts(self) -> dict[str, int | str]:
        """Counts and sizes for the model card."""
        sources = {"stories": self.stories, "sampled": self.sampled, "classics": self.classics}
        sizes = {f"{name}_mb": f"{sum(map(len, texts)) / 1e6:.1f}" for name, texts in sources.items()}
        return {**{name: len(texts) for name, texts in sources.items()}, **sizes, "validation": len(self.validation)}


def read_held_out(path: Path) -> list[str]:
    """The stories of a file that separates them by `<|endoftext|>`."""
    return [story.strip() for story in path.read_text(encoding="utf-8").split("<|endoftext|>") if story.strip()]


def read_sampled(path: Path) -> list[str]:
    """Stories of a JSON-lines file; a last line still being written is left out."""
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def read_corpus(data: Path, sampled: Path, held_out: Path, validation: int = 64) -> Corpus:
    """Mend and gather everything; stories close to a held-out one are dropped from every source."""
    known = read_held_out(held_out)
    drawn = read_sampled(sampled)
    stories = remove_overlap(read_stories(data / "tinystories-4MB.txt", drawn), known)
    random.Random(0).shuffle(stories)
    return Corpus(
        stories=stories[validation:],
        sampled=remove_overlap(drawn, known),
        classics=read_classics(data / "classic-books"),
        validation=stories[:validation],
    )


def documents(texts: list[str], tokenizer: Tokenizer, context: int) -> list[list[int]]:
    """Token lists of at most `context + 1`; longer texts are cut between paragraphs, and only their start has `<s>`."""
    bos, eos = ends(tokenizer)
    out = []
    for text in texts:
        paragraphs = text.split("\n")
        encoded = tokenizer.encode_batch(
            [p + "\n" for p in paragraphs[:-1]] + [paragraphs[-1]], add_special_tokens=False
        )
        piece = [bos]
        for ids in (e.ids for e in encoded):
            if len(piece) + len(ids) > context and len(piece) > 1:
                out.append(piece)
                piece = []
            piece = piece + ids[: context - 1]
        out.append([*piece, eos])
    return out


def pack(pieces: list[list[int]], context: int) -> Iterator[tuple[list[int], list[int]]]:
    """Rows of inputs and targets, `context` long; each piece goes to the fullest of some open rows that can take it."""
    rows: list[list[list[int]]] = []
    sizes: list[int] = []
    for piece in pieces:
        fitting = [i for i, size in enumerate(sizes) if size + len(piece) - 1 <= context]
        if fitting:
            best = max(fitting, key=sizes.__getitem__)
            rows[best].append(piece)
            sizes[best] += len(piece) - 1
        else:
            rows.append([piece])
            sizes.append(len(piece) - 1)
        fullest = max(range(len(sizes)), key=sizes.__getitem__)
        if len(rows) > 24 or sizes[fullest] > context - 8:
            sizes.pop(fullest)
            yield row_of(rows.pop(fullest), context)
    yield from (row_of(row, context) for row in rows)


def row_of(pieces: list[list[int]], context: int) -> tuple[list[int], list[int]]:
    """One row of inputs and targets; no target crosses from a piece into the next."""
    inputs = [token for piece in pieces for token in piece[:-1]]
    targets = [token for piece in pieces for token in piece[1:]]
    missing = context - len(inputs)
    return inputs + [0] * missing, targets + [IGNORED] * missing


class Stream:
    """Endless rows of one source, shuffled anew in each pass; texts are read again, as a sampler may add to them."""

    def __init__(self, texts: Callable[[], list[str]], tokenizer: Tokenizer, context: int, seed: int) -> None:
        self.texts, self.tokenizer, self.context = texts, tokenizer, context
        self.random = random.Random(seed)
        self.passes = 0
        self.rows = self.endless()

    def endless(self) -> Iterator[tuple[list[int], list[int]]]:
        """Pass after pass over the source."""
        while True:
            pieces = documents(self.texts(), self.tokenizer, self.context)
            self.random.shuffle(pieces)
            yield from pack(pieces, self.context)
            self.passes += 1


class Mixture:
    """Batches whose rows come from several streams by shares that may move as training progresses."""

    def __init__(self, streams: list[Stream], seed: int) -> None:
        self.streams = streams
        self.random = random.Random(seed)

    def batch(self, rows: int, shares: tuple[float, ...]) -> tuple[Tensor, Tensor]:
        """Inputs and targets [rows, context]."""
        chosen = self.random.choices(self.streams, weights=shares, k=rows)
        inputs, targets = zip(*(next(stream.rows) for stream in chosen), strict=True)
        return torch.tensor(inputs), torch.tensor(targets)
