"""Detection of how a vocabulary writes its pieces, because tokenizer.json can contain another tokenizer's decoder.

Converters and re-saving tools leave files whose parts disagree: byte-level BPE pieces with the decoder of SentencePiece
(Mistral's tekken), or also with its pre-tokenizer (byte-level models saved as a Llama tokenizer). The model was trained
on the pieces, so the pieces decide.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import tokenizers
from tokenizers import pre_tokenizers
from tokenizers.models import BPE, Unigram, WordLevel, WordPiece

from ridgeline.core.text.bpe import LLAMA3, QWEN2, bytes_split_by
from ridgeline.core.text.tokenizers_library import stages
from ridgeline.core.text.vocabulary import SPACE_MARK, byte_level, metaspace, word, wordpiece

Kind = Literal["byte-level", "SentencePiece"]
BYTES: Kind = "byte-level"
"""The name of one kind of vocabulary: byte-level BPE."""
SPACES: Kind = "SentencePiece"
"""The name of one kind of vocabulary: SentencePiece, which writes a space as U+2581."""
_BYTE_SPACE = "\u0120"  # a space, as byte-level BPE writes it
_PROBE = "a b\nc 1"
_SPACED_DIGIT = re.compile(_BYTE_SPACE + "[0-9]+")
_DIGITS = re.compile("[0-9]+")


class PieceSpelling(NamedTuple):
    """The conversion of vocabulary pieces to bytes."""

    to_bytes: Callable[[str], bytes]
    """A function that converts a vocabulary piece to bytes."""
    strips_space: bool
    """Whether decoding drops one leading space of the text."""


def spelling_of(pipeline: tokenizers.Tokenizer, kind: Kind | None) -> PieceSpelling:
    """Return how the pieces of a vocabulary convert to bytes.

    Args:
        pipeline: The tokenizer.
        kind: Kind of its pieces, or None if the pieces do not show it.

    Raises:
        ValueError: If the decoder does not show the kind either.
    """
    decoder = _decoder(pipeline)
    stated = {stage["type"]: stage for stage in _decoding(decoder)}
    if isinstance(pipeline.model, WordPiece):
        return PieceSpelling(partial(wordpiece, continues=pipeline.model.continuing_subword_prefix), strips_space=True)
    kind = kind or _stated_kind(stated)
    if kind == BYTES:
        return PieceSpelling(_byte_level(pipeline), strips_space=False)
    if kind == SPACES:
        return PieceSpelling(metaspace, _strips(pipeline, stated))
    if "WordPiece" in stated:
        return PieceSpelling(partial(wordpiece, continues=stated["WordPiece"]["prefix"]), strips_space=True)
    if isinstance(pipeline.model, WordLevel) and pipeline.decoder is None:
        return PieceSpelling(word, strips_space=True)
    raise ValueError(
        f"decoder {decoder['type']!r} is not supported; use a byte-level, SentencePiece or WordPiece tokenizer"
    )


def kind_of(pipeline: tokenizers.Tokenizer) -> Kind | None:
    """Return the kind of a vocabulary, byte-level BPE or SentencePiece, that most space marks in its pieces indicate.

    The result is None if the pieces do not show it.
    """
    if isinstance(pipeline.model, WordPiece):
        return None
    pieces = _pieces(pipeline)
    in_bytes, as_marks = (sum(piece.startswith(mark) for piece in pieces) for mark in (_BYTE_SPACE, SPACE_MARK))
    if in_bytes == as_marks:
        return None
    return BYTES if in_bytes > as_marks else SPACES


def repair_pre_tokenizer(pipeline: tokenizers.Tokenizer, kind: Kind | None) -> str:
    """Replace a tokenizer's stages before the model if they split text for another kind of vocabulary.

    Args:
        pipeline: The tokenizer, which is changed in place.
        kind: Kind of its pieces, or None if the pieces do not show it.

    Returns:
        A line that describes the fault and the replacement rule, or "" if there was no fault.

    Raises:
        ValueError: If no replacement stages are known for this type of model.
    """
    if kind is None or _splits_as(kind, pipeline) or _round_trips(pipeline, kind):
        return ""
    if not isinstance(pipeline.model, BPE | Unigram):
        raise ValueError(
            f"its vocabulary is {kind}, but its normalizer and pre_tokenizer are not, so spaces would be lost; "
            "copy tokenizer.json of the model's original release"
        )
    name = _cut_as_bytes(pipeline) if kind == BYTES else _cut_as_spaces(pipeline)
    return (
        f"tokenizer.json has a {kind} vocabulary, but a normalizer or pre_tokenizer of another kind; the engine splits "
        f"text as {name} does; for the model's own rule copy tokenizer.json of its original release"
    )


def _splits_as(kind: Kind, pipeline: tokenizers.Tokenizer) -> bool:
    """Return whether a tokenizer's stages before the model write spaces as this kind of vocabulary does."""
    before = [*stages(pipeline.normalizer), *stages(pipeline.pre_tokenizer)]
    in_bytes = any(stage["type"] == "ByteLevel" for stage in before)
    return (in_bytes, any(map(_marks, before))) == (kind == BYTES, kind == SPACES)


