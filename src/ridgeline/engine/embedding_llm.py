"""Embeddings: texts in, vectors out; or, of a model that reads a query and a document together, scores.

`EmbeddingLLM("folder").embed(["a cat", "a dog"])`. The engine runs as many texts a step as its positions hold.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from ridgeline.core.checkpoint.embedding_config import EmbeddingConfig
from ridgeline.core.checkpoint.weight_loader import Progress
from ridgeline.core.models import ModelRefused
from ridgeline.engine.bounds import numbered
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.request import FinishReason
from ridgeline.engine.setup import load_with_threads
from ridgeline.engine.text_processor import TextProcessor
from ridgeline.engine.worker.engine_messages import VectorInfo

NO_VECTORS = (
    "generates text, and its folder does not say how it embeds one (no modules.json); give an embedding model, or copy "
    "modules.json and 1_Pooling of the release beside the weights"
)
_COMMON: Mapping[str, tuple[str, ...]] = {"document": ("document", "passage", "corpus"), "query": ("query",)}
"""Names that models have for the prompts of the two sides of a search."""


@dataclass(frozen=True, slots=True)
class Vector:
    """What a text became: fp32 [width], and how many tokens it had."""

    values: NDArray[np.float32]
    tokens: int


def prompt_text(said: EmbeddingConfig | None, name: str | None) -> str:
    """What goes before a text: the prompt of this name, `query` or `document` also where the model has another name for
    it; by default the one that the model takes. Raises ValueError for a name that it does not have.
    """
    prompts = said.prompts if said is not None else {}
    if name is None:
        default = said.default_prompt if said is not None else None
        return "" if default is None else prompts[default]
    found = next((prompts[each] for each in (name, *_COMMON.get(name, ())) if each in prompts), None)
    if found is None and name == "document" and "query" in prompts:
        return ""  # a model that asks for nothing before documents
    if found is None:
        known = f"it has {', '.join(map(repr, prompts))}" if prompts else "it has none: give no prompt"
        raise ValueError(f"the model has no prompt {name!r}; {known}")
    return found


def text_ids(texts: TextProcessor, text: str, context: int, prompt: str = "", *, add_special: bool = True) -> list[int]:
    """Return the ids of a prompt and a text. Raises ValueError for a text that is empty or far beyond the context.

    add_special: Whether the tokenizer's own tokens (BOS, [CLS]) are added.
    """
    if not text:
        raise ValueError("the text is empty; give at least one character")
    whole = prompt + text
    if texts.embedding is not None and texts.embedding.lower:
        whole = whole.lower()
    texts.tokenizer.check_length(whole, context)
    return texts.tokenizer.encode(whole, add_special=add_special, parse_special=False)


def pair_ids(texts: TextProcessor, info: VectorInfo, query: str, document: str, context: int) -> list[int]:
    """Ids of a query and a document that are read together, those of the second moved on where the model tells the two
    apart. Raises ValueError.
    """
    if not query or not document:
        raise ValueError(f"the {'document' if query else 'query'} is empty; give at least one character")
    for text in (query, document):
        texts.tokenizer.check_length(text, context)
    ids, types = texts.tokenizer.encode_pair(query, document)
    apart = info.vocabulary if info.segments > 1 else 0
    return [token + apart * of for token, of in zip(ids, types, strict=True)]


def relevance(info: VectorInfo, values: NDArray[np.float32]) -> float:
    """The score of a document. Raises ValueError where the model gives none."""
    check_scores(info)
    score = float(values[0])
    if not info.squashed:
        return score
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))


def check_scores(info: VectorInfo | None) -> None:
    """Raises ValueError for a model that gives no score of a query and a document."""
    if info is None or not info.labels:
        raise ValueError("the model gives no scores of a query and a document; give a reranker (one label)")
    if info.labels != 1:
        raise ValueError(f"the model tells {info.labels} labels apart; a reranker has one: its score is the relevance")


def check_embeds(info: VectorInfo | None) -> None:
    """Raises ValueError for a model that gives no vectors."""
    if info is None:
        raise ValueError(f"the model {NO_VECTORS}")
    if info.labels:
        raise ValueError("the model gives scores of labels, no vectors; give an embedding model")


def cut(said: EmbeddingConfig | None, values: NDArray[np.float32], dimensions: int | None) -> NDArray[np.float32]:
    """The first entries of a vector, made one of length 1 again (Kusupati et al., arXiv:2205.13147); the vector itself
    for None. Raises ValueError for a length that the model does not say it may have.
    """
    if dimensions is None or dimensions == len(values):
        return values
    cuts = said.cuts if said is not None else None
    if cuts is None:
        raise ValueError(
            f"the model gives {len(values)} dimensions, and its config does not say that they may be fewer "
            "(is_matryoshka, matryoshka_dimensions); leave dimensions out"
        )
    if not 1 <= dimensions <= len(values) or (cuts and dimensions not in cuts):
        allowed = f"one of {', '.join(map(str, cuts))}, {len(values)}" if cuts else f"1 to {len(values)}"
        raise ValueError(f"dimensions is {dimensions}; the model gives {allowed}")
    shorter = values[:dimensions]
    return shorter / max(float(np.linalg.norm(shorter)), 1e-12)


def similarity(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """The cosine of the angle between two vectors."""
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(one @ other) / max(lengths, 1e-12)


class EmbeddingLLM:
    """A model that embeds texts, or scores documents, in the caller's thread. One caller at a time."""

    def __init__(
        self,
        model: str,
        settings: EngineSettings | None = None,
        *,
        dummy_weights: bool = False,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """As `LLM`. Raises ModelRefused, also for a model that generates text."""
        self.name = model
        self.loaded, self.threads = load_with_threads(
            model, settings, dummy_weights=dummy_weights, threads=threads, progress=progress
        )
        info = self.loaded.vectors
        if info is None:
            raise ModelRefused(f"{model} {NO_VECTORS}")
        self.info, self.texts, self.engine = info, self.loaded.texts, self.loaded.engine
        torch.set_num_threads(self.threads)

    @override
    def __repr__(self) -> str:
        gives = f"scores of {self.info.labels} labels" if self.info.labels else f"{self.info.width} dimensions"
        return f"Embeddings({self.name!r}, {gives}, context {self.engine.context:,}, threads {self.threads})"

    def embed(
        self, texts: Sequence[str], prompt: str | None = None, *, dimensions: int | None = None, what: str = "text"
    ) -> list[Vector]:
        """A vector for each text. prompt: the name of one of the model's, for all; dimensions: as `cut`; what: they are
        called in errors. Raises ValueError for what cannot run, before anything does, and for a text that failed.
        """
        check_embeds(self.info)
        before, said = prompt_text(self.texts.embedding, prompt), self.texts.embedding
        cut(said, np.zeros(self.info.width, np.float32), dimensions)
        prompts = []
        for place, text in enumerate(texts):
            with numbered(what, place, len(texts)):
                prompts.append(text_ids(self.texts, text, self.engine.context, before))
        vectors = self.run(prompts, what)
        return [Vector(cut(said, vector.values, dimensions), vector.tokens) for vector in vectors]

    def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """How well each document answers a query, in the same order. Raises ValueError as `embed`."""
        check_scores(self.info)
        pairs = []
        for place, text in enumerate(documents):
            with numbered("document", place, len(documents)):
                pairs.append(pair_ids(self.texts, self.info, query, text, self.engine.context))
        return [relevance(self.info, vector.values) for vector in self.run(pairs, "document")]

    def run(self, prompts: Sequence[Sequence[int]], what: str = "text") -> list[Vector]:
        """What the model gives for prompts of ids, as many a step as it holds. what: they are called in errors. Raises
        ValueError.
        """
        added: dict[int, int] = {}
        try:
            for place, prompt in enumerate(prompts):
                with numbered(what, place, len(prompts)):
                    added[self.engine.add(GenerationRequest(prompt))] = place
            found: dict[int, Vector] = {}
            while self.engine.has_work:
                for event in self.engine.step():
                    place = added[event.request]
                    if event.finish is FinishReason.ERROR or event.hidden is None:
                        raise ValueError(f"{what} {place + 1} of {len(prompts)} failed: {event.error}")
                    found[place] = Vector(event.hidden[0], len(prompts[place]))
        except BaseException:
            for request in added:
                self.engine.abort(request)
            raise
        return [found[place] for place in range(len(prompts))]
