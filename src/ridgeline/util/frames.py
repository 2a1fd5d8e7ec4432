"""The encoding of messages between processes: msgpack after a length of four bytes. Decoding executes no code."""

import struct
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, get_origin

import msgspec
import numpy as np

_LENGTH = struct.Struct(">I")
M = TypeVar("M")


def _plain(value: object) -> Any:
    """Return a custom mapping as a dict, and an fp32 array as its shape and bytes, for msgpack.

    The receiver decodes a mapping as a dict; a message class may convert it back.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return [list(value.shape), value.tobytes()]
    raise TypeError(f"a value of type {type(value).__name__} cannot be sent to another process")


def _array(kind: type, value: Any) -> Any:
    """Return the array that `_plain` has converted to its shape and bytes."""
    if get_origin(kind) is np.ndarray:
        shape, data = value
        return np.frombuffer(data, np.float32).reshape(shape)
    raise TypeError(f"a value of type {kind} cannot be received from another process")


class MessageCodec(Generic[M]):
    """An encoder and decoder of message frames; the incoming bytes may be split anywhere."""

    def __init__(self, messages: Any) -> None:
        """Create a codec whose incoming messages have this type, or one of these types."""
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(messages, dec_hook=_array)
        self._rest = bytearray()

    def encode(self, message: object) -> bytes:
        """Return a message as one frame: its length in four bytes, then the message in msgpack."""
        body = self._encoder.encode(message)
        return _LENGTH.pack(len(body)) + body

    def feed(self, data: bytes) -> list[M]:
        """Add incoming bytes and return the messages that are complete now.

        Raises:
            msgspec.MsgspecError: If a message is invalid.
        """
        self._rest += data
        messages, start = [], 0
        while len(self._rest) - start >= _LENGTH.size:
            end = start + _LENGTH.size + _LENGTH.unpack_from(self._rest, start)[0]
            if end > len(self._rest):
                break
            messages.append(self.decode(memoryview(self._rest)[start + _LENGTH.size : end]))
            start = end
        del self._rest[:start]
        return messages

    def decode(self, body: bytearray | memoryview) -> M:
        """Return the message of one frame without its length; raise msgspec.MsgspecError if it is invalid."""
        return self._decoder.decode(body)
