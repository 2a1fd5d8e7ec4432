"""Tokenizers of the Hugging Face `tokenizers` library, from tokenizer.json or as a pipeline built from other files."""

import json
import secrets
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers.models import BPE
from typing_extensions import override

from ridgeline.core.text.spelling import kind_of, repair_pre_tokenizer, spelling_of
from ridgeline.core.text.tokenizer import PromptPart, Tokenizer, check_unicode
from ridgeline.core.text.tokenizer_config import DeclaredToken, TokenizerConfig
from ridgeline.core.text.tokenizers_library import boundary, encode, max_expansion, stages
from ridgeline.core.text.vocabulary import Vocabulary, build_vocabulary

_IN_NO_VOCABULARY = "\U0010fffd"  # the last private-use character


@dataclass(frozen=True)
class ProtectedTokenizer:
    """A copy of a tokenizer in which each control token has a secret name, so that no user text can produce it.

    Each control token keeps its id and gets a random name, drawn anew for each copy. The literals in user text are then
    ordinary text for every stage (added-token matching, the normalizer, a Unigram model that has `</s>` as a piece),
    while the prompt's own control tokens are written by their secret names. One call encodes the whole prompt, so rules
    that depend on the position (SentencePiece's dummy prefix) give the same result as in the original.
    """

    tokenizer: tokenizers.Tokenizer
    """The copy of a tokenizer whose control tokens have secret names."""
    secret: Mapping[int, str]
    """The secret name of each control token, by its id."""


def protect_control_tokens(tokenizer: tokenizers.Tokenizer, control: Mapping[str, int]) -> ProtectedTokenizer:
    """Return a copy of a tokenizer whose control tokens have secret names.

    The copy needs one serialisation of the tokenizer (about a second for 150,000 tokens).
    """
    nonce = secrets.token_hex(16)
    renamed = {literal: f"<{nonce}:{index}>" for literal, index in control.items()}
    state = json.loads(tokenizer.to_str())
    for entry in state["added_tokens"]:
        entry["content"] = renamed.get(entry["content"], entry["content"])
    _rename_model(state["model"], renamed)
    copy = tokenizers.Tokenizer.from_str(json.dumps(state))
    for literal, index in control.items():
        assert copy.token_to_id(renamed[literal]) == index, f"protecting control tokens changed the id of {literal!r}"
    return ProtectedTokenizer(copy, {control[literal]: secret for literal, secret in renamed.items()})


