"""Incremental text equals decoding at once, and never changes once released."""

import codecs
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import TEXTS, byte_level, metaspace

from ridgeline.core.text import Detokenizer, Tokenizer, TokenOffsets, load_tokenizer
from ridgeline.core.text.byte_tokenizer import ByteTokenizer

KINDS = ("byte", "first", "never", "legacy", "bytes")


@pytest.fixture(scope="module")
def tokenizers(make_folder: Callable[..., Path]) -> dict[str, Tokenizer]:
    made: dict[str, Tokenizer] = {
        kind: load_tokenizer(make_folder(metaspace(kind), ["<unk>"], ["<think>", "née"])) for kind in KINDS[1:4]
    }
    return {**made, "byte": load_tokenizer(make_folder(byte_level(), [], ["<think>", "née"])), "bytes": ByteTokenizer()}


def released(tokenizer: Tokenizer, ids: list[int], skip_special: bool = True) -> list[str]:
    detokenizer = Detokenizer(tokenizer, skip_special=skip_special)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@given(kind=st.sampled_from(KINDS), data=st.data())
def test_random_ids(tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject) -> None:
    """Any ids, half characters and ids outside the vocabulary included; every prefix released is final."""
    tokenizer = tokenizers[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30))
    skip = data.draw(st.booleans())
    texts = released(tokenizer, ids, skip)
    whole = tokenizer.decode(ids, skip_special=skip)
    assert "".join(texts) == whole
    for count in range(len(ids)):
        assert whole.startswith("".join(texts[: count + 1]))


@given(kind=st.sampled_from(KINDS), text=st.text(max_size=40))
def test_random_text(tokenizers: dict[str, Tokenizer], kind: str, text: str) -> None:
    """Valid text never shows a replacement character that was not typed."""
    tokenizer = tokenizers[kind]
    texts = released(tokenizer, tokenizer.encode(text, parse_special=False))
    assert all("\ufffd" not in piece for piece in texts) or "\ufffd" in text
    if kind == "bytes":
        assert "".join(texts) == text


def test_character_over_several_tokens() -> None:
    llama = "🦙".encode()
    assert released(ByteTokenizer(), [*llama, 33]) == ["", "", "", "🦙", "!", ""]
    assert released(ByteTokenizer(), [*llama[:2], 33]) == ["", "", "\ufffd!", ""]
    assert released(ByteTokenizer(), [*llama[:2]]) == ["", "", "\ufffd"]


@given(kind=st.sampled_from(KINDS), data=st.data())
def test_a_token_is_where_its_first_byte_is(tokenizers: dict[str, Tokenizer], kind: str, data: st.DataObject) -> None:
    """Brute force: the last character of the text up to that byte, which is a part of what the whole text has there."""
    tokenizer = tokenizers[kind]
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30))
    skip, continues = data.draw(st.booleans()), data.draw(st.booleans())
    offsets = TokenOffsets(tokenizer, skip_special=skip, continues=continues)
    places = [offsets.push(token) for token in ids]
    whole = b"".join(tokenizer.token_bytes(token, skip) for token in ids).decode("utf-8", "replace")
    dropped = tokenizer.strips_space and not continues and whole.startswith(" ")
    before = b""
    for place, token in zip(places, ids, strict=True):
        own = tokenizer.token_bytes(token, skip)
        if own:
            at = len((before + own[:1]).decode("utf-8", "replace")) - 1
        else:
            at = len(codecs.getincrementaldecoder("utf-8")("replace").decode(before))
        assert place == max(0, at - dropped)
        before += own
    assert places == sorted(places)


def test_tokens_of_one_character_have_its_place() -> None:
    offsets = TokenOffsets(ByteTokenizer())
    assert [offsets.push(byte) for byte in "a🦙é!".encode()] == [0, 1, 1, 1, 1, 2, 2, 3]
    offsets = TokenOffsets(ByteTokenizer())
    assert [offsets.push(byte) for byte in b"\xe2\x82a\xff\xffb\xf0"] == [0, 0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("name", ["tokenizers/qwen2", "tokenizers/t5", "models/stories260K"])
def test_real_vocabularies(data_dir: Path, name: str) -> None:
    tokenizer = load_tokenizer(data_dir / name)
    for text in TEXTS:
        ids = tokenizer.encode(text)
        assert "".join(released(tokenizer, ids)) == tokenizer.decode(ids)
