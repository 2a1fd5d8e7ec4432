"""The tensors of a checkpoint against those that its config asks for, and the numbers in them."""

from collections.abc import Callable, Iterator, Sequence

import torch

from ridgeline.core.checkpoint.casting import cast
from ridgeline.core.checkpoint.folder import Checkpoint
from ridgeline.core.checkpoint.parameter_map import ParameterMap
from ridgeline.core.checkpoint.safetensors_header import TensorEntry
from ridgeline.core.checkpoint.weight_loader import check_fits
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.matrix.gguf_matrix import BLOCKS
from ridgeline.insight.check.check_report import few

Progress = Callable[[int, int], None]

# Numbers that may be no numbers; integers always are, and zeros of them may be codes.
_FLOATS = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def check_tensors(model: Model, checkpoint: Checkpoint, family: Family) -> list[str]:
    """What is wrong with the names, shapes and dtypes of a checkpoint for a model on meta, by the loader's rules; of
    codes and their scales also with what they hold, for which they are read one at a time.
    """
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
            extra.append(f"{name} {list(entry.shape)} is no tensor of this model; is config.json of this checkpoint?")
    missing = [f"{place} is missing; fetch the checkpoint again" for place in naming.places if place not in filled]
    return [*few(missing, "tensors"), *few(extra, "tensors"), *few(problems, "tensors")]


def _misfit(model: Model, naming: ParameterMap, place: str, checkpoint: Checkpoint, name: str) -> Iterator[str]:
    """Why a tensor does not fit its place, if it does not."""
    module, own_name = naming.places[place]
    try:
        dtype = module.dtype_of(own_name)
        full = checkpoint.read(name) if dtype is None else checkpoint.shaped(name)
        try:
            taken = module.take(own_name, cast(full, dtype))
        except ValueError as error:
            raise ModelRefused(f"tensor {name} {error}") from None
        for path, tensor in taken.items():
            check_fits(name, tensor, module.get_parameter(path))
    except ModelRefused as refused:
        yield f"{refused}"


def check_numbers(checkpoint: Checkpoint, progress: Progress | None = None) -> list[str]:
    """Tensors that hold NaN or infinity, or matrices that hold nothing but zeros, read a MiB at a time. progress: told
    the bytes read, and those in all.
    """
    problems: list[str] = []
    done, total = 0, checkpoint.nbytes
    for name, entry in checkpoint.entries.items():
        bad, zero = _counts(checkpoint, name)
        file = checkpoint.files[name].name
        if bad:
            problems.append(f"tensor {name} holds {bad:,} NaN or infinite numbers; fetch {file} again")
        elif zero and len(entry.shape) > 1:
            problems.append(f"tensor {name} is all zeros, as an interrupted download leaves it; fetch {file} again")
        done += entry.end - entry.begin
        if progress is not None:
            progress(done, total)
    return list(few(problems, "tensors"))


def _counts(checkpoint: Checkpoint, name: str) -> tuple[int, bool]:
    """How many numbers of a tensor are NaN or infinite, and whether all of it is zero."""
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
    """The dtypes of tensors, the one with most bytes first: `BF16 and F32`."""
    held: dict[str, int] = {}
    for entry in entries:
        held[entry.dtype] = held.get(entry.dtype, 0) + entry.end - entry.begin
    return " and ".join(sorted(held, key=lambda dtype: -held[dtype]))