def _rename_model(model: dict[str, Any], renamed: Mapping[str, str]) -> None:
    """Rename the control tokens in a tokenizer's vocabulary, and remove the merges that contain or build them."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        model["vocab"] = {renamed.get(piece, piece): index for piece, index in vocab.items()}
    else:  # Unigram: pairs of piece and score
        model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in vocab]
    if isinstance(model.get("unk_token"), str):
        model["unk_token"] = renamed.get(model["unk_token"], model["unk_token"])
    if "merges" in model:
        model["merges"] = [merge for merge in model["merges"] if not _touches(merge, renamed)]


def _touches(merge: str | list[str], renamed: Mapping[str, str]) -> bool:
    """Return whether a BPE merge contains or builds a renamed token."""
    left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
    return left in renamed or right in renamed or left + right in renamed


class FastTokenizer(Tokenizer):
    """A tokenizer that runs a `tokenizers` pipeline, extended with the tokens that the model folder declares."""

    def __init__(self, pipeline: tokenizers.Tokenizer, declared: TokenizerConfig, source: Path) -> None:
        """Prepare a tokenizer pipeline for inference: declare added tokens, and correct stages.

        Stages are corrected if they do not match the vocabulary.

        Args:
            pipeline: The loaded pipeline. It is changed in place.
            declared: Declarations of the model folder.
            source: File named in errors.

        Raises:
            ValueError: If the tokenizer cannot run in this engine.
        """
        with boundary(f"{source}: the engine cannot run this tokenizer", "use another release"):
            _make_plain(pipeline)
            kind = kind_of(pipeline)
            mended = repair_pre_tokenizer(pipeline, kind)
            _declare(pipeline, declared)
            spelling = spelling_of(pipeline, kind)
            vocabulary = _read_vocabulary(pipeline, declared, spelling.to_bytes)
            prefix, suffix = _frame(pipeline, declared, vocabulary)
            unknown = _unknown(pipeline, declared)
            self._pair = _pair_frame(pipeline)
            self._growth = max_expansion(pipeline)
            super().__init__(
                vocabulary,
                declared.names,
                prefix=prefix,
                suffix=suffix,
                strips_space=spelling.strips_space,
                most_bytes=_most_bytes(pipeline, vocabulary),
            )
            self.file_fault_note = mended
            self._composes = any(stage["type"] == "NFC" for stage in stages(pipeline.normalizer))
        self._pipeline = pipeline
        # The unknown token also represents text outside the vocabulary, so its id alone proves nothing.
        self._watched = frozenset(vocabulary.control.values()) - unknown

    @override
    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        if not parse_special:
            return super().encode(text, add_special=add_special, parse_special=False)
        ids = encode(self._pipeline, check_unicode(text), self._growth)
        return [*self.prefix, *ids, *self.suffix] if add_special else ids

    @override
    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        if self._pair is None:
            return super().encode_pair(first, second)
        ids, types = list[int](), list[int]()
        for frame, text in zip(self._pair, (first, second), strict=False):
            own = self._encode_parts([check_unicode(text)])
            ids += [*frame.ids, *own]
            types += [*frame.types, *[frame.own] * len(own)]
        last = self._pair[2]
        return [*ids, *last.ids], [*types, *last.types]

    @override
    def _composed(self, text: str) -> str:
        return unicodedata.normalize("NFC", text) if self._composes else text

    @override
    def _encode_parts(self, parts: Sequence[PromptPart]) -> list[int]:
        """Encode a prompt with the original tokenizer, or with the protected copy if necessary.

        The copy is necessary if the original could turn user text into control tokens.

        Raises:
            ValueError: If the protected copy also makes control tokens from user text.
        """
        written = [part for part in parts if isinstance(part, int)]
        assert set(written) <= set(self.control.values()), "only control tokens are placed by id"
        text = "".join(part if isinstance(part, str) else self._raw(part).decode() for part in parts)
        if sum(1 for _ in self.control_pattern.finditer(text)) == len(written):
            ids = encode(self._pipeline, text, self._growth)
            if self._has_exactly(ids, written):
                return ids
        sealed = self._sealed
        ids = encode(
            sealed.tokenizer,
            "".join(part if isinstance(part, str) else sealed.secret[part] for part in parts),
            self._growth,
        )
        if not self._has_exactly(ids, written):
            raise ValueError("this tokenizer makes control tokens from ordinary text; reject or rephrase the text")
        return ids

    def _has_exactly(self, ids: list[int], written: list[int]) -> bool:
        """Return whether encoded ids contain exactly the given control tokens, in order, ignoring unknown tokens."""
        watched = self._watched
        return [i for i in ids if i in watched] == [i for i in written if i in watched]

    @cached_property
    def _sealed(self) -> ProtectedTokenizer:
        """The copy of the tokenizer with secret control-token names, built at first use."""
        with boundary("the tokenizer may turn typed text into control tokens", "use another release"):
            return protect_control_tokens(self._pipeline, self.control)


class _PairFrame(NamedTuple):
    """The special tokens that a post-processor puts before a text of a pair, or after the second one."""

    ids: list[int]
    """The ids of the special tokens before, between or after two texts."""
    types: list[int]
    """The token type ids (segments) of the special tokens before, between or after two texts."""
    own: int = 0
    """The token type id of the text that follows the special tokens."""


def _pair_frame(pipeline: tokenizers.Tokenizer) -> "tuple[_PairFrame, _PairFrame, _PairFrame] | None":
    """Return the special tokens before, between and after two texts that are encoded together.

    The result is None if the post-processor has no template for a pair.
    """
    both = pipeline.encode("a", "a", add_special_tokens=True)
    sequences = both.sequence_ids
    if set(sequences) != {0, 1, None}:
        return None
    places = {own: [i for i, of in enumerate(sequences) if of == own] for own in (0, 1)}
    ids, types = list(both.ids), list(both.type_ids)
    (start, end), (second, last) = ((own[0], own[-1] + 1) for own in (places[0], places[1]))
    return (
        _PairFrame(ids[:start], types[:start], types[start]),
        _PairFrame(ids[end:second], types[end:second], types[second]),
        _PairFrame(ids[last:], types[last:]),
    )


def _make_plain(pipeline: tokenizers.Tokenizer) -> None:
    """Disable a tokenizer's truncation, padding and random segmentation, so that a text always gives the same ids."""
    pipeline.no_truncation()
    pipeline.no_padding()
    for option in ("dropout", "alpha", "nbest_size"):  # BPE's dropout, Unigram's sampling
        if getattr(pipeline.model, option, None) is not None:
            setattr(pipeline.model, option, None)


def _unknown(pipeline: tokenizers.Tokenizer, declared: TokenizerConfig) -> frozenset[int]:
    """Return the token ids that represent text outside the vocabulary.

    These are the declared unknown token and the tokens that the model itself produces.
    """
    stated = pipeline.token_to_id(declared.names.get("unk_token", ""))
    try:
        made = [token.id for token in pipeline.model.tokenize(_IN_NO_VOCABULARY)]
    except Exception:  # the model has no token for it
        made = []
    return frozenset([*made, *([] if stated is None else [stated])])


