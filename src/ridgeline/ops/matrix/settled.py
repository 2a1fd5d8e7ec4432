"""Codes as they stay in this machine's memory: in huge pages, interleaved where kernels are faster then."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ridgeline.host import fresh_memory
from ridgeline.ops.matrix.matrix import Matrix
from ridgeline.ops.matrix.prequantised import PrequantisedMatrix
from ridgeline.ops.matrix.quantised import QuantisedMatrix

_LINE = 64  # bytes: parameters begin with a line of the cache


def settle(matrices: Iterable[Matrix], calls: Iterable[tuple[Matrix, ...]]) -> None:
    """Move codes, scales and zeros to memory of their own. matrices: all of a network, of which plain ones, and those
    of a checkpoint that are not interleaved (they may be mapped from its file), are left where they are. calls: those
    that rows are multiplied with at once, which are interleaved all or none. Raises OSError where the memory is
    refused."""
    interleaved = {
        id(matrix.codes)
        for call in calls
        if all(isinstance(matrix, QuantisedMatrix) and matrix.interleaves for matrix in call)
        for matrix in call
        if isinstance(matrix, QuantisedMatrix)
    }
    sharing = defaultdict[int, list[QuantisedMatrix]](list)  # a tied head is the embedding's codes
    for matrix in matrices:
        if isinstance(matrix, QuantisedMatrix):
            sharing[id(matrix.codes)].append(matrix)
    moved = [
        (own, key in interleaved)
        for key, own in sharing.items()
        if own[0].codes.is_cpu and (key in interleaved or not isinstance(own[0], PrequantisedMatrix))
    ]
    nbytes = sum(_room(tensor) for own, _ in moved for tensor in own[0].held().values())
    if not nbytes:
        return
    memory, at = torch.frombuffer(fresh_memory(nbytes), dtype=torch.uint8), 0
    for own, interleave in moved:
        for name, tensor in own[0].held(interleaved=interleave).items():
            place = memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            parameter = nn.Parameter(place.copy_(tensor), requires_grad=False)
            for matrix in own:
                setattr(matrix, name, parameter)
            at += _room(tensor)


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _LINE) * _LINE
