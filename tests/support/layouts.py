"""Quantisers' layouts in numpy, from their specifications: a matrix [O, I] becomes the tensors of a checkpoint, and
what these stand for."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from support.checkpoints import random_tensors, write_folder

Numbers = npt.NDArray[np.float32]
Quantiser = Callable[[Numbers], tuple[dict[str, Tensor], Numbers]]
"""A matrix [O, I] -> the tensors of a checkpoint by their own names, and the matrix that they stand for."""


def write_pair(
    folder: Path,
    values: Mapping[str, Any],
    section: Mapping[str, Any],
    quantiser: Callable[[str], Quantiser | None],
    extra: Mapping[str, Tensor] | None = None,
) -> tuple[Path, Path]:
    """Two folders of one random model: quantised, and in fp32 what that stands for. quantiser: of a module, by its
    name; what it leaves alone is in the dtype that `values` say. extra: tensors beside them in the quantised folder."""
    given = random_tensors(dict(values))
    stored: dict[str, Tensor] = dict(extra or {})
    plain: dict[str, Tensor] = {}
    for name, tensor in given.items():
        module, _, own = name.rpartition(".")
        quantise = quantiser(module) if own == "weight" and tensor.dim() == 2 else None
        if quantise is None:
            stored[name], plain[name] = tensor, tensor.float()
            continue
        tensors, numbers = quantise(tensor.float().numpy())
        stored |= {f"{module}.{each}": own for each, own in tensors.items()}
        plain[name] = torch.from_numpy(numbers)
    folders = folder / "quantised", folder / "plain"
    for each in folders:
        each.mkdir(parents=True)
    write_folder(folders[0], {**values, "quantization_config": dict(section)}, stored)
    write_folder(folders[1], {**values, "torch_dtype": "float32"}, plain)
    return folders


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


def rounded(
    numbers: Numbers, bits: int, group: int, dtype: torch.dtype, *, symmetric: bool, groups_I: Integers | None = None
) -> tuple[Integers, Numbers, Integers, Numbers]:
    """Codes [O, I] from 0 on, scales [O, G] that a dtype holds, zeros [O, G], and what these stand for: (code - zero) x
    scale. groups_I: the group of each input, side by side if it is not given."""
    if not symmetric:  # zeros of 0 too
        numbers = np.concatenate([np.abs(numbers[:3]), numbers[3:]])
    if groups_I is None:
        groups_I = np.arange(numbers.shape[1]) // group
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
        inputs = numbers.shape[1]
        groups_I = np.arange(inputs) // (group or inputs)
        if act_order:
            np.random.default_rng(inputs).shuffle(groups_I)
        codes, scales, zeros, stands_for = rounded(
            numbers, bits, group or inputs, dtype, symmetric=symmetric, groups_I=groups_I
        )
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
        codes, scales, zeros, stands_for = rounded(
            numbers, 4, group or numbers.shape[1], torch.float16, symmetric=False
        )
        order = (0, 2, 4, 6, 1, 3, 5, 7)
        return {
            "qweight": words(codes.T, 4, 1, order),
            "qzeros": words(zeros.T, 4, 1, order),
            "scales": torch.from_numpy(scales.T.copy()).half(),
        }, stands_for

    return quantise
