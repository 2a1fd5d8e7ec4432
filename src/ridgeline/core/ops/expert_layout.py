"""Layouts: how a checkpoint stores all experts of a layer in one piece, and the parts of such a tensor.

Shapes: E experts, D hidden, F columns of an expert of all ranks together.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.ops.stored_module import dtype_mismatch


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """What a tensor says of one matrix of each expert. parameter: weight or bias. of: that of one expert."""

    matrix: Literal["gate", "up", "down"]
    parameter: str
    of: Callable[[int], Tensor]


class ExpertLayout(Protocol):
    """How experts lie in the tensors of a checkpoint."""

    def tensors(self, *, bias: bool) -> tuple[str, ...]:
        """The names of its tensors."""
        ...

    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart] | None:
        """What the tensor `name`, which has just arrived, says together with those that came before; None where another
        is still missing. sizes: E, D, F. Raises ValueError for one of another shape or dtype.
        """
        ...


class Stacked:
    """gate_up_proj [E, 2F, D], the gate's rows first, and down_proj [E, D, F]: as newer checkpoints of Mixtral's and
    Qwen's kin have them. Or each expert's matrix turned, as releases of Qwen3-VL's mixtures have them; where sizes do
    not tell, as in the former, which is how transformers reads them.
    """

    def tensors(self, *, bias: bool) -> tuple[str, ...]:
        """As ExpertLayout.tensors."""
        assert not bias, "nobody stores such experts with biases"
        return "gate_up_proj", "down_proj"

    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart]:
        """As ExpertLayout.parts."""
        count, hidden, width = sizes
        rows, inputs = (hidden, width) if name == "down_proj" else (2 * width, hidden)
        full = arrived[name]
        if tuple(full.shape) == (count, inputs, rows) and inputs != rows:
            full = full.transpose(1, 2)
        _check(full, (count, rows, inputs), dtype)
        return _gate_first(name, full, width)


class TransposedExperts(Stacked):
    """gate_up_proj [E, D, 2F], the gate's columns first, and down_proj [E, F, D], whatever the sizes: Llama 4. Turned
    on the way in, as products read rows of outputs.
    """

    @override
    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart]:
        count, hidden, width = sizes
        full = arrived[name]
        _check(full, (count, width, hidden) if name == "down_proj" else (count, hidden, 2 * width), dtype)
        return _gate_first(name, full.transpose(1, 2), width)


class Ungated:
    """up_proj [E, F, D] and down_proj [E, D, F], of experts without a gate."""

    def tensors(self, *, bias: bool) -> tuple[str, ...]:
        """As ExpertLayout.tensors."""
        assert not bias, "nobody stores such experts with biases"
        return "up_proj", "down_proj"

    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart]:
        """As ExpertLayout.parts."""
        count, hidden, width = sizes
        full = arrived[name]
        if name == "down_proj":
            _check(full, (count, hidden, width), dtype)
            return (ExpertPart("down", "weight", full.__getitem__),)
        _check(full, (count, width, hidden), dtype)
        return (ExpertPart("up", "weight", full.__getitem__),)


class Interleaved:
    """gate_up_proj [E, D, 2F], a column of the gate before each one that it gates, and down_proj [E, F, D], with
    biases: gpt-oss. Turned on the way in, as products read rows of outputs.
    """

    def tensors(self, *, bias: bool) -> tuple[str, ...]:
        """As ExpertLayout.tensors."""
        assert bias, "its experts have biases"
        return "gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"

    def parts(
        self, name: str, arrived: Mapping[str, Tensor], sizes: tuple[int, int, int], dtype: torch.dtype
    ) -> Iterable[ExpertPart] | None:
        """As ExpertLayout.parts."""
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
        """Those of gate and up, or of down."""
        count, hidden, width = sizes
        if name == "down_proj_bias":
            _check(full, (count, hidden), dtype)
            return (ExpertPart("down", "bias", full.__getitem__),)
        _check(full, (count, 2 * width), dtype)
        return _every_second(full, "bias")


class Mxfp4(Interleaved):
    """As Interleaved, its rows in MXFP4: `_blocks` uint8 [E, rows, inputs / 32, 16], two numbers a byte, the low half
    first, and `_scales` uint8 [E, rows, inputs / 32], exponents of 2 with a bias of 127 (Open Compute Project,
    Microscaling Formats 1.0). Widened to the model's dtype, one expert at a time.
    """

    @override
    def tensors(self, *, bias: bool) -> tuple[str, ...]:
        assert bias, "its experts have biases"
        names = (f"{name}_{part}" for name in ("gate_up_proj", "down_proj") for part in ("blocks", "scales"))
        return (*names, "gate_up_proj_bias", "down_proj_bias")

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
            return (ExpertPart("down", "weight", lambda e: widened(blocks[e], scales[e], dtype)),)
        return (
            ExpertPart("gate", "weight", lambda e: widened(blocks[e, ::2], scales[e, ::2], dtype)),
            ExpertPart("up", "weight", lambda e: widened(blocks[e, 1::2], scales[e, 1::2], dtype)),
        )


STACKED, TURNED, UNGATED, INTERLEAVED, MXFP4_BLOCKS = Stacked(), TransposedExperts(), Ungated(), Interleaved(), Mxfp4()

# The numbers that four bits name: a sign, two bits of exponent, one of mantissa.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPONENT_BIAS = 127


def widened(blocks_RBH: Tensor, scales_RB: Tensor, dtype: torch.dtype) -> Tensor:
    """MXFP4 rows, uint8 [R, B, 16] and [R, B] -> [R, B x 32] in a dtype that holds them exactly."""
    values = torch.tensor([*_E2M1, *(-value for value in _E2M1)], dtype=dtype, device=blocks_RBH.device)
    pairs_RBH2 = torch.stack([blocks_RBH & 15, blocks_RBH >> 4], dim=-1)
    numbers_RBN = values[pairs_RBH2.long()].flatten(2)
    return torch.ldexp(numbers_RBN, (scales_RB.int() - _EXPONENT_BIAS)[:, :, None]).to(dtype).flatten(1)


def _gate_first(name: str, full: Tensor, width: int) -> tuple[ExpertPart, ...]:
    """Gate and up of a tensor [E, 2F, D] that has all of the gate first, or down of one [E, D, F]."""
    if name == "down_proj":
        return (ExpertPart("down", "weight", lambda e: full[e].contiguous()),)
    return (
        ExpertPart("gate", "weight", lambda e: full[e, :width].contiguous()),
        ExpertPart("up", "weight", lambda e: full[e, width:].contiguous()),
    )


def _every_second(full: Tensor, parameter: str) -> tuple[ExpertPart, ExpertPart]:
    """Gate and up of a tensor [E, 2F, ...] that has them by turns."""
    return (
        ExpertPart("gate", parameter, lambda e: full[e, ::2].contiguous()),
        ExpertPart("up", parameter, lambda e: full[e, 1::2].contiguous()),
    )


def _check(full: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(full.shape) != shape:
        raise ValueError(f"is {list(full.shape)}, the config wants {list(shape)}")
    if full.dtype != dtype:
        raise ValueError(dtype_mismatch(full.dtype, dtype))
