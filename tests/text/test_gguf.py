"""Tokenizers of GGUF metadata against the vocabularies that it is made of, as their own files are read."""

import json
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from tiny_tokenizers import TEXTS
from transformers.convert_slow_tokenizer import TikTokenConverter

from ridgeline.core.text import load_tokenizer
from ridgeline.core.text.gguf_tokenizer import PRE_TOKENIZERS, read_gguf_tokenizer

SOURCE = Path("model.gguf")


def byte_level_metadata(folder: Path, pre: str) -> dict[str, Any]:
    """What a converter writes of vocab.json and merges.txt; the added tokens of tokenizer_config.json are literal."""
    vocabulary: dict[str, int] = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    merges = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    config = folder / "tokenizer_config.json"
    added = json.loads(config.read_text(encoding="utf-8"))["added_tokens_decoder"] if config.exists() else {}
    special = {row["content"]: int(index) for index, row in added.items()}
    vocabulary |= special
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    end = vocabulary["<|endoftext|>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, "[PAD0]"],
        "tokenizer.ggml.token_type": [*(3 if token in special or token == tokens[end] else 1 for token in tokens), 5],
        "tokenizer.ggml.merges": [merge for merge in merges if merge and not merge.startswith("#version")],
        "tokenizer.ggml.eos_token_id": end,
    }


@pytest.mark.parametrize(("name", "pre"), [("gpt-2", "gpt-2"), ("qwen2", "qwen2")])
def test_published_vectors(data_dir: Path, name: str, pre: str) -> None:
    """llama.cpp's tokenization tests, whose vocabularies are GGUF's."""
    folder = data_dir / "tokenizers"
    inputs = (folder / f"vectors/{name}.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")[:-1]
    outputs = (folder / f"vectors/{name}.out").read_text(encoding="utf-8").split("\n")[:-1]
    metadata = byte_level_metadata(folder / name.replace("gpt-2", "gpt2"), pre)
    tokenizer = read_gguf_tokenizer(metadata, SOURCE)
    assert len(inputs) == len(outputs) == 46
    for text, ids in zip(inputs, outputs, strict=True):
        assert tokenizer.encode(text) == [int(i) for i in ids.split()], text
    assert len(tokenizer.encode("[PAD0]")) > 1, "what is unused is text"


def sentencepiece_metadata(path: Path) -> dict[str, Any]:
    """What a converter writes of a SentencePiece model."""
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = range(model.vocab_size())
    kinds = ((model.is_unknown, 2), (model.is_control, 3), (model.is_unused, 5), (model.is_byte, 6))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(index) for index in ids],
        "tokenizer.ggml.scores": [model.get_score(index) for index in ids],
        "tokenizer.ggml.token_type": [next((kind for is_it, kind in kinds if is_it(index)), 1) for index in ids],
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
    }


def test_pieces_are_the_model_again(data_dir: Path) -> None:
    path = data_dir / "tokenizers/mistral/tokenizer.model.v1"
    plain, metadata = load_tokenizer(path), sentencepiece_metadata(path)
    tokenizer = read_gguf_tokenizer(metadata, SOURCE)
    for text in TEXTS:
        ids = plain.encode(text)
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.encode(text, parse_special=False) == plain.encode(text, parse_special=False), text
        assert tokenizer.decode(ids) == plain.decode(ids), text
    assert (tokenizer.bos_id, tokenizer.eos_ids, tokenizer.prefix) == (1, (2,), (1,))
    few = {key: value[:900] if isinstance(value, list) else value for key, value in metadata.items()}
    bare = read_gguf_tokenizer({**few, "tokenizer.ggml.add_bos_token": False}, SOURCE)
    assert bare.prefix == ()
    unspaced = read_gguf_tokenizer({**few, "tokenizer.ggml.add_space_prefix": False}, SOURCE)
    assert unspaced.decode(unspaced.encode("a b")) == "a b"
    assert unspaced.encode("ab") != bare.encode("ab")


def test_llama_3_is_cut_as_its_release_says() -> None:
    assert PRE_TOKENIZERS["llama-bpe"] == TikTokenConverter().pattern


TINY: dict[str, Any] = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.tokens": ["a", "b", "ab", "1", "11", "111", "1111", "<s>"],
    "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1, 1, 3],
    "tokenizer.ggml.merges": ["1 1", "11 1", "11 11"],
    "tokenizer.ggml.bos_token_id": 7,
}


def test_llama_3_takes_whole_pieces_and_three_digits() -> None:
    """`ab` is a token that no merge makes; and a text begins with BOS where the file does not say."""
    tokenizer = read_gguf_tokenizer(TINY, SOURCE)
    assert tokenizer.encode("ab") == [7, 2]
    assert tokenizer.encode("1111") == [7, 5, 3]


def test_mistral_cuts_at_capitals_and_takes_whole_pieces() -> None:
    """No merge makes these tokens: each is a piece of its own, single digits and the slash behind a stop among them;
    Llama 3's rule has one piece of two words and one of two digits."""
    tokens = ["<s>", "Hello", "World", "1", "11", "./", *"HeloWrd./"]
    own = TINY | {
        "tokenizer.ggml.pre": "tekken",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, *[1] * (len(tokens) - 1)],
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": 0,
    }
    assert read_gguf_tokenizer(own, SOURCE).encode("HelloWorld11./") == [0, 1, 2, 3, 3, 5]
    other = read_gguf_tokenizer(own | {"tokenizer.ggml.pre": "pixtral"}, SOURCE).encode("HelloWorld11")
    assert other[-1] == 4
    assert len(other) == 12


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": "no_vocab"}, "has no vocabulary"),
        ({"pre": "bloom"}, "pre 'bloom' is not supported"),
        ({"model": "bert"}, "model 'bert' is not supported"),
        ({"tokens": None}, "tokens is not a list"),
        ({"tokens": ["a"] * 8}, "a token twice"),
        ({"token_type": [1]}, "1 entries for 8 tokens"),
        ({"merges": ["a b c"]}, "not two tokens"),
        ({"merges": ["a z"]}, "are not a byte-level BPE"),
        ({"bos_token_id": 8}, "bos_token_id 8 is not a token"),
        ({"add_bos_token": 1}, "must be true or false"),
        ({"model": "llama", "scores": [0.0] * 8}, "exactly one unknown token"),
    ],
)
def test_broken_metadata_is_refused_in_a_line(changes: dict[str, Any], says: str) -> None:
    metadata = TINY | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    with pytest.raises(ValueError, match=says) as refused:
        read_gguf_tokenizer(metadata, SOURCE)
    assert str(refused.value).startswith("model.gguf")
    assert "\n" not in str(refused.value)
