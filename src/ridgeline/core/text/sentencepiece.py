"""Tokenizers from SentencePiece `.model` files, for folders (Llama, Mistral, T5) without tokenizer.json."""

import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import sentencepiece
from typing_extensions import override

from ridgeline.core.text.tokenizer import PromptPart, Tokenizer
from ridgeline.core.text.tokenizer_config import TokenizerConfig
from ridgeline.core.text.vocabulary import SPACE_MARK, build_vocabulary, metaspace
from ridgeline.util.untrusted import PointerFile, refuse_pointer

_TIKTOKEN = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\r?\n")  # a line: a piece in base64, its rank
_ENCODER_DECODERS = ("t5", "mt5", "umt5")


class SentencePieceTokenizer(Tokenizer):
    """A tokenizer that runs a SentencePiece `.model` file.

    Control tokens are inserted only by id. Text after a control token gets the model's dummy prefix again, as in the
    reference code of Llama and Mistral, which encodes each text separately.
    """

    def __init__(self, path: Path, declared: TokenizerConfig, model: bytes | None = None) -> None:
        """Load a SentencePiece model and apply the declared special tokens.

        Args:
            path: The model file, named in errors.
            declared: Declarations of the model folder.
            model: Bytes of the model, if the file at `path` contains other data too (GGUF).

        Raises:
            ValueError: If the file is not a SentencePiece model, or the engine cannot use its tokens.
        """
        model, raw = _load(path, frozenset(), model)
        size = raw.vocab_size()
        pieces = {raw.id_to_piece(index): index for index in range(size)}
        own = (("bos_token", raw.bos_id()), ("eos_token", raw.eos_id()), ("unk_token", raw.unk_id()))
        names = {name: raw.id_to_piece(index) for name, index in own if index >= 0} | dict(declared.names)
        added = _added(raw, pieces, declared, {*names.values(), *declared.extra_special})
        vocabulary = build_vocabulary(pieces, added, metaspace, declared.is_control)
        # A declared control token that is an ordinary piece of the model could otherwise come from user text.
        _, self._processor = _load(path, vocabulary.control.keys() & pieces.keys(), model)
        probe = self._processor.encode("a", out_type=str)
        super().__init__(
            vocabulary,
            names,
            prefix=_ids(vocabulary.control, names, "bos_token", _or(declared.add_bos, not _is_t5(declared))),
            suffix=_ids(vocabulary.control, names, "eos_token", _or(declared.add_eos, _is_t5(declared))),
            strips_space=bool(probe) and probe[0].startswith(SPACE_MARK),
        )

    @override
    def _encode_parts(self, parts: Sequence[PromptPart]) -> list[int]:
        ids: list[int] = []
        for part in _joined(parts):
            ids += [part] if isinstance(part, int) else self._processor.encode(part)
        return ids


def _added(
    raw: sentencepiece.SentencePieceProcessor,
    pieces: Mapping[str, int],
    declared: TokenizerConfig,
    special: AbstractSet[str],
) -> dict[int, tuple[str, bool]]:
    """Return the literal and the special flag, by id, of each token of a tokenizer that is not an ordinary piece."""
    added: dict[int, tuple[str, bool]] = {}
    for literal, index in pieces.items():
        if raw.is_control(index) or raw.is_unknown(index) or literal in special:
            added[index] = (literal, True)
        elif not raw.is_byte(index) and declared.is_control(literal, False):
            added[index] = (literal, False)
    for row in declared.added:
        added[row.id] = (row.literal, row.special)
    return added


def _joined(parts: Sequence[PromptPart]) -> Iterator[PromptPart]:
    """Merge adjacent texts of a prompt into one, because a piece can cross their border."""
    text: list[str] = []
    for part in parts:
        if isinstance(part, str):
            text.append(part)
            continue
        if any(text):
            yield "".join(text)
        text.clear()
        yield part
    if any(text):
        yield "".join(text)