def _marks(stage: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer stage writes spaces as SentencePiece does."""
    if stage["type"] == "Metaspace":
        return True
    return SPACE_MARK in (stage.get("prepend"), stage.get("content"))


def _round_trips(pipeline: tokenizers.Tokenizer, kind: Kind) -> bool:
    """Return whether a test text encodes to pieces of this kind of vocabulary that decode to the same text."""
    try:
        tokens = pipeline.encode(_PROBE, add_special_tokens=False).tokens
    except Exception:  # the model has no token for a part of the text
        return False
    spell, mark = (byte_level, _BYTE_SPACE) if kind == BYTES else (metaspace, SPACE_MARK)
    text = b"".join(map(spell, tokens)).decode("utf-8", "replace")
    return text.removeprefix(" ") == _PROBE and any(mark in token for token in tokens)


def _cut_as_bytes(pipeline: tokenizers.Tokenizer) -> str:
    """Make a tokenizer split text for byte-level pieces; return the name of the model whose rule it uses."""
    if any(map(_marks, stages(pipeline.normalizer))):
        pipeline.normalizer = None
    name, rule = _rule_of(_pieces(pipeline))
    pipeline.pre_tokenizer = bytes_split_by(rule) if rule else pre_tokenizers.ByteLevel(add_prefix_space=False)
    return name


def _cut_as_spaces(pipeline: tokenizers.Tokenizer) -> str:
    """Make a tokenizer split text for SentencePiece pieces; return the name of the model whose rule it uses.

    The rule puts a space before the text, unless the decoder is SentencePiece's and preserves a leading space.
    """
    stated = {stage["type"]: stage for stage in _decoding(_decoder(pipeline))}
    prefixed = _stated_kind(stated) != SPACES or _strips(pipeline, stated)
    normal = stages(pipeline.normalizer)
    if any(stage["type"] == "ByteLevel" for stage in normal):
        pipeline.normalizer, normal = None, []
    scheme = "first" if prefixed else "never"
    pipeline.pre_tokenizer = (
        None
        if any(map(_marks, normal))
        else pre_tokenizers.Metaspace(SPACE_MARK, prepend_scheme=scheme, split=isinstance(pipeline.model, Unigram))
    )
    return "Llama 2" if prefixed else "Gemma"


def _rule_of(pieces: Iterable[str]) -> tuple[str, str | None]:
    """Return the model whose split rule fits a byte-level vocabulary, and the rule (None: the library's default).

    The pieces with digits show the rule. GPT-2 has a space before digits, or more than three digits in a piece; Llama 3
    has up to three; Qwen 2 has one.
    """
    pieces = list(pieces)
    longest = max((len(piece) for piece in pieces if _DIGITS.fullmatch(piece)), default=1)
    if longest > 3 or any(_SPACED_DIGIT.fullmatch(piece) for piece in pieces):
        return "GPT-2", None
    return ("Llama 3", LLAMA3) if longest > 1 else ("Qwen 2", QWEN2)


def _pieces(pipeline: tokenizers.Tokenizer) -> list[str]:
    """Return a tokenizer's vocabulary pieces that are not added tokens."""
    added = {token.content for token in pipeline.get_added_tokens_decoder().values()}
    return [piece for piece in pipeline.get_vocab(with_added_tokens=False) if piece not in added]


def _decoder(pipeline: tokenizers.Tokenizer) -> dict[str, Any]:
    """Return a tokenizer's decoder as a JSON object."""
    if pipeline.decoder is None:
        return {"type": None}
    state: dict[str, Any] = json.loads(pipeline.decoder.__getstate__())
    return state


def _decoding(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the stages of a decoder in order."""
    if decoder["type"] != "Sequence":
        return [decoder]
    return [stage for inner in decoder["decoders"] for stage in _decoding(inner)]


def _stated_kind(stated: Mapping[str, Any]) -> Kind | None:
    """Return the kind of vocabulary (byte-level or SentencePiece) that decoder stages fit, or None."""
    if "ByteLevel" in stated:
        return BYTES
    return SPACES if stated.keys() & {"Metaspace", "ByteFallback", "Replace"} else None


def _strips(pipeline: tokenizers.Tokenizer, stated: Mapping[str, Any]) -> bool:
    """Return whether a SentencePiece tokenizer drops a leading space when it decodes.

    The decoder decides. If it does not show it, decoding drops a space if encoding adds one.
    """
    if stated.keys() & {"Metaspace", "Replace"}:
        scheme = stated.get("Metaspace", {}).get("prepend_scheme", "never")
        return bool(scheme != "never" or stated.get("Strip", {}).get("start", 0) > 0)
    if stated.get("Strip", {}).get("start", 0) > 0:
        return True
    first = pipeline.encode("a", add_special_tokens=False).tokens[:1]
    return bool(first) and first[0].startswith(SPACE_MARK)


def _byte_level(pipeline: tokenizers.Tokenizer) -> Callable[[str], bytes]:
    """Return a function that converts byte-level pieces to bytes.

    An end-of-word suffix (CLIP's "</w>") becomes a space.
    """
    suffix = getattr(pipeline.model, "end_of_word_suffix", None)
    if not suffix:
        return byte_level

    def with_suffix(piece: str) -> bytes:
        ended = piece.endswith(suffix)
        return byte_level(piece.removesuffix(suffix)) + (b" " if ended else b"")

    return with_suffix
