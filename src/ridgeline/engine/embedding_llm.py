"""The engine for embeddings: texts in, vectors out; or scores, from a model that reads a query and a document together.

`EmbeddingLLM("folder").embed(["a cat", "a dog"])`. The engine runs as many texts in a step as its token budget allows.
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
    "generates text, and its folder does not define how to embed text (it has no modules.json); use an embedding "
    "model, or copy modules.json and 1_Pooling of the model's repository into the folder of the weights"
)
_COMMON: Mapping[str, tuple[str, ...]] = {"document": ("document", "passage", "corpus"), "query": ("query",)}
"""The common names of models' instruction prompts, for documents and for queries of a search."""


@dataclass(frozen=True, slots=True)
class Vector:
    """The embedding of a text, with the number of its tokens."""

    values: NDArray[np.float32]
    """The embedding of the text, fp32 [width]."""
    tokens: int
    """The number of tokens of the text."""


def prompt_text(embedding: EmbeddingConfig | None, name: str | None) -> str:
    """Return the instruction text that precedes a text to embed.

    Args:
        embedding: The embedding config of the model, if it has one.
        name: Name of the prompt. `query` and `document` also work if the model uses another name for them. None for the
            model's default.

    Raises:
        ValueError: If the model has no prompt of this name.
    """
    prompts = embedding.prompts if embedding is not None else {}
    if name is None:
        default = embedding.default_prompt if embedding is not None else None
        return "" if default is None else prompts[default]
    found = next((prompts[each] for each in (name, *_COMMON.get(name, ())) if each in prompts), None)
    if found is None and name == "document" and "query" in prompts:
        return ""  # this model uses no instruction before documents
    if found is None:
        known = (
            f"its prompts are {', '.join(map(repr, prompts))}" if prompts else "it has no prompts: leave the prompt out"
        )
        raise ValueError(f"the model has no prompt named {name!r}; {known}")
    return found


def text_ids(texts: TextProcessor, text: str, context: int, prompt: str = "", *, add_special: bool = True) -> list[int]:
    """Return the token ids of a prompt followed by a text.

    Args:
        texts: The text processor of the model.
        text: The text to embed.
        context: Maximum number of positions of a sequence.
        prompt: The text to put before it.
        add_special: Whether to add the tokenizer's own tokens (BOS, [CLS]).

    Raises:
        ValueError: If the text is empty or far longer than the context.
    """
    if not text:
        raise ValueError("the text is empty; give at least one character")
    whole = prompt + text
    if texts.embedding is not None and texts.embedding.lower:
        whole = whole.lower()
    texts.tokenizer.check_length(whole, context)
    return texts.tokenizer.encode(whole, add_special=add_special, parse_special=False)


def pair_ids(texts: TextProcessor, info: VectorInfo, query: str, document: str, context: int) -> list[int]:
    """Return the token ids of a query and a document that the model reads together.

    If the model distinguishes the two (token types), the ids of the document are shifted by the size of the vocabulary.

    Raises:
        ValueError: If either text is empty or far longer than the context.
    """
    if not query or not document:
        raise ValueError(f"the {'document' if query else 'query'} is empty; give at least one character")
    for text in (query, document):
        texts.tokenizer.check_length(text, context)
    ids, types = texts.tokenizer.encode_pair(query, document)
    apart = info.vocabulary if info.segments > 1 else 0
    return [token + apart * of for token, of in zip(ids, types, strict=True)]


def relevance(info: VectorInfo, values: NDArray[np.float32]) -> float:
    """Return the relevance score of a document, through a sigmoid if the model's config requires it.

    Raises:
        ValueError: If the model does not score documents.
    """
    check_scores(info)
    score = float(values[0])
    if not info.squashed:
        return score
    return 1 / (1 + math.exp(-score)) if score >= 0 else math.exp(score) / (1 + math.exp(score))


def check_scores(info: VectorInfo | None) -> None:
    """Check that a model scores a query and a document.

    Raises:
        ValueError: If it does not.
    """
    if info is None or not info.labels:
        raise ValueError("the model does not score a document for a query: use a reranker (a model with one label)")
    if info.labels != 1:
        raise ValueError(
            f"the model has {info.labels} labels: use a reranker, which has one label, whose score is the relevance"
        )


def check_embeds(info: VectorInfo | None) -> None:
    """Check that a model embeds texts.

    Raises:
        ValueError: If it does not.
    """
    if info is None:
        raise ValueError(f"the model {NO_VECTORS}")
    if info.labels:
        raise ValueError("the model outputs scores of labels, not embeddings: use an embedding model")