def _most_bytes(pipeline: tokenizers.Tokenizer, vocabulary: Vocabulary) -> int | None:
    """Return the longest composed text, in bytes, that one token can represent, or None if no bound is known.

    There is no bound if text can disappear before or in the model: removed white space, unknown characters.
    """
    kinds = {stage["type"] for stage in stages(pipeline.pre_tokenizer)}
    keeps = all(_keeps(stage) for part in (pipeline.normalizer, pipeline.pre_tokenizer) for stage in stages(part))
    strips = any(token.lstrip or token.rstrip for token in pipeline.get_added_tokens_decoder().values())
    in_bytes = "ByteLevel" in kinds
    known = {token[0] for token in vocabulary.tokens if len(token) == 1}
    by_bytes = in_bytes or getattr(pipeline.model, "byte_fallback", False)
    if strips or not (keeps and by_bytes and len(known) == 256 and isinstance(pipeline.model, BPE)):
        return None
    # A space of the text may be written "\u2581", which is three bytes.
    return max(map(len, vocabulary.tokens)) * (1 if in_bytes else 3)


def _keeps(stage: Mapping[str, Any]) -> bool:
    """Return whether a tokenizer stage is known never to shorten a text, apart from character composition."""
    match stage:
        case {"type": "NFC" | "Prepend" | "ByteLevel" | "Metaspace" | "Digits"}:
            return True
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return len(new.encode()) >= len(old.encode())
        case {"type": "Split", "behavior": str(behavior)}:
            return behavior != "Removed"
    return False


def _declare(pipeline: tokenizers.Tokenizer, declared: TokenizerConfig) -> None:
    """Add the declared tokens that a tokenizer lacks, at their declared ids, and mark special tokens.

    The declarations are those of added_tokens_decoder and, for special tokens, also the declared names.

    Raises:
        ValueError: If the vocabulary has a different id for a declared token.
    """
    present_by_id = pipeline.get_added_tokens_decoder()
    for row in declared.added:
        present = present_by_id.get(row.id)
        if present is None or present.content != row.literal or (row.special and not present.special):
            _add(pipeline, row)
        if pipeline.token_to_id(row.literal) != row.id:
            raise ValueError(
                f"tokenizer_config.json gives {row.literal!r} the id {row.id}, but the vocabulary gives it "
                f"{pipeline.token_to_id(row.literal)}; take both files from the same release"
            )
    known = {token.content for token in pipeline.get_added_tokens_decoder().values() if token.special}
    for literal in (*declared.names.values(), *declared.extra_special):
        # A literal that is no token stays text: adding it would need an embedding row that the model lacks.
        if literal not in known and (index := pipeline.token_to_id(literal)) is not None:
            left, right = declared.strips.get(literal, (False, False))
            _add(pipeline, DeclaredToken(index, literal, special=True, lstrip=left, rstrip=right))


def _add(pipeline: tokenizers.Tokenizer, row: DeclaredToken) -> None:
    """Add a declared token to a tokenizer pipeline, as a special token if it is one."""
    token = tokenizers.AddedToken(
        row.literal,
        single_word=row.single_word,
        lstrip=row.lstrip,
        rstrip=row.rstrip,
        normalized=row.normalized,
        special=row.special,
    )
    (pipeline.add_special_tokens if row.special else pipeline.add_tokens)([token])


def _read_vocabulary(
    pipeline: tokenizers.Tokenizer, declared: TokenizerConfig, spell: Callable[[str], bytes]
) -> Vocabulary:
    """Build the vocabulary tables of a tokenizer pipeline; `spell` converts a piece to its bytes."""
    added = {index: (token.content, token.special) for index, token in pipeline.get_added_tokens_decoder().items()}
    return build_vocabulary(pipeline.get_vocab(with_added_tokens=False), added, spell, declared.is_control)


def _frame(
    pipeline: tokenizers.Tokenizer, declared: TokenizerConfig, vocabulary: Vocabulary
) -> tuple[list[int], list[int]]:
    """Return the special token ids that encoding puts before and after a text.

    The post-processor defines them; add_bos_token and add_eos_token of the folder override it.
    """
    bare = list(pipeline.encode("a", add_special_tokens=False).ids)
    full = list(pipeline.encode("a", add_special_tokens=True).ids)
    at = next((i for i in range(len(full)) if full[i : i + len(bare)] == bare), 0)
    prefix, suffix = full[:at], full[at + len(bare) :]
    bos = vocabulary.control.get(declared.names.get("bos_token", ""))
    eos = vocabulary.control.get(declared.names.get("eos_token", ""))
    if bos is not None and declared.add_bos is not None:
        prefix = [*([bos] if declared.add_bos else []), *(i for i in prefix if i != bos)]
    if eos is not None and declared.add_eos is not None:
        suffix = [*(i for i in suffix if i != eos), *([eos] if declared.add_eos else [])]
    return prefix, suffix
