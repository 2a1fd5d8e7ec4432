"""The built-in `translate`: it translates, and what it reads for a word is the word."""

import pytest

from ridgeline.core.checkpoint.source import BUILTIN
from ridgeline.engine import LLM, SamplingParams
from ridgeline.insight.trace.cross_attention import cross_attention
from ridgeline.insight.trace.token_candidates import tokens_of

GREEDY = SamplingParams(temperature=0.0, max_tokens=32)
LAYER = 1
MAX_BYTES = 12_000_000  # bytes of all its files


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("translate")


def test_sentences_and_their_ends(llm: LLM) -> None:
    told = llm.generate(["I am happy.", "Where is my book?"], GREEDY)
    assert [completion.choices[0].text for completion in told] == ["Je suis heureux.", "Où est mon livre ?"]
    assert all(completion.choices[0].finish == "stop" for completion in told)


def test_the_row_of_a_word_peaks_at_what_it_translates(llm: LLM) -> None:
    """Of a sentence that it never saw: chat is read off cat, noir off black."""
    text = "The cat is black"
    (completion,) = llm.generate(text, GREEDY)
    written = tokens_of(llm.tokenizer, completion.choices[0].token_ids)
    ids = llm.encode(text)
    begun = llm.loaded.text_processor.decoder_prompt(ids)
    grid = cross_attention(llm.loaded.model, ids, begun, tokens_of(llm.tokenizer, ids), written)
    assert completion.choices[0].text == "Le chat est noir"
    peaks = {"Le": "The", " chat": " cat", " n": " bl", "oir": "ack"}  # noir and black are two tokens each
    pieces = [token.piece for token in written]
    assert pieces[:5] == ["Le", " chat", " est", " n", "oir"]
    for piece, read in peaks.items():
        row = grid.weights[LAYER][pieces.index(piece)]
        assert grid.sources[max(range(len(row)), key=lambda column: row[column])].piece == read


def test_it_is_as_small_as_it_says() -> None:
    assert sum(path.stat().st_size for path in (BUILTIN / "translate").iterdir()) <= MAX_BYTES