def truncate_dimensions(
    embedding: EmbeddingConfig | None, values: NDArray[np.float32], dimensions: int | None
) -> NDArray[np.float32]:
    """Shorten a vector to its first entries and normalise it to length 1 (Kusupati et al., arXiv:2205.13147).

    Args:
        embedding: The embedding config of the model, if it has one.
        values: The vector.
        dimensions: Number of entries; None to return the vector itself.

    Raises:
        ValueError: If the model's config does not permit this number of entries.
    """
    if dimensions is None or dimensions == len(values):
        return values
    cuts = embedding.cuts if embedding is not None else None
    if cuts is None:
        raise ValueError(
            f"the model outputs {len(values)} dimensions, and its config does not allow fewer (is_matryoshka, "
            "matryoshka_dimensions): leave dimensions out"
        )
    if not 1 <= dimensions <= len(values) or (cuts and dimensions not in cuts):
        allowed = f"one of {', '.join(map(str, cuts))}, {len(values)}" if cuts else f"1 to {len(values)}"
        raise ValueError(f"dimensions is {dimensions}: give {allowed}, which the model supports")
    shorter = values[:dimensions]
    return shorter / max(float(np.linalg.norm(shorter)), 1e-12)


def similarity(one: NDArray[np.float32], other: NDArray[np.float32]) -> float:
    """Return the cosine of the angle between two vectors."""
    lengths = float(np.linalg.norm(one)) * float(np.linalg.norm(other))
    return float(one @ other) / max(lengths, 1e-12)


class EmbeddingLLM:
    """A model that embeds texts or scores documents in the caller's thread, for one caller at a time."""

    def __init__(
        self,
        model: str,
        settings: EngineSettings | None = None,
        *,
        dummy_weights: bool = False,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Load a model, with the arguments of `LLM`.

        Raises:
            ModelRefused: If the model cannot be loaded, or generates text.
        """
        self.name = model
        self.loaded, self.threads = load_with_threads(
            model, settings, dummy_weights=dummy_weights, threads=threads, progress=progress
        )
        info = self.loaded.vectors
        if info is None:
            raise ModelRefused(f"{model} {NO_VECTORS}")
        self.info, self.texts, self.engine = info, self.loaded.text_processor, self.loaded.engine
        torch.set_num_threads(self.threads)

    @override
    def __repr__(self) -> str:
        gives = f"scores of {self.info.labels} labels" if self.info.labels else f"{self.info.width} dimensions"
        return f"Embeddings({self.name!r}, {gives}, context {self.engine.traits.context:,}, threads {self.threads})"

    def embed(
        self, texts: Sequence[str], prompt: str | None = None, *, dimensions: int | None = None, what: str = "text"
    ) -> list[Vector]:
        """Return a vector for each text.

        Args:
            texts: The texts.
            prompt: Name of one of the model's prompts, for all texts.
            dimensions: Number of entries of the vectors, as in `truncate_dimensions`.
            what: The word for a text in error messages.

        Raises:
            ValueError: If a text cannot run, before any does, or if one fails.
        """
        check_embeds(self.info)
        before, embedding = prompt_text(self.texts.embedding, prompt), self.texts.embedding
        truncate_dimensions(embedding, np.zeros(self.info.width, np.float32), dimensions)
        prompts = []
        for place, text in enumerate(texts):
            with numbered(what, place, len(texts)):
                prompts.append(text_ids(self.texts, text, self.engine.traits.context, before))
        vectors = self.run(prompts, what)
        return [Vector(truncate_dimensions(embedding, vector.values, dimensions), vector.tokens) for vector in vectors]

    def score(self, query: str, documents: Sequence[str]) -> list[float]:
        """Return the relevance of each document to a query, in the order of the documents.

        Raises:
            ValueError: If a document cannot run, before any does, or if one fails.
        """
        check_scores(self.info)
        pairs = []
        for place, text in enumerate(documents):
            with numbered("document", place, len(documents)):
                pairs.append(pair_ids(self.texts, self.info, query, text, self.engine.traits.context))
        return [relevance(self.info, vector.values) for vector in self.run(pairs, "document")]

    def run(self, prompts: Sequence[Sequence[int]], what: str = "text") -> list[Vector]:
        """Run prompts of token ids and return the vector of each, as many in a step as fit.

        Args:
            prompts: The token ids of each prompt.
            what: The word for a prompt in error messages.

        Raises:
            ValueError: If a prompt cannot run or fails; then all of them are aborted.
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
