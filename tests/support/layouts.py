"""Quantisers' layouts in numpy, from their specifications: a matrix [O, I] becomes the tensors of a checkpoint, and
what these stand for."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Numbers = npt.NDArray[np.float32]
Quantiser = Callable[[Numbers], tuple[dict[str, Tensor], Numbers]]
"""A matrix [O, I] -> the tensors of a checkpoint by their own names, and the matrix that they stand for."""


def ceil(number: int, size: int) -> int:
    """How many of a size hold a number."""
    return -(-number // size)


# -- fp8 ---------------------------------------------------------------------------------------------------------------


def e4m3() -> Numbers:
    """What each byte stands for (arXiv:2209.05433, table 1): a sign, four bits of exponent with a bias of 7, three of
    mantissa; 0x7f and 0xff are NaN."""
    bytes_ = np.arange(256)
    sign, exponent, mantissa = 1 - 2.0 * (bytes_ >> 7), bytes_ >> 3 & 15, bytes_ & 7
    subnormal = mantissa / 8 * 2.0**-6
    numbers = np.where(exponent == 0, subnormal, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0)) * sign
    numbers[[0x7F, 0xFF]] = np.nan
    return numbers.astype(np.float32)


def fp8(
    rows: int | None, group: int | None, name: str, *, dtype: torch.dtype = torch.float32, flat: bool = False
) -> Quantiser:
    """weight in e4m3 and a scale of each block; None for all. name: of the scales. flat: whether scales have no second
    axis, nor a first where there is one of them."""
    table = e4m3()
    order = np.argsort(np.nan_to_num(table, nan=np.inf), kind="stable")[:254]

    def quantise(numbers: Numbers) -> tuple[dict[str, Tensor], Numbers]:
        outputs, inputs = numbers.shape
        high, wide = rows or outputs, group or inputs
        scales = np.zeros((ceil(outputs, high), ceil(inputs, wide)), np.float32)
        codes, stands_for = np.zeros(numbers.shape, np.uint8), np.zeros_like(numbers)
        for i in range(scales.shape[0]):
            for j in range(scales.shape[1]):
                at = np.s_[i * high : (i + 1) * high, j * wide : (j + 1) * wide]
                scale = torch.tensor(np.abs(numbers[at]).max() / 448).to(dtype).float().item()
                scales[i, j] = scale
                place = np.clip(np.searchsorted(table[order], numbers[at] / scale), 0, 253)
                codes[at] = order[place]
                stands_for[at] = table[codes[at]] * np.float32(scale)
        tensor = torch.from_numpy(scales).to(dtype)
        if flat:
            tensor = tensor.flatten() if rows else tensor.reshape(())
        return {"weight": torch.from_numpy(codes).view(torch.float8_e4m3fn), name: tensor}, stands_for

    return quantise


# -- integers ----------------------------------------------------------------------------------------------------------

Integers = npt.NDArray[np.int64]


def groups_of(inputs: int, group: int | None, *, shuffled: bool = False) -> Integers:
    """The group of each input; None for one of all."""
    groups_I = np.arange(inputs) // (group or inputs)
    if shuffled:
        np.random.default_rng(inputs).shuffle(groups_I)
    return groups_I


def rounded(
    numbers: Numbers, bits: int, groups_I: Integers, dtype: torch.dtype, *, symmetric: bool
) -> tuple[Integers, Numbers, Integers, Numbers]:
    """Codes [O, I] from 0 on, scales [O, G] that a dtype holds, zeros [O, G], and what these stand for: (code - zero) x
    scale. groups_I: the group of each input."""
    if not symmetric:  # zeros of 0 too
        numbers = np.concatenate([np.abs(numbers[:3]), numbers[3:]])
    most = 2**bits - 1
    codes, stands_for = np.zeros(numbers.shape, np.int64), np.zeros_like(numbers)
    scales = np.zeros((len(numbers), groups_I.max() + 1), np.float32)
    zeros = np.zeros(scales.shape, np.int64)
    for number in range(scales.shape[1]):
        own = numbers[:, groups_I == number]
        low, high = np.minimum(own.min(1), 0), np.maximum(own.max(1), 0)
        if symmetric:
            high = np.maximum(high, -low)
            low = -high
        scale = torch.from_numpy((high - low) / most).to(dtype).float().numpy()
        zero = (
            np.full(len(own), (most + 1) // 2)
            if symmetric
            else np.clip(np.rint(-low / scale), 0, most).astype(np.int64)
        )
        code = np.clip(np.rint(own / scale[:, None]) + zero[:, None], 0, most).astype(np.int64)
        scales[:, number], zeros[:, number], codes[:, groups_I == number] = scale, zero, code
        stands_for[:, groups_I == number] = (code - zero[:, None]).astype(np.float32) * scale[:, None]
    return codes, scales, zeros, stands_for


def words(integers: Integers, bits: int, axis: int, order: tuple[int, ...] | None = None) -> Tensor:
    """int32, in each as many integers along an axis as it has room for: the first of `order` in the lowest bits."""
    moved = np.moveaxis(integers, axis, -1)
    room = 32 // bits
    moved = np.pad(moved, [(0, 0)] * (moved.ndim - 1) + [(0, -moved.shape[-1] % room)])
    parted = moved.reshape(*moved.shape[:-1], -1, room).astype(np.uint64)
    packed = np.zeros(parted.shape[:-1], np.uint64)
    for place, which in enumerate(order or range(room)):
        packed |= parted[..., which] << np.uint64(bits * place)
    return torch.from_numpy(np.ascontiguousarray(np.moveaxis(packed.astype(np.uint32).view(np.int32), -1, axis)))


def gptq(
    bits: int, group: int | None, *, version: int = 1, act_order: bool = False, symmetric: bool = False,
    dtype: torch.dtype = torch.float16,
) -> Quantiser:  # fmt: skip
    """GPTQ's tensors; with act-order a random order decides which inputs are of a group."""

    def quantise(numbers: Numbers) -> tuple[dict[str, Tensor], Numbers]:
        groups_I = groups_of(numbers.shape[1], group, shuffled=act_order)
        codes, scales, zeros, stands_for = rounded(numbers, bits, groups_I, dtype, symmetric=symmetric)
        return {
            "qweight": words(codes.T, bits, 0),
            "qzeros": words(zeros.T, bits, 1) - (words(np.ones(32 // bits, int), bits, 0) if version == 1 else 0),
            "scales": torch.from_numpy(scales.T.copy()).to(dtype),
            "g_idx": torch.from_numpy(groups_I.astype(np.int32)),
        }, stands_for

    return quantise


def awq(group: int | None) -> Quantiser:
    """AWQ's tensors for GEMM: eight outputs a word, the even ones in its lower half."""

    def quantise(numbers: Numbers) -> tuple[dict[str, Tensor], Numbers]:
        groups_I = groups_of(numbers.shape[1], group)
        codes, scales, zeros, stands_for = rounded(numbers, 4, groups_I, torch.float16, symmetric=False)
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return {
            "qweight": words(codes.T, 4, 1, order),
            "qzeros": words(zeros.T, 4, 1, order),
            "scales": torch.from_numpy(scales.T.copy()).half(),
        }, stands_for

    return quantise


def packed(
    bits: int, group: int | None, *, symmetric: bool = True, act_order: bool = False, dtype: torch.dtype = torch.float32
) -> Quantiser:
    """compressed-tensors' `pack-quantized`."""

    def quantise(numbers: Numbers) -> tuple[dict[str, Tensor], Numbers]:
        groups_I = groups_of(numbers.shape[1], group, shuffled=act_order)
        codes, scales, zeros, stands_for = rounded(numbers, bits, groups_I, dtype, symmetric=symmetric)
        tensors = {
            "weight_packed": words(codes, bits, 1),
            "weight_scale": torch.from_numpy(scales).to(dtype),
            "weight_shape": torch.tensor(numbers.shape),
        }
        if not symmetric:
            tensors["weight_zero_point"] = words(zeros, bits, 0)
        if act_order:
            tensors["weight_g_idx"] = torch.from_numpy(groups_I.astype(np.int32))
        return tensors, stands_for

    return quantise


def signed(group: int | None, *, symmetric: bool = True, dtype: torch.dtype = torch.float32) -> Quantiser:
    """compressed-tensors' `int-quantized`: bytes, signed."""

    def quantise(numbers: Numbers) -> tuple[dict[str, Tensor], Numbers]:
        groups_I = groups_of(numbers.shape[1], group)
        codes, scales, zeros, stands_for = rounded(numbers, 8, groups_I, dtype, symmetric=symmetric)
        tensors = {
            "weight": torch.from_numpy((codes - 128).astype(np.int8)),
            "weight_scale": torch.from_numpy(scales).to(dtype),
        }
        if not symmetric:
            tensors["weight_zero_point"] = torch.from_numpy((zeros - 128).astype(np.int8))
        return tensors, stands_for

    return quantise
