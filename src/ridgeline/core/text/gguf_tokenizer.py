"""Tokenizer and chat templates from the metadata of a GGUF file (`tokenizer.*` of ggml/docs/gguf.md).

A byte-level BPE consists of tokens, merges and the name of the pre-tokenizer rule. A SentencePiece model consists of
pieces with scores and types, which are converted back to the library's own format.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from ridgeline.core.text.bpe import LLAMA3, QWEN2, bytes_split_by
from ridgeline.core.text.chat_template import ChatTemplates, templates_of
from ridgeline.core.text.fast_tokenizer import FastTokenizer
from ridgeline.core.text.sentencepiece import SentencePieceTokenizer, encoded_field
from ridgeline.core.text.tokenizer import Tokenizer
from ridgeline.core.text.tokenizer_config import DeclaredToken, TokenizerConfig
from ridgeline.core.text.tokenizers_library import boundary

# Mistral's rule: capitals begin a new word, each digit is a piece, a slash stays with the punctuation before it.
_BEGINNING, _REST = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = "|".join(
    (
        rf"[^\r\n\p{{L}}\p{{N}}]?{_BEGINNING}*{_REST}+",
        rf"[^\r\n\p{{L}}\p{{N}}]?{_BEGINNING}+{_REST}*",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
_GPT2, _DIGITS = "gpt2", "digits"
# Pre-tokenizer rules by llama.cpp's names of vocabularies, for the supported architectures.
PRE_TOKENIZERS: Mapping[str, str] = {
    "gpt-2": _GPT2, "smollm": _DIGITS, "qwen2": QWEN2, "deepseek-r1-qwen": QWEN2, "megrez": QWEN2, "llama-bpe": LLAMA3,
    "llama3": LLAMA3, "llama-v3": LLAMA3, "falcon3": LLAMA3, "pixtral": LLAMA3, "tekken": _TEKKEN,
}  # fmt: skip
_WHOLE_WORDS = (LLAMA3, _TEKKEN)
"""GGUF pre-tokenizer rules whose vocabularies apply no merges to a word that is itself a token.

