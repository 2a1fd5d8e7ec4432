"""Reasoning sections: tags as tokens and as text, whole or split, open in the prompt or not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level

from ridgeline.core.text import Detokenizer, ReasoningSplitter, Tokenizer, load_tokenizer, tags_of
from ridgeline.core.text.byte_tokenizer import ByteTokenizer

SPELLED = ByteTokenizer()


@pytest.fixture(scope="module", params=["visible", "special"])
def tagged(request: pytest.FixtureRequest, make_folder: Callable[..., Path]) -> Tokenizer:
    """Tags are single tokens, written in the output (Qwen3, DeepSeek) or special."""
    tags = ["<think>", "</think>"]
    visible = request.param == "visible"
    return load_tokenizer(make_folder(byte_level(), [] if visible else tags, tags if visible else []))


def split(tokenizer: Tokenizer, text: str, prompt: str = "") -> tuple[str, str, ReasoningSplitter]:
    """(reasoning, answer) of a generated text, after checking that no half tag was shown."""
    ids = tokenizer.encode(text, add_special=False)
    return split_ids(tokenizer, ids, tokenizer.encode(prompt, add_special=False))


def split_ids(tokenizer: Tokenizer, ids: list[int], prompt: list[int]) -> tuple[str, str, ReasoningSplitter]:
    reasoning, detokenizer = ReasoningSplitter(tokenizer, prompt), Detokenizer(tokenizer)
    parts = [reasoning.push(i, detokenizer.push(i)) for i in ids]
    parts.append(reasoning.finish(detokenizer.flush()))
    assert reasoning.reasoning_tokens + reasoning.response_tokens == len(ids)
    return "".join(part.reasoning for part in parts), "".join(part.response for part in parts), reasoning


CASES = [
    ("<think>\nhm, tea\n</think>\n\nMilk.\n", "", "hm, tea", "Milk.\n"),
    ("hm\n\nstill</think>\n\nMilk.", "user<think>\n", "hm\n\nstill", "Milk."),
    ("Milk.", "<think>\n\n</think>\n\n", "", "Milk."),
    ("Milk without thought", "", "", "Milk without thought"),
    ("\n\n<think>hm", "", "hm", ""),
    ("<think></think>", "", "", ""),
    ("", "<think>", "", ""),
    ("hm <thi", "<think>", "hm <thi", ""),
    ("<thi", "", "", "<thi"),
    ("one\n\n\n", "<think>", "one", ""),
]


@pytest.mark.parametrize(("text", "prompt", "reasoning", "answer"), CASES)
def test_sections(tagged: Tokenizer, text: str, prompt: str, reasoning: str, answer: str) -> None:
    for tokenizer in (tagged, SPELLED):
        thought, said, _ = split(tokenizer, text, prompt)
        assert thought == reasoning
        # Line breaks before an opening tag are answer where the tag is a token, since none may follow.
        assert said.lstrip("\n") == answer.lstrip("\n")


def test_half_a_closing_tag_at_the_end_is_dropped_where_tags_are_text(tagged: Tokenizer) -> None:
    # The response was cut inside the tag. Where the tag is a token, these characters are ordinary text.
    assert split(tagged, "hm </thi", "<think>")[0] == "hm </thi"
    assert split(SPELLED, "hm </thi", "<think>")[0] == "hm "


def test_token_counts(tagged: Tokenizer) -> None:
    _, _, by_id = split(tagged, "<think>ab</think>cde")
    assert (by_id.reasoning_tokens, by_id.response_tokens) == (4, 3)
    _, _, by_text = split(SPELLED, "<think>ab</think>cde")
    assert (by_text.reasoning_tokens, by_text.response_tokens) == (len("<think>ab</think>"), 3)
    assert not by_text.inside


def test_a_spelled_tag_is_text_where_the_tag_is_a_token(tagged: Tokenizer) -> None:
    ids = tagged.encode("<think>a</think>b", add_special=False, parse_special=False)
    assert split_ids(tagged, ids, [])[:2] == ("", "<think>a</think>b")


def test_sections_may_reopen_by_token(tagged: Tokenizer) -> None:
    thought, said, reasoning = split(tagged, "<think>a</think>b<think>c</think>d")
    assert (thought, said) == ("ac", "bd")
    assert not reasoning.inside


def test_text_tag_counts_only_at_the_start() -> None:
    """An answer about the tag is no thought; nor is a tag typed somewhere in the prompt."""
    assert split(SPELLED, "The tag <think> opens.")[:2] == ("", "The tag <think> opens.")
    assert split(SPELLED, "b</think>", "what is <think> for?")[:2] == ("", "b</think>")


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "a", "\n", " ", "é"]), max_size=8),
    st.booleans(),
)
def test_text_tags_equal_a_split_of_the_whole(parts: list[str], opened: bool) -> None:
    """Streamed byte by byte, the sections are those of splitting the finished text once."""
    text = "".join(parts)
    thought, said, _ = split(SPELLED, text, "<think>" if opened else "")
    begun = text.lstrip()
    if not opened and not begun.startswith("<think>"):
        assert (thought, said) == ("", text)
        return
    body, close, rest = (text if opened else begun.removeprefix("<think>")).partition("</think>")
    half = max(size for size in range(len("</think>")) if body.endswith("</think>"[:size]))
    assert thought == (body if close else body[: len(body) - half]).strip("\n")
    assert said == (rest.lstrip("\n") if close else "")


def test_tags_of() -> None:
    assert tags_of("{{ '<think>\\n' }}") == ("<think>", "</think>")
    assert tags_of("{%- set t = '<seed:think>' %}") == ("<seed:think>", "</seed:think>")
    assert tags_of("{{ messages }}") is None
