"""Files whose vocabulary, normalizer, pre-tokenizer and decoder are not of one kind: text comes back as it was."""

import json
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tiny_tokenizers import TEXTS, byte_level, metaspace
from tokenizers import decoders, pre_tokenizers
from tokenizers.models import WordLevel

from ridgeline.core.text import Tokenizer, load_tokenizer
from ridgeline.core.text.detokenizer import Detokenizer

State = dict[str, Any]
BYTES: State = json.loads(byte_level([("t", "h"), ("th", "e"), ("\u0120", "the")]).to_str())
SPACES: dict[str, State] = {scheme: json.loads(metaspace(scheme).to_str()) for scheme in ("first", "never", "legacy")}
DECODERS: dict[str, State | None] = {
    "none": None,
    "byte-level": BYTES["decoder"],
    "SentencePiece": SPACES["first"]["decoder"],
    "Metaspace": json.loads(decoders.Metaspace().__getstate__()),
    "fuse": {"type": "Fuse"},
    "bytes alone": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]},
    "WordPiece": json.loads(decoders.WordPiece().__getstate__()),
}
BEFORE: dict[str, tuple[Any, Any]] = {
    "byte-level": (BYTES["normalizer"], BYTES["pre_tokenizer"]),
    "nothing": (None, None),
    "both": (SPACES["legacy"]["normalizer"], BYTES["pre_tokenizer"]),
    **{scheme: (state["normalizer"], state["pre_tokenizer"]) for scheme, state in SPACES.items()},
}


def loaded(folder: Path, state: State, **changes: Any) -> Tokenizer:
    """The tokenizer of a folder whose tokenizer.json has some parts of another."""
    (folder / "tokenizer.json").write_text(json.dumps(state | changes), encoding="utf-8")
    return load_tokenizer(folder)


def check_round_trip(tokenizer: Tokenizer, *, first_space: bool = True) -> None:
    """Assert that texts come back, whole and in a stream. first_space: whether a typed first space is kept."""
    for text in TEXTS:
        ids = tokenizer.encode(text, add_special=False)
        wanted = text if first_space else text.removeprefix(" ")
        assert tokenizer.decode(ids) in (wanted, unicodedata.normalize("NFC", wanted)), text
        stream = Detokenizer(tokenizer)
        assert "".join([*map(stream.push, ids), stream.flush()]) == tokenizer.decode(ids)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("before", BEFORE)
def test_byte_level_pieces(before: str, decoder: str, tmp_path: Path) -> None:
    """Whatever is around them (Mistral's tekken has SentencePiece's decoder; DeepSeek's distilled models, saved as
    Llama's, its normalizer too)."""
    normalizer, pre_tokenizer = BEFORE[before]
    tokenizer = loaded(tmp_path, BYTES, normalizer=normalizer, pre_tokenizer=pre_tokenizer, decoder=DECODERS[decoder])
    check_round_trip(tokenizer)
    assert bool(tokenizer.file_fault_note) == (before != "byte-level")
    assert tokenizer.token_bytes(tokenizer.encode("a the", add_special=False)[1]) == b" the"


@pytest.mark.parametrize("decoder", [name for name in DECODERS if name != "SentencePiece"])
@pytest.mark.parametrize("before", BEFORE)
def test_sentencepiece_pieces(before: str, decoder: str, tmp_path: Path) -> None:
    """Under a byte-level decoder, or none, or cut as bytes."""
    normalizer, pre_tokenizer = BEFORE[before]
    tokenizer = loaded(
        tmp_path, SPACES["first"], normalizer=normalizer, pre_tokenizer=pre_tokenizer, decoder=DECODERS[decoder]
    )
    check_round_trip(tokenizer, first_space=not tokenizer.strips_space or before in ("legacy", "both"))
    assert bool(tokenizer.file_fault_note) == (before in ("byte-level", "nothing", "both"))
    assert tokenizer.token_bytes(tokenizer.encode("athe the", add_special=False)[-1]) == b" the"


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_the_rule_that_was_lost_is_found_by_the_vocabulary(name: str, data_dir: Path, tmp_path: Path) -> None:
    """A released vocabulary saved with SentencePiece's stages and decoder: the ids are those of the release, and the
    text is what the library decodes with the release's own parts."""
    whole = load_tokenizer(data_dir / "tokenizers" / name)
    state = json.loads(whole._pipeline.to_str())  # type: ignore[attr-defined]
    again = loaded(tmp_path, state, **{part: SPACES["legacy"][part] for part in ("normalizer", "decoder")},
                   pre_tokenizer=None)  # fmt: skip
    assert again.file_fault_note
    for text in (*TEXTS, "In 1969, 12345 people; it's 3.14!\n\n  def f(x):\n\treturn x1"):
        composed = unicodedata.normalize("NFC", text)
        assert again.encode(composed) == whole.encode(composed), text
        assert again.decode(whole.encode(text)) == whole.decode(whole.encode(text))


def test_three_digits_a_piece(tmp_path: Path) -> None:
    """As Llama 3's vocabulary has them: longer numbers are cut at three."""
    pipeline = byte_level([("1", "2"), ("12", "3"), ("\u0120", "t")])
    tokenizer = loaded(tmp_path, json.loads(pipeline.to_str()), pre_tokenizer=None, normalizer=None)
    assert "Llama 3" in tokenizer.file_fault_note
    assert [tokenizer.printable_token(i) for i in tokenizer.encode("1231234")] == ["123", "123", "4"]


def test_words_without_a_decoder(tmp_path: Path) -> None:
    """As the library joins them: by spaces."""
    pipeline = tokenizers.Tokenizer(WordLevel({"one": 0, "two": 1, "[UNK]": 2}, unk_token="[UNK]"))
    pipeline.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = loaded(tmp_path, json.loads(pipeline.to_str()))
    assert tokenizer.decode([0, 1, 0]) == pipeline.decode([0, 1, 0]) == "one two one"


def test_words_that_are_cut_by_other_stages_are_refused(tmp_path: Path) -> None:
    """Nothing is known that would cut a text for them."""
    pipeline = tokenizers.Tokenizer(WordLevel({"a": 0, "\u0120b": 1, "\u0120c": 2}, unk_token="a"))
    pipeline.pre_tokenizer = pre_tokenizers.Metaspace()
    with pytest.raises(ValueError, match="original release") as refused:
        loaded(tmp_path, json.loads(pipeline.to_str()))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("kind", ["BYTES", "first", "never", "legacy"])
@pytest.mark.parametrize("tokenizer_class", ["LlamaTokenizerFast", "GPT2Tokenizer", "Qwen2Tokenizer", "T5Tokenizer"])
def test_the_class_that_a_folder_names_changes_nothing(kind: str, tokenizer_class: str, tmp_path: Path) -> None:
    """DeepSeek's byte-level files call themselves Llama's: tokenizer.json decides, as the library reads it."""
    state = BYTES if kind == "BYTES" else SPACES[kind]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": tokenizer_class}))
    tokenizer, library = loaded(tmp_path, state), tokenizers.Tokenizer.from_str(json.dumps(state))
    assert not tokenizer.file_fault_note
    for text in TEXTS:
        ids = library.encode(text).ids
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == library.decode(ids)


def test_a_tiktoken_file_is_named_as_one(tmp_path: Path) -> None:
    """Llama 3's releases have one under the name of SentencePiece's."""
    (tmp_path / "tokenizer.model").write_text("IQ== 0\nIg== 1\nIw== 2\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"tokenizer\.model holds tiktoken's pieces.*copy tokenizer\.json"):
        load_tokenizer(tmp_path)
