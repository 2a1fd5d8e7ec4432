"""The layouts in which checkpoints store all experts of a layer in single tensors, and the way to split these.

Shapes: E experts, D hidden, F columns of an expert over all ranks.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.stored_module import dtype_mismatch


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """One matrix or bias of each expert, as a part of a tensor for all experts."""

    matrix: Literal["gate", "up", "down"]
    """The name of the expert's matrix (gate, up or down) that this part of a tensor belongs to."""
    parameter: str
    """The parameter of an expert's matrix that this part of a tensor fills: weight or bias."""
    of: Callable[[int], Tensor]
    """The function that returns the part of the expert with a given index."""


class ExpertLayout(ABC):
    """The base class of the layouts in which checkpoints store all experts of a layer."""

    names: tuple[str, ...]
    """The checkpoint names of the tensors that each hold one matrix or bias of all experts of a layer."""
    biased = False
    """Whether the experts have biases."""

    def tensors(self, *, bias: bool) -> tuple[str, ...]:
        """Return `names`; `bias` says whether the caller's experts have biases, which must match the layout."""
        assert bias == self.biased, f"this expert layout has {'biases' if self.biased else 'no biases'}"
        return self.names

    @abstractmethod
    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart] | None:
        """Return the expert parts that the tensor `name`, just read, completes, or None if another is missing.

        Args:
            name: The name of the tensor that was just read.
            arrived: The tensors that have been read, by name, including this one.
            sizes: The sizes E, D and F.
            dtype: The model's dtype.

        Raises:
            ValueError: If the tensor has another shape or dtype.
        """


class Stacked(ExpertLayout):
    """The layout of newer Mixtral and Qwen checkpoints, which store gate and up matrices in one tensor.

    The tensors are gate_up_proj [E, 2F, D], gate rows first, and down_proj [E, D, F]. The class also reads the
    transposed matrices of Qwen3-VL mixtures. If the shape does not tell the two apart, it assumes the first form, as
    transformers does.
    """

    names = ("gate_up_proj", "down_proj")

    @override
    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart]:
        """Return each expert's gate and up matrices from gate_up_proj, or its down matrix from down_proj."""
        count, hidden, width = sizes
        rows, inputs = (hidden, width) if name == "down_proj" else (2 * width, hidden)
        full = arrived[name]
        if tuple(full.shape) == (count, inputs, rows) and inputs != rows:
            full = full.transpose(1, 2)
        _check(full, (count, rows, inputs), dtype)
        return _gate_first(name, full, width)


class TransposedExperts(Stacked):
    """The layout of Llama 4: gate_up_proj [E, D, 2F], the gate's columns first, and down_proj [E, F, D].

    Loading transposes the matrices, because products read rows of outputs.
    """

    @override
    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart]:
        count, hidden, width = sizes
        full = arrived[name]
        _check(full, (count, width, hidden) if name == "down_proj" else (count, hidden, 2 * width), dtype)
        return _gate_first(name, full.transpose(1, 2), width)


class Ungated(ExpertLayout):
    """The layout of experts without a gate: up_proj [E, F, D] and down_proj [E, D, F]."""

    names = ("up_proj", "down_proj")

    @override
    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart]:
        """Return each expert's up matrix from up_proj, or its down matrix from down_proj."""
        count, hidden, width = sizes
        full = arrived[name]
        down = name == "down_proj"
        _check(full, (count, hidden, width) if down else (count, width, hidden), dtype)
        return (ExpertPart("down" if down else "up", "weight", full.__getitem__),)


class FlatRows(ExpertLayout):
    """The layout of DBRX: w1 (gate), v1 (up) and w2 (down) [E x F, D], with the rows of one expert after another's.

    Loading transposes the down matrices, because products read rows of outputs.
    """

    names = ("w1", "v1", "w2")

    @override
    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart]:
        """Return each expert's gate matrix from w1, its up matrix from v1, or its down matrix from w2."""
        count, hidden, width = sizes
        full = arrived[name]
        _check(full, (count * width, hidden), dtype)
        each = full.view(count, width, hidden)
        if name == "w2":
            return (ExpertPart("down", "weight", lambda e: each[e].t().contiguous()),)
        return (ExpertPart("gate" if name == "w1" else "up", "weight", each.__getitem__),)


