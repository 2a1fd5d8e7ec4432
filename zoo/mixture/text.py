"""Three sources that differ in language and time: children's stories, French sentences, Shakespeare."""

from __future__ import annotations

import random
import zipfile
from dataclasses import dataclass
from pathlib import Path

from zoo.tales.corpus import read_held_out
from zoo.tales.text import read_stories, remove_overlap

SENTENCES = 12  # of French a document: they are unconnected, and alone each would be too short to be packed
SPEECHES = 24  # of Shakespeare a document


@dataclass(frozen=True)
class Source:
    """Documents to train on, and others that are held back."""

    name: str
    training: list[str]
    held_back: list[str]


def read_french(archive: Path, pick: random.Random) -> list[str]:
    """The French sides of Tatoeba's English-French pairs (fra-eng.zip), each once, so many a document."""
    with zipfile.ZipFile(archive) as opened:
        lines = opened.read("fra.txt").decode("utf-8").splitlines()
    sentences = sorted({line.split("\t")[1] for line in lines if "\t" in line})
    pick.shuffle(sentences)
    return [" ".join(sentences[i : i + SENTENCES]) for i in range(0, len(sentences), SENTENCES)]


def read_plays(path: Path) -> list[str]:
    """Tiny Shakespeare in pieces of so many speeches."""
    speeches = path.read_text(encoding="utf-8").strip().split("\n\n")
    return ["\n\n".join(speeches[i : i + SPEECHES]) for i in range(0, len(speeches), SPEECHES)]


def read_sources(data: Path, french: Path, held_out: Path, held_back: int = 24) -> tuple[Source, ...]:
    """The three; stories close to one of `held_out` are left out."""
    pick = random.Random(0)
    stories = remove_overlap(read_stories(data / "tinystories-4MB.txt", []), read_held_out(held_out))
    documents = {
        "stories": stories,
        "French": read_french(french, pick),
        "Shakespeare": read_plays(data / "tinyshakespeare.txt"),
    }
    for texts in documents.values():
        pick.shuffle(texts)
    return tuple(Source(name, texts[held_back:], texts[:held_back]) for name, texts in documents.items())
