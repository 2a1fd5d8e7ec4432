"""all-MiniLM-L6-v2 as sentence-transformers saves it, against sentence-transformers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest

from real.packages import MINILM
from real.texts import ALICE, AWKWARD, PROMPTS
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.embedding_llm import EmbeddingLLM, similarity
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import load_engine
from ridgeline.server.admission import RequestQueue
from ridgeline.server.lifecycle import build_service
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running, running

pytestmark = pytest.mark.real

TOLERANCE = 2e-6  # of vectors of length 1
TEXTS = [text for text in (*AWKWARD, *PROMPTS, *ALICE.split(". ")) if text]
PAIRS = (
    ("A man is eating food.", "A man is eating a piece of bread.", "A woman is playing the violin."),
    ("How do I reset my password?", "I forgot my login credentials.", "The weather is nice today."),
    ("The stock market fell sharply.", "Shares lost much of their value.", "He bakes bread every Sunday."),
)
"""Triples of a sentence, one that means nearly the same, and one that does not."""


@pytest.fixture(scope="module")
def folder() -> Path:
    return MINILM.find()


@pytest.fixture(scope="module")
def theirs(folder: Path) -> Any:
    """The model in sentence-transformers."""
    library = pytest.importorskip("sentence_transformers", reason="make real installs sentence-transformers")
    return library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)


@pytest.fixture(scope="module")
def embedder(folder: Path) -> EmbeddingLLM:
    return EmbeddingLLM(str(folder), threads=1)


def test_vectors_are_sentence_transformers(theirs: Any, embedder: EmbeddingLLM) -> None:
    """Sentences and awkward texts run all at once."""
    expected = theirs.encode(TEXTS, batch_size=16)
    found = embedder.embed(TEXTS)
    assert len(found) == len(expected) > 30
    for text, vector, wanted in zip(TEXTS, found, expected, strict=True):
        assert np.abs(vector.values - wanted).max() <= TOLERANCE, text
        assert vector.tokens == len(theirs.tokenizer(text)["input_ids"]), text
        assert float(np.linalg.norm(vector.values)) == pytest.approx(1, abs=1e-5)


def test_steps_of_any_size_give_the_same_vectors(theirs: Any, folder: Path) -> None:
    small = EmbeddingLLM(str(folder), EngineSettings(limits=Limits(tokens=64, requests=3)), threads=1)
    sentences = ALICE.split(". ")[:6] + TEXTS[:6]
    for vector, wanted in zip(small.embed(sentences), theirs.encode(sentences), strict=True):
        assert np.abs(vector.values - wanted).max() <= TOLERANCE
    assert small.engine.stats.steps > 3


def test_similar_sentences_are_near(theirs: Any, embedder: EmbeddingLLM) -> None:
    for sentence, near, far in PAIRS:
        one, two, three = (vector.values for vector in embedder.embed([sentence, near, far]))
        assert similarity(one, two) > 0.4 > similarity(one, three)
        wanted = theirs.similarity(theirs.encode(sentence), theirs.encode(near))
        assert similarity(one, two) == pytest.approx(float(wanted), abs=1e-5)


def test_the_longest_text_is_whole_and_a_longer_one_is_refused(theirs: Any, embedder: EmbeddingLLM) -> None:
    """sentence-transformers cuts a text at 256 tokens without a word. Ours says so."""
    words = ALICE.split()
    tokens = [len(theirs.tokenizer.encode(" ".join(words[:count]))) for count in range(150, 260)]
    assert 256 in tokens
    count = 150 + tokens.index(256)
    (vector,) = embedder.embed([" ".join(words[:count])])
    assert np.abs(vector.values - theirs.encode(" ".join(words[:count]))).max() <= TOLERANCE
    with pytest.raises(ValueError, match=r"has 25\d tokens, but the model's context is 256: shorten"):
        embedder.embed([" ".join(words[: count + 1])])


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Running]:
    llm, settings = AsyncLLM(load_engine(str(folder))), ServerSettings(models=("minilm",))
    try:
        with running(build_service(llm, RequestQueue(llm.info, settings), settings), settings) as up:
            yield up
    finally:
        llm.close()


def test_openais_client_gets_the_same_vectors(theirs: Any, served: Running) -> None:
    """The client asks for base64 by itself, and is asked for numbers."""
    expected = theirs.encode(TEXTS)
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        for response in (
            client.embeddings.create(model="minilm", input=TEXTS),
            client.embeddings.create(model="minilm", input=TEXTS, encoding_format="float"),
        ):
            found = np.array([each.embedding for each in response.data])
            assert np.abs(found - expected).max() <= TOLERANCE
