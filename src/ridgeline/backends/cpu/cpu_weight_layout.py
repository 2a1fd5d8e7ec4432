"""Codes as they stay in this machine's memory: in huge pages, interleaved where kernels are faster then."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from ridgeline.backends.cpu.library import library
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.linear import MatrixOp
from ridgeline.core.ops.matrix import AdaptedMatrix, Matrix, PrequantisedMatrix, QuantisedMatrix
from ridgeline.core.ops.matrix.interleaved import LANES
from ridgeline.core.ops.matrix.operands import DTYPES, UNIT
from ridgeline.core.ops.matrix.quantised import MIDDLE
from ridgeline.util.host import fresh_memory, give_back_freed_memory

_GIVEN_BACK = 64 << 20  # bytes that are moved before the old ones are given back: the peak is so much more
_LINE = 64  # bytes: parameters begin with a line of the cache


def lay_out(model: PricedModule) -> None:
    """Move the codes of a model that is filled as the library reads them fastest, for good.

    Raises:
        OSError: the memory for a second copy is refused.
    """
    calls = [op.matrices for _, op in model.ops() if isinstance(op, MatrixOp)]
    calls += [(op.table,) for _, op in model.ops() if isinstance(op, Embedding) and op.table is not None]
    settle((module for module in model.modules() if isinstance(module, Matrix)), calls)


def interleaves(matrix: Matrix) -> bool:
    """Return whether this machine's kernels are faster with the codes of a matrix side by side: integers in groups of
    whole UNITs, with a multiple of 16 outputs, of a model in a dtype that they read.
    """
    own = _coded(matrix)
    kernels = library() if own is not None and own.spec.dtype in DTYPES else None
    operands = None if own is None else own.operands
    if own is None or kernels is None or not kernels.interleaves or operands is None or not own.rounds_units:
        return False
    codes = operands.codes
    if codes is None:
        return False
    middle = not isinstance(codes.zeros_OG, torch.Tensor) and codes.zeros_OG == MIDDLE["int8"]
    return (
        (codes.kind == "int4" or (codes.kind in ("int8", "w8a8") and middle))
        and own.outputs % LANES == 0
        and codes.outputs == 1
        and own.group > UNIT // 2
        and codes.lows_OG is None
    )


def settle(matrices: Iterable[Matrix], calls: Iterable[tuple[Matrix, ...]]) -> None:
    """Move codes, scales and zeros to memory of their own. matrices: all of a network, of which plain ones, and those
    of a checkpoint that are not interleaved (they may be mapped from its file), are left where they are. calls: those
    that rows are multiplied with at once, which are interleaved all or none. Raises OSError where the memory is
    refused.
    """
    interleaved: set[int] = set()
    for call in calls:
        coded = [base for matrix in call if (base := _coded(matrix)) is not None and _may_move(base)]
        if len(coded) == len(call):
            interleaved.update(id(base.codes) for base in coded)
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
    memory, at, given_back = torch.frombuffer(fresh_memory(nbytes), dtype=torch.uint8), 0, 0
    for own, interleave in moved:
        for name, tensor in own[0].held(interleaved=interleave).items():
            place = memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            parameter = nn.Parameter(place.copy_(tensor), requires_grad=False)
            for matrix in own:
                setattr(matrix, name, parameter)
            at += _room(tensor)
        if at - given_back > _GIVEN_BACK or at == nbytes:
            give_back_freed_memory()
            given_back = at


def _coded(matrix: Matrix) -> QuantisedMatrix | None:
    """A matrix of codes, also one that has adapters beside it."""
    own = matrix.base if isinstance(matrix, AdaptedMatrix) else matrix
    return own if isinstance(own, QuantisedMatrix) else None


def _may_move(matrix: QuantisedMatrix) -> bool:
    """Whether it is to be interleaved, and is not yet."""
    return interleaves(matrix) and matrix.codes.is_cpu and matrix.codes.is_contiguous() and not matrix.interleaved


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _LINE) * _LINE