They also add BOS unless the file says otherwise.
"""
_NAMES = {
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "sep_token": "seperator", "pad_token": "padding",
    "mask_token": "mask",
}  # fmt: skip
"""The special-token names of tokenizer_config.json, with the names in GGUF keys (in GGUF's own spelling)."""
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # token types in GGUF
_TEMPLATE = "tokenizer.chat_template"


def read_gguf_tokenizer(metadata: Mapping[str, Any], source: Path) -> Tokenizer:
    """Build the tokenizer from the metadata of a GGUF file.

    Raises:
        ValueError: If the metadata has no usable vocabulary. The message is one line; it names the faulty key if a
            single key is at fault.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind in (None, "no_vocab"):
        raise ValueError(
            f"{source}: the file has no vocabulary, so it cannot read or write text; "
            "convert the model again, with its vocabulary"
        )
    declared = _declared(metadata, source, _listed(metadata, "tokens", source, str), _types(metadata, source))
    if kind == "gpt2":
        return FastTokenizer(_byte_level(metadata, source), declared, source)
    if kind == "llama":
        return SentencePieceTokenizer(source, declared, _sentencepiece_model(metadata, source))
    raise ValueError(
        f"{source}: tokenizer.ggml.model {kind!r} is not supported; gpt2 (byte-level BPE) and llama (SentencePiece) are"
    )


def read_gguf_templates(metadata: Mapping[str, Any], tokenizer: Tokenizer, source: Path) -> ChatTemplates | None:
    """Return the chat templates in the metadata of a GGUF file, or None if it has none.

    Raises:
        ValueError: If a template is malformed. The message names the file.
    """
    return templates_of(_templates(metadata), tokenizer, source)


def _templates(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the chat template sources in GGUF metadata, by name."""
    named = {
        key.removeprefix(f"{_TEMPLATE}."): text for key, text in metadata.items() if key.startswith(f"{_TEMPLATE}.")
    }
    whole = {"default": metadata[_TEMPLATE]} if _TEMPLATE in metadata else {}
    return {name: text for name, text in {**named, **whole}.items() if isinstance(text, str)}


def _declared(
    metadata: Mapping[str, Any], source: Path, tokens: Sequence[str], types: Sequence[int]
) -> TokenizerConfig:
    """Return the tokenizer config of a GGUF file, with what other models store in tokenizer_config.json.

    Raises:
        ValueError: If there are no tokens, a token occurs twice, or a special-token id is out of range.
    """
    if len(set(tokens)) != len(tokens) or not tokens:
        raise ValueError(f"{source}: tokenizer.ggml.tokens is empty, or has a token twice; fetch the file again")
    names: dict[str, str] = {}
    for name, role in _NAMES.items():
        index = metadata.get(f"tokenizer.ggml.{role}_token_id")
        if index is None:
            continue
        if type(index) is not int or not 0 <= index < len(tokens):
            raise ValueError(f"{source}: tokenizer.ggml.{role}_token_id {index!r} is not a token; fetch the file again")
        names[name] = tokens[index]
    added = [
        DeclaredToken(index, token, special=kind == _CONTROL)
        for index, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    return TokenizerConfig(
        names=names,
        added=tuple(added),
        add_bos=_adds_token(metadata, "bos", source),
        add_eos=_adds_token(metadata, "eos", source),
        template_text="\n".join(_templates(metadata).values()),
    )


def _adds_token(metadata: Mapping[str, Any], role: str, source: Path) -> bool:
    """Return whether encoding adds the BOS or EOS token (the `role`) of a GGUF file.

    If the file does not say, use llama.cpp's default: BOS for SentencePiece, Llama 3 and Mistral.
    """
    unstated = (
        metadata.get("tokenizer.ggml.model") == "llama"
        or PRE_TOKENIZERS.get(str(metadata.get("tokenizer.ggml.pre"))) in _WHOLE_WORDS
    )
    found = metadata.get(f"tokenizer.ggml.add_{role}_token", unstated and role == "bos")
    if not isinstance(found, bool):
        raise ValueError(f"{source}: tokenizer.ggml.add_{role}_token is {found!r}; it must be true or false")
    return found


def _listed(metadata: Mapping[str, Any], key: str, source: Path, kind: type) -> list[Any]:
    """Return a list from GGUF metadata after checking the type of its entries."""
    found = metadata.get(f"tokenizer.ggml.{key}")
    if not isinstance(found, list) or not all(type(each) is kind for each in found):
        raise ValueError(f"{source}: tokenizer.ggml.{key} is not a list of {kind.__name__}; fetch the file again")
    return found


def _types(metadata: Mapping[str, Any], source: Path) -> list[int]:
    """Return the GGUF type of each token: unknown, control, user-defined, unused, byte or normal."""
    return _per_token_list(metadata, "token_type", source, int)


def _per_token_list(metadata: Mapping[str, Any], key: str, source: Path, kind: type) -> list[Any]:
    """Return a list from GGUF metadata that must have one entry per token."""
    found, tokens = _listed(metadata, key, source, kind), metadata["tokenizer.ggml.tokens"]
    if len(found) != len(tokens):
        raise ValueError(
            f"{source}: tokenizer.ggml.{key} has {len(found)} entries for {len(tokens)} tokens; fetch the file again"
        )
    return found


def _byte_level(metadata: Mapping[str, Any], source: Path) -> tokenizers.Tokenizer:
    """Build a byte-level BPE pipeline from GGUF metadata.

    Raises:
        ValueError: If the pre-tokenizer rule is unknown or the merges are malformed.
    """
    name = metadata.get("tokenizer.ggml.pre")
    cut = PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if cut is None:
        raise ValueError(f"{source}: tokenizer.ggml.pre {name!r} is not supported; {', '.join(PRE_TOKENIZERS)} are")
    tokens, types = _listed(metadata, "tokens", source, str), _types(metadata, source)
    merges = [tuple(merge.split(" ")) for merge in _listed(metadata, "merges", source, str)]
    if not all(len(merge) == 2 for merge in merges):
        raise ValueError(f"{source}: tokenizer.ggml.merges has an entry that is not two tokens; fetch the file again")
    vocabulary = {
        token: index for index, (token, kind) in enumerate(zip(tokens, types, strict=True)) if kind != _UNUSED
    }
    with boundary(f"{source}: its tokens and merges are not a byte-level BPE", "fetch the file again"):
        pipeline = tokenizers.Tokenizer(BPE(vocabulary, merges, ignore_merges=cut in _WHOLE_WORDS))
    if cut == QWEN2:
        pipeline.normalizer = normalizers.NFC()
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if cut == _DIGITS:
        pipeline.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2])
    else:
        pipeline.pre_tokenizer = gpt2 if cut == _GPT2 else bytes_split_by(cut)
    pipeline.decoder = decoders.ByteLevel()
    return pipeline


def _sentencepiece_model(metadata: Mapping[str, Any], source: Path) -> bytes:
    """Return a SentencePiece BPE model built from GGUF metadata, serialised as in sentencepiece_model.proto.

    - Pieces: text 1, score 2, type 3.
    - Trainer: model type 3, byte fallback 35, ids of the unknown token 40, BOS 41 and EOS 42.
    - Normalizer: name 1, handling of spaces 3 to 5.
    """
    tokens, types = _listed(metadata, "tokens", source, str), _types(metadata, source)
    scores = _per_token_list(metadata, "scores", source, float)
    if types.count(_UNKNOWN) != 1 or not all(1 <= kind <= _BYTE for kind in types):
        raise ValueError(
            f"{source}: tokenizer.ggml.token_type needs valid types and exactly one unknown token; fetch the file again"
        )
    out = bytearray()
    for token, score, kind in zip(tokens, scores, types, strict=True):
        text = token.encode()
        out += encoded_field(1, encoded_field(1, text) + encoded_field(2, score) + encoded_field(3, kind))
    ids = {40: types.index(_UNKNOWN)}
    ids |= {
        at: index
        for at, role in ((41, "bos"), (42, "eos"))
        if (index := metadata.get(f"tokenizer.ggml.{role}_token_id")) is not None
    }
    trained = encoded_field(3, 2) + encoded_field(35, _BYTE in types)
    trained += b"".join(encoded_field(at, index) for at, index in ids.items())
    space = metadata.get("tokenizer.ggml.add_space_prefix", True)
    extra = metadata.get("tokenizer.ggml.remove_extra_whitespaces", False)
    if not isinstance(space, bool) or not isinstance(extra, bool):
        raise ValueError(
            f"{source}: tokenizer.ggml.add_space_prefix and remove_extra_whitespaces must be true or false"
        )
    normal = encoded_field(1, b"identity") + encoded_field(3, space) + encoded_field(4, extra) + encoded_field(5, True)
    return bytes(out + encoded_field(2, trained) + encoded_field(3, normal))
