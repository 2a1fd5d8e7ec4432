"""Tokenizers of the Hugging Face `tokenizers` library: a folder's tokenizer.json, or one built by bpe.py."""

import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from ridgeline.text.declared import Added, Declared
from ridgeline.text.seal import Sealed, seal
from ridgeline.text.tokenizer import Part, Tokenizer
from ridgeline.text.vocabulary import Vocabulary, build_vocabulary, byte_level, metaspace


class FastTokenizer(Tokenizer):
    """A `tokenizers` pipeline with the folder's declared tokens on top."""

    def __init__(self, pipeline: tokenizers.Tokenizer, declared: Declared, source: Path) -> None:
        pipeline.no_truncation()  # a stored truncation would cut prompts silently
        pipeline.no_padding()
        _declare(pipeline, declared, source)
        vocabulary, strips_space = _read_vocabulary(pipeline, declared, source)
        prefix, suffix = _frame(pipeline, declared, vocabulary)
        super().__init__(vocabulary, declared.names, prefix=prefix, suffix=suffix, strips_space=strips_space)
        self._pipeline = pipeline
        # The unknown token also stands for text outside the vocabulary: its id alone proves nothing.
        unknown = declared.names.get("unk_token")
        self._watched = frozenset(i for literal, i in vocabulary.control.items() if literal != unknown)

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        if not parse_special:
            return super().encode(text, add_special=add_special, parse_special=False)
        ids = self._run(self._pipeline, text)
        return [*self.prefix, *ids, *self.suffix] if add_special else ids

    def _encode_parts(self, parts: Sequence[Part]) -> list[int]:
        """First as it stands, which is right unless the text spells a control token; only then the sealed copy."""
        written = [part for part in parts if isinstance(part, int)]
        assert set(written) <= set(self.control.values()), "only control tokens are placed by id"
        text = "".join(part if isinstance(part, str) else self._raw(part).decode() for part in parts)
        if sum(1 for _ in self.control_pattern.finditer(text)) == len(written):
            ids = self._run(self._pipeline, text)
            if self._has_exactly(ids, written):
                return ids
        sealed = self._sealed
        ids = self._run(sealed.tokenizer, "".join(p if isinstance(p, str) else sealed.secret[p] for p in parts))
        if not self._has_exactly(ids, written):
            raise ValueError("this tokenizer makes control tokens out of ordinary text; refuse or rephrase the text")
        return ids

    def _has_exactly(self, ids: list[int], written: list[int]) -> bool:
        watched = self._watched
        return [i for i in ids if i in watched] == [i for i in written if i in watched]

    @cached_property
    def _sealed(self) -> Sealed:
        return seal(self._pipeline, self.control)

    @staticmethod
    def _run(pipeline: tokenizers.Tokenizer, text: str) -> list[int]:
        try:
            return list(pipeline.encode(text, add_special_tokens=False).ids)
        except TypeError as error:  # how the library refuses lone surrogates
            raise ValueError("text is not valid Unicode (a lone surrogate?); send valid Unicode") from error


def read_pipeline(path: Path) -> tokenizers.Tokenizer:
    """Load a tokenizer.json. Raises ValueError naming the file."""
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        reason = (str(error).splitlines() or ["unknown"])[0][:200]
        raise ValueError(f"{path}: not a tokenizer.json this library reads ({reason}); copy the file again") from error


def _declare(pipeline: tokenizers.Tokenizer, declared: Declared, source: Path) -> None:
    """Add the tokens of added_tokens_decoder that the pipeline lacks, at their stated ids, and mark special ones."""
    present_by_id = pipeline.get_added_tokens_decoder()
    for row in declared.added:
        present = present_by_id.get(row.id)
        if present is None or present.content != row.literal or (row.special and not present.special):
            _add(pipeline, row)
        if pipeline.token_to_id(row.literal) != row.id:
            raise ValueError(
                f"{source}: tokenizer_config.json puts {row.literal!r} at id {row.id}, the vocabulary puts it at "
                f"{pipeline.token_to_id(row.literal)}; take both files from the same release"
            )
    known = {token.content for token in pipeline.get_added_tokens_decoder().values() if token.special}
    named = [literal for literal in (*declared.names.values(), *declared.extra_special) if literal not in known]
    # A literal that is no token stays text: adding it would need an embedding row that the model lacks.
    pipeline.add_special_tokens([literal for literal in named if pipeline.token_to_id(literal) is not None])


def _add(pipeline: tokenizers.Tokenizer, row: Added) -> None:
    token = tokenizers.AddedToken(
        row.literal,
        single_word=row.single_word,
        lstrip=row.lstrip,
        rstrip=row.rstrip,
        normalized=row.normalized,
        special=row.special,
    )
    (pipeline.add_special_tokens if row.special else pipeline.add_tokens)([token])


def _read_vocabulary(pipeline: tokenizers.Tokenizer, declared: Declared, source: Path) -> tuple[Vocabulary, bool]:
    """Tables by id, and whether decoding drops one leading space."""
    decoder = json.loads(pipeline.decoder.__getstate__()) if pipeline.decoder is not None else {"type": None}
    stages = {stage["type"]: stage for stage in _stages(decoder)}
    added = {index: (token.content, token.special) for index, token in pipeline.get_added_tokens_decoder().items()}
    if "ByteLevel" in stages:
        spell, strips = byte_level, False
    elif stages.keys() & {"Metaspace", "ByteFallback", "Replace"}:
        scheme = stages.get("Metaspace", {}).get("prepend_scheme", "never")
        spell, strips = metaspace, scheme != "never" or stages.get("Strip", {}).get("start", 0) > 0
    else:
        raise ValueError(
            f"{source}: decoder {decoder['type']!r} is not supported; use a byte-level or SentencePiece tokenizer"
        )
    suffix = getattr(pipeline.model, "end_of_word_suffix", None)
    if suffix:  # CLIP ends a word by "</w>"

        def with_suffix(piece: str) -> bytes:
            ended = piece.endswith(suffix)
            return byte_level(piece.removesuffix(suffix)) + (b" " if ended else b"")

        spell = with_suffix
    pieces = pipeline.get_vocab(with_added_tokens=False)
    return build_vocabulary(pieces, added, spell, declared.is_control), strips


def _stages(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [stage for inner in decoder["decoders"] for stage in _stages(inner)]


def _frame(pipeline: tokenizers.Tokenizer, declared: Declared, vocabulary: Vocabulary) -> tuple[list[int], list[int]]:
    """What the post-processor puts before and after a text, corrected by add_bos_token and add_eos_token."""
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
