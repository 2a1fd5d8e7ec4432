"""Messages between processes as bytes: msgpack behind four bytes of length. Nothing that comes in is executed."""

import struct
from collections.abc import Mapping
from typing import Any, Generic, TypeVar, get_origin

import msgspec
import numpy as np

_LENGTH = struct.Struct(">I")
M = TypeVar("M")


def _plain(value: object) -> Any:
    """Mappings of a type of their own cross as a dict, which the decoder makes that type again where it can; arrays of
    fp32 as their shape and their bytes.
    """
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return [list(value.shape), value.tobytes()]
    raise TypeError(f"{type(value).__name__} does not cross a process")


def _array(kind: type, value: Any) -> Any:
    """The array that `_plain` took apart."""
    if get_origin(kind) is np.ndarray:
        shape, data = value
        return np.frombuffer(data, np.float32).reshape(shape)
    raise TypeError(f"{kind} does not cross a process")


class MessageCodec(Generic[M]):
    """Frames of messages, out and in. What comes in may be cut anywhere."""

    def __init__(self, messages: Any) -> None:
        """messages: the type, or union of types, that comes in."""
        self._encoder = msgspec.msgpack.Encoder(enc_hook=_plain)
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(messages, dec_hook=_array)
        self._rest = bytearray()

    def encode(self, message: object) -> bytes:
        """One frame."""
        body = self._encoder.encode(message)
        return _LENGTH.pack(len(body)) + body

    def feed(self, data: bytes) -> list[M]:
        """The messages that are whole with these bytes."""
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
        """The message of one frame, without its length. Raises msgspec.MsgspecError for what is none."""
        return self._decoder.decode(body)
