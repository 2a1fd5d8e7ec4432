"""Memory layout of quantised weights on the CPU: in huge pages, and interleaved if that makes the kernels faster."""

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

_GIVEN_BACK = 64 << 20  # bytes to move before freed memory is released; they add to the peak
_LINE = 64  # bytes: parameters are aligned to cache lines


def lay_out(model: PricedModule) -> None:
    """Move a loaded model's quantised weights permanently to the memory layout that the C++ kernels read fastest.

    Raises:
        OSError: If the system refuses the memory for a second copy.
    """
    calls = [op.matrices for _, op in model.ops() if isinstance(op, MatrixOp)]
    calls += [(op.table,) for _, op in model.ops() if isinstance(op, Embedding) and op.table is not None]
    settle((module for module in model.modules() if isinstance(module, Matrix)), calls)


def interleaves(matrix: Matrix) -> bool:
    """Return whether this machine's kernels are faster with interleaved codes of a matrix.

    They need int4 codes, or int8 codes with the middle zero point, in groups of whole UNITs or whole rows with a scale
    per output and no minimums, and a multiple of 16 outputs. The model must be in bf16, or the weights must be in W8A8
    or from a GGUF file.
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
        and codes.outputs_per_scale == 1
        and own.group > UNIT // 2
        and codes.minima_OG is None
    )


def settle(matrices: Iterable[Matrix], calls: Iterable[tuple[Matrix, ...]]) -> None:
    """Move the codes, scales and zero points of a model's quantised matrices to new memory.

    Plain matrices stay where they are, and so do prequantised matrices that are not interleaved, since they can be
    mapped from the checkpoint.

    Args:
        matrices: All matrices of a model.
        calls: Matrices that rows are multiplied with in one call. All matrices of a call are interleaved, or none.

    Raises:
        OSError: If the system refuses the memory.
    """
    interleaved: set[int] = set()
    for call in calls:
        coded = [base for matrix in call if (base := _coded(matrix)) is not None and _may_move(base)]
        if len(coded) == len(call):
            interleaved.update(id(base.codes) for base in coded)
    sharing = defaultdict[int, list[QuantisedMatrix]](list)  # a tied head shares the embedding's codes
    for matrix in matrices:
        if isinstance(matrix, QuantisedMatrix):
            sharing[id(matrix.codes)].append(matrix)
    moved = [
        (own, key in interleaved)
        for key, own in sharing.items()
        if own[0].codes.is_cpu and (key in interleaved or not isinstance(own[0], PrequantisedMatrix))
    ]
    nbytes = sum(_aligned_bytes(tensor) for own, _ in moved for tensor in own[0].held().values())
    if not nbytes:
        return
    memory, at, given_back = torch.frombuffer(fresh_memory(nbytes), dtype=torch.uint8), 0, 0
    for own, interleave in moved:
        for name, tensor in own[0].held(interleaved=interleave).items():
            place = memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
            parameter = nn.Parameter(place.copy_(tensor), requires_grad=False)
            for matrix in own:
                setattr(matrix, name, parameter)
            at += _aligned_bytes(tensor)
        if at - given_back > _GIVEN_BACK or at == nbytes:
            give_back_freed_memory()
            given_back = at


def _coded(matrix: Matrix) -> QuantisedMatrix | None:
    """Return a quantised matrix, without any LoRA adapters; None for any other matrix."""
    own = matrix.base if isinstance(matrix, AdaptedMatrix) else matrix
    return own if isinstance(own, QuantisedMatrix) else None


def _may_move(matrix: QuantisedMatrix) -> bool:
    """Return whether a quantised matrix should be interleaved in memory and is not yet."""
    return interleaves(matrix) and matrix.codes.is_cpu and matrix.codes.is_contiguous() and not matrix.interleaved


def _aligned_bytes(tensor: Tensor) -> int:
    """Return the bytes of a tensor, rounded up to cache lines."""
    return -(-tensor.nbytes // _LINE) * _LINE
