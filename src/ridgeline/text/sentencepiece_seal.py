"""Retype pieces of a SentencePiece model file so that text never spells a control token.

The library matches "user defined" pieces in any text: a typed `<start_of_turn>` would become Gemma's control token.
CONTROL pieces are never matched. Wire format of sentencepiece_model.proto: ModelProto.pieces = 1 (repeated message),
SentencePiece.piece = 1 (string), SentencePiece.type = 3 (enum: UNKNOWN 2, CONTROL 3).
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

_PIECES, _PIECE, _TYPE = 1, 1, 3
_UNKNOWN, _CONTROL = 2, 3


def retype_as_control(model: bytes, literals: AbstractSet[str]) -> bytes:
    """The model with the type of the given pieces set to CONTROL; the unknown piece keeps its type.

    Raises ValueError when the bytes are not a protobuf message.
    """
    wanted = {literal.encode("utf-8") for literal in literals}
    out = bytearray()
    for number, start, body, end in _fields(model, 0, len(model)):
        message = model[body:end]
        if number != _PIECES or not _is_wanted(message, wanted):
            out += model[start:end]
            continue
        # In protobuf the last value of a field wins, so appending replaces the type.
        message += bytes([_TYPE << 3, _CONTROL])
        out += bytes([_PIECES << 3 | 2]) + _varint(len(message)) + message
    return bytes(out)


def _is_wanted(message: bytes, wanted: AbstractSet[bytes]) -> bool:
    text, kind = b"", 1
    for number, _, body, end in _fields(message, 0, len(message)):
        if number == _PIECE:
            text = message[body:end]
        elif number == _TYPE:
            kind = message[body]
    return text in wanted and kind != _UNKNOWN


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int, int]]:
    """(field number, start of the tag, start of the value, end) of each field of a message."""
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
            raise ValueError(f"wire type {kind} at byte {start}")
        if at > stop:
            raise ValueError(f"field at byte {start} is cut off")
        yield tag >> 3, start, body, at


def _read_varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError(f"number at byte {at} is cut off")


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