def _load(
    path: Path, control: AbstractSet[str], model: bytes | None = None
) -> tuple[bytes, sentencepiece.SentencePieceProcessor]:
    """Load a SentencePiece model, with some pieces retyped as control tokens.

    Returns:
        The bytes of the unchanged model, and a processor that runs it with the retyped pieces.

    Raises:
        ValueError: If the file is not a SentencePiece model.
    """
    try:
        model = _read(path) if model is None else model
        processor = sentencepiece.SentencePieceProcessor()
        processor.LoadFromSerializedProto(retype_as_control(model, control) if control else model)
        if processor.vocab_size() < 1:
            raise ValueError("it has no pieces")
    except (_OtherFile, PointerFile):
        raise
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).splitlines() or ["unknown"])[0][:200]
        raise ValueError(f"{path}: not a SentencePiece model ({reason}); copy the file again") from error
    return model, processor


class _OtherFile(ValueError):
    """An error for a file that is known to be something other than a SentencePiece model."""


def _read(path: Path) -> bytes:
    """Return the bytes of a SentencePiece model file.

    Raises:
        _OtherFile: If the file contains tiktoken ranks.
        PointerFile: If the file is only a pointer to the real one.
        OSError: If the file cannot be read.
    """
    refuse_pointer(path)
    data = path.read_bytes()
    if _TIKTOKEN.match(data):
        raise _OtherFile(
            f"{path} holds tiktoken's pieces without the rule that splits text; copy tokenizer.json of the model's "
            "release next to it"
        )
    return data


def _is_t5(declared: TokenizerConfig) -> bool:
    name = (declared.tokenizer_class or declared.model_type).lower()
    return name.removesuffix("fast").removesuffix("tokenizer") in _ENCODER_DECODERS


def _ids(control: Mapping[str, int], names: Mapping[str, str], name: str, wanted: bool) -> list[int]:
    index = control.get(names.get(name, ""))
    return [index] if wanted and index is not None else []


def _or(stated: bool | None, default: bool) -> bool:
    return default if stated is None else stated


_PIECES, _PIECE, _TYPE = 1, 1, 3
_UNKNOWN, _CONTROL = 2, 3


def retype_as_control(model: bytes, literals: AbstractSet[str]) -> bytes:
    """Return a SentencePiece model in which the given pieces have the type CONTROL; the unknown piece keeps its type.

    The library matches "user defined" pieces in any text, so a typed `<start_of_turn>` would become Gemma's control
    token. It never matches CONTROL pieces. Wire format of sentencepiece_model.proto: ModelProto.pieces = 1 (repeated
    message), SentencePiece.piece = 1 (string), SentencePiece.type = 3 (enum: UNKNOWN 2, CONTROL 3).

    Raises:
        ValueError: If the bytes are not a protobuf message.
    """
    wanted = {literal.encode("utf-8") for literal in literals}
    out = bytearray()
    for number, start, body, end in _fields(model, 0, len(model)):
        message = model[body:end]
        if number != _PIECES or not _is_wanted(message, wanted):
            out += model[start:end]
            continue
        # In protobuf the last value of a field wins, so appending replaces the type.
        message += encoded_field(_TYPE, _CONTROL)
        out += encoded_field(_PIECES, message)
    return bytes(out)


def encoded_field(number: int, value: int | float | bytes) -> bytes:
    """Encode one protobuf field: an unsigned integer or boolean, a 32-bit float, or bytes."""
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    return _varint(number << 3 | 2) + _varint(len(value)) + value


def _is_wanted(message: bytes, wanted: AbstractSet[bytes]) -> bool:
    """Return whether a serialised piece is one of the given texts and is not the unknown piece."""
    text, kind = b"", 1
    for number, _, body, end in _fields(message, 0, len(message)):
        if number == _PIECE:
            text = message[body:end]
        elif number == _TYPE:
            kind = message[body]
    return text in wanted and kind != _UNKNOWN


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (field number, start of tag, start of value, end) of each field of a protobuf message.

    Raises:
        ValueError: If the message is truncated or has an unknown wire type.
    """
    while at < stop:
        start = at
        tag, at = _read_varint(data, at, stop)
        kind = tag & 7
        body = at
        if kind == 0:
            _, at = _read_varint(data, at, stop)
        elif kind == 2:
            length, body = _read_varint(data, at, stop)
            at = body + length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"unknown wire type {kind} at byte {start}")
        if at > stop:
            raise ValueError(f"field at byte {start} is truncated")
        yield tag >> 3, start, body, at


def _read_varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    """Read a protobuf varint and return its value and the position after it."""
    value = shift = 0
    while at < stop and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError(f"number at byte {at} is truncated")


def _varint(value: int) -> bytes:
    """Encode an unsigned integer as a protobuf varint."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
