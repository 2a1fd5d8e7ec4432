"""A tensor in a checkpoint: where it is stands in the header, and behind the header are the bytes."""

import json
import struct


def read_tensor(file: bytes, name: str) -> list[float]:
    """The numbers of a tensor of dtype F32 in a safetensors file.

    The first eight bytes are a number, low byte first: how long the header is. The header is JSON: the tensor's name,
    and under it `data_offsets`, the first byte and the one after the last, counted from the end of the header.
    """
    (length,) = struct.unpack("<Q", file[:8])
    header = json.loads(file[8 : 8 + length])
    first, last = header[name]["data_offsets"]
    data = file[8 + length :][first:last]
    return [number for (number,) in struct.iter_unpack("<f", data)]