class Interleaved(ExpertLayout):
    """The checkpoint layout of gpt-oss, in which the columns of the experts' gate and up matrices alternate.

    The tensors are gate_up_proj [E, D, 2F], which starts with a column of the gate, and down_proj [E, F, D], each with
    biases. Loading transposes the matrices, because products read rows of outputs.
    """

    names: tuple[str, ...] = ("gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias")
    biased = True

    @override
    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart] | None:
        """Return each expert's gate and up, or down, weights or biases from one tensor of gpt-oss."""
        count, hidden, width = sizes
        full = arrived[name]
        if name == "down_proj":
            _check(full, (count, width, hidden), dtype)
            return (ExpertPart("down", "weight", lambda e: full[e].t().contiguous()),)
        if name == "gate_up_proj":
            _check(full, (count, hidden, 2 * width), dtype)
            full = full.transpose(1, 2)
            return _every_second(full, "weight")
        return self.biases(name, full, sizes, dtype)

    def biases(self, name: str, full: Tensor, sizes: tuple[int, int, int], dtype: torch.dtype) -> Iterable[ExpertPart]:
        """Return each expert's gate and up biases, or its down bias, from one tensor of gpt-oss."""
        count, hidden, width = sizes
        if name == "down_proj_bias":
            _check(full, (count, hidden), dtype)
            return (ExpertPart("down", "bias", full.__getitem__),)
        _check(full, (count, 2 * width), dtype)
        return _every_second(full, "bias")


class Mxfp4(Interleaved):
    """The checkpoint layout of gpt-oss's experts in MXFP4, in which rows of the gate and up matrices alternate.

    `_blocks` uint8 [E, rows, inputs / 32, 16] has two numbers per byte, the low half first. `_scales` uint8 [E, rows,
    inputs / 32] has exponents of 2 with a bias of 127 (Open Compute Project, Microscaling Formats 1.0). Loading widens
    them to the model's dtype, one expert at a time.
    """

    names = (
        "gate_up_proj_blocks", "gate_up_proj_scales", "down_proj_blocks", "down_proj_scales", "gate_up_proj_bias",
        "down_proj_bias",
    )  # fmt: skip

    @override
    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart] | None:
        if name.endswith("_bias"):
            return self.biases(name, arrived[name], sizes, dtype)
        matrix = name.rpartition("_")[0]
        blocks, scales = arrived.get(f"{matrix}_blocks"), arrived.get(f"{matrix}_scales")
        if blocks is None or scales is None:
            return None
        count, hidden, width = sizes
        rows, inputs = (hidden, width) if matrix == "down_proj" else (2 * width, hidden)
        _check(blocks, (count, rows, inputs // 32, 16), torch.uint8)
        _check(scales, (count, rows, inputs // 32), torch.uint8)
        if matrix == "down_proj":
            return (ExpertPart("down", "weight", lambda e: dequantise_mxfp4(blocks[e], scales[e], dtype)),)
        return (
            ExpertPart("gate", "weight", lambda e: dequantise_mxfp4(blocks[e, ::2], scales[e, ::2], dtype)),
            ExpertPart("up", "weight", lambda e: dequantise_mxfp4(blocks[e, 1::2], scales[e, 1::2], dtype)),
        )


STACKED, TURNED, UNGATED, FLAT = Stacked(), TransposedExperts(), Ungated(), FlatRows()
INTERLEAVED, MXFP4_BLOCKS = Interleaved(), Mxfp4()

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The non-negative numbers of the 4-bit format E2M1: a sign, two bits of exponent and one of mantissa."""
_EXPONENT_BIAS = 127


def dequantise_mxfp4(blocks_RBH: Tensor, scales_RB: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert MXFP4 rows, uint8 [R, B, 16] and [R, B], to a dtype that holds them exactly: [R, B x 32]."""
    values = torch.tensor([*_E2M1, *(-value for value in _E2M1)], dtype=dtype, device=blocks_RBH.device)
    pairs_RBH2 = torch.stack([blocks_RBH & 15, blocks_RBH >> 4], dim=-1)
    numbers_RBN = values[pairs_RBH2.long()].flatten(2)
    return torch.ldexp(numbers_RBN, (scales_RB.int() - _EXPONENT_BIAS)[:, :, None]).to(dtype).flatten(1)


def _gate_first(name: str, full: Tensor, width: int) -> tuple[ExpertPart, ...]:
    """Split experts' weights [E, 2F, D] into gate and up matrices, the gate first; [E, D, F] are down matrices."""
    if name == "down_proj":
        return (ExpertPart("down", "weight", lambda e: full[e].contiguous()),)
    return (
        ExpertPart("gate", "weight", lambda e: full[e, :width].contiguous()),
        ExpertPart("up", "weight", lambda e: full[e, width:].contiguous()),
    )


def _every_second(full: Tensor, parameter: str) -> tuple[ExpertPart, ExpertPart]:
    """Split experts' weights or biases [E, 2F, ...] with alternating rows of gate and up into the two matrices."""
    return (
        ExpertPart("gate", parameter, lambda e: full[e, ::2].contiguous()),
        ExpertPart("up", parameter, lambda e: full[e, 1::2].contiguous()),
    )


def _check(full: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise ValueError if a tensor of expert weights has another shape or dtype than expected."""
    if tuple(full.shape) != shape:
        raise ValueError(f"has shape {list(full.shape)}, but the config requires {list(shape)}")
    if full.dtype != dtype:
        raise ValueError(dtype_mismatch(full.dtype, dtype))
