"""Checks of a checkpoint's tensors against the config, and of the numbers in them."""

from collections.abc import Callable, Iterator, Sequence

import torch

from ridgeline.core.checkpoint.casting import cast
from ridgeline.core.checkpoint.converted_checkpoint import convert_checkpoint
from ridgeline.core.checkpoint.folder import OWN_CONFIG, Checkpoint
from ridgeline.core.checkpoint.parameter_map import ParameterMap
from ridgeline.core.checkpoint.safetensors_header import TensorEntry
from ridgeline.core.checkpoint.weight_loader import check_fits
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.matrix.gguf_matrix import BLOCKS
from ridgeline.insight.check.check_report import few

Progress = Callable[[int, int], None]

# Only these dtypes can hold NaN or infinity. Zeros in integer tensors may be valid codes.
_FLOATS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def check_tensors(model: Model, checkpoint: Checkpoint, family: Family) -> list[str]:
    """Return the problems of tensor names, shapes and dtypes for a model on the meta device, by the loader's rules.

    Quantized weights and their scales are also checked for valid contents, so they are read, one at a time.
    """
    try:
        checkpoint = convert_checkpoint(checkpoint, family)
    except ModelRefused as refused:
        return [f"{refused}"]
    naming = ParameterMap(model, family, checkpoint)
    filled: dict[str, str] = {}
    extra: list[str] = []
    problems: list[str] = []
    for name, entry in checkpoint.entries.items():
        place = naming.place(name)
        if place in naming.places:
            if place in filled:
                problems.append(f"{name} and {filled[place]} are the same tensor; remove one of them")
            filled[place] = name
            problems += _misfit(model, naming, place, checkpoint, name)
        elif not naming.ignored(name):
            extra.append(f"{name} {list(entry.shape)} is not a tensor of this model; {OWN_CONFIG}")
    missing = [f"{place} is missing; {OWN_CONFIG}" for place in naming.places if place not in filled]
    return [*few(missing, "tensors"), *few(extra, "tensors"), *few(problems, "tensors")]


def _misfit(model: Model, naming: ParameterMap, place: str, checkpoint: Checkpoint, name: str) -> Iterator[str]:
    """Yield the reason why a tensor does not fit its parameter, if it does not."""
    module, own_name = naming.places[place]
    try:
        dtype = module.dtype_of(own_name)
        full = checkpoint.read(name) if dtype is None else checkpoint.on_meta(name)
        try:
            taken = module.load_tensor(own_name, cast(full, dtype))
        except ValueError as error:
            raise ModelRefused(f"tensor {name} {error}") from None
        for path, tensor in taken.items():
            check_fits(name, tensor, module.get_parameter(path))
    except ModelRefused as refused:
        yield f"{refused}"


def check_numbers(checkpoint: Checkpoint, progress: Progress | None = None) -> list[str]:
    """Return the problems of tensors with NaN or infinite numbers, and of matrices that are all zeros.

    Tensors are read a MiB at a time. Integers are not checked; quantized GGUF blocks are only checked for zeros.

    Args:
        checkpoint: The checkpoint.
        progress: Called with the bytes read so far and their total.
    """
    problems: list[str] = []
    done, total = 0, checkpoint.nbytes
    for name, entry in checkpoint.entries.items():
        bad, zero = _counts(checkpoint, name)
        file = checkpoint.files[name].name
        if bad:
            problems.append(f"tensor {name} holds {bad:,} NaN or infinite numbers; fetch {file} again")
        elif zero and len(entry.shape) > 1:
            problems.append(
                f"tensor {name} is all zeros, probably because of an interrupted download; fetch {file} again"
            )
        done += entry.end - entry.begin
        if progress is not None:
            progress(done, total)
    return list(few(problems, "tensors"))


def _counts(checkpoint: Checkpoint, name: str) -> tuple[int, bool]:
    """Return how many numbers of a tensor are NaN or infinite, and whether all are zero; 0 and False for integers."""
    entry = checkpoint.entries[name]
    bad, zero = 0, entry.end > entry.begin
    dtype = torch.uint8 if entry.dtype in BLOCKS else _FLOATS.get(entry.dtype)
    if dtype is None:
        return 0, False
    for piece in checkpoint.pieces(name):
        numbers = torch.frombuffer(bytearray(piece), dtype=dtype)
        numbers = numbers.float() if numbers.dtype.itemsize == 1 else numbers
        bad += int((~torch.isfinite(numbers)).sum())
        zero = zero and not bool(numbers.any())
    return bad, zero


def stated(entries: Sequence[TensorEntry]) -> str:
    """Return the dtypes of tensors, the one with most bytes first, such as `BF16 and F32`."""
    held: dict[str, int] = {}
    for entry in entries:
        held[entry.dtype] = held.get(entry.dtype, 0) + entry.end - entry.begin
    return " and ".join(sorted(held, key=lambda dtype: -held[dtype]))
