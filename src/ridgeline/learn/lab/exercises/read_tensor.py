"""A tensor in a checkpoint: the header states its place, and the bytes follow the header."""

import json
import struct


def read_tensor(file: bytes, name: str) -> list[float]:
    """Return the numbers of a tensor of dtype F32 in a safetensors file.

    The first eight bytes are the length of the header as a number, low byte first. The header is JSON: under the
    tensor's name it has `data_offsets`, the first byte and the one after the last, counted from the end of the header.
    """
    (length,) = struct.unpack("<Q", file[:8])
    header = json.loads(file[8 : 8 + length])
    first, last = header[name]["data_offsets"]
    data = file[8 + length :][first:last]
    return [number for (number,) in struct.iter_unpack("<f", data)]
