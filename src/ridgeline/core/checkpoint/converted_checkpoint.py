"""ConvertedCheckpoint: a checkpoint in which tensors are replaced by those that the model converts them into."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import mode

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.checkpoint.folder import OWN_CONFIG, Checkpoint, refuse_names
from ridgeline.core.checkpoint.safetensors_header import TensorEntry
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.models.from_transformers.tensor_conversion import TensorConversion, describe_quantised_part

_FLOATS = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


@dataclass(frozen=True, slots=True)
class ConvertedCheckpoint(Checkpoint):
    """The tensors of a checkpoint after their conversion: a converted tensor has the name of the parameter it fills.

    One conversion is in memory at a time, next to the tensors that were yielded before.
    """

    stored: Checkpoint
    """The checkpoint as stored."""
    conversions: Mapping[str, TensorConversion]
    """The conversion that makes each converted tensor, by the tensor's name."""

    @override
    def tensors(self, *, mapped: bool = True) -> Iterator[tuple[str, Tensor]]:
        kept = {name: entry for name, entry in self.entries.items() if name not in self.conversions}
        yield from Checkpoint(self.folder, kept, self.files).tensors(mapped=mapped)
        for conversion in dict.fromkeys(self.conversions.values()):
            yield from self._converted(conversion).items()

    @override
    def read(self, name: str) -> Tensor:
        if name not in self.conversions:
            return self.stored.read(name)
        return self._converted(self.conversions[name])[name]

    @override
    def pieces(self, name: str, size: int = 1 << 20) -> Iterator[bytes]:
        if name not in self.conversions:
            yield from self.stored.pieces(name, size)
            return
        for piece in torch.split(self.read_raw(name), size):
            yield piece.numpy().tobytes()

    @override
    def read_raw(self, name: str) -> Tensor:
        return self.read(name).contiguous().flatten().view(torch.uint8)

    def _converted(self, conversion: TensorConversion) -> Mapping[str, Tensor]:
        """Return the tensors that a conversion makes; a result of sources side by side is filled source by source."""
        if not conversion.is_placement:
            return conversion.convert(self.stored.read)
        whole = torch.empty_like(self.on_meta(conversion.target), device="cpu")
        for name, part in conversion.placements(whole, lambda name: self.stored.entries[name].shape):
            part.copy_(self.stored.read(name))
        return {conversion.target: whole}


def convert_checkpoint(checkpoint: Checkpoint, family: Family) -> Checkpoint:
    """Return a checkpoint with its tensors converted to those of a family's models; most families convert none.

    Raises:
        ModelRefused: If sources of a conversion are missing, unexpected, quantised or do not fit together, or if a
            converted tensor is stored too.
    """
    conversions = family.conversions(checkpoint.entries)
    if not conversions:
        return checkpoint
    refuse_names(checkpoint, "has tensors that the model lacks", [name for each in conversions for name in each.extra])
    refuse_names(checkpoint, "lacks tensors of the model", [name for each in conversions for name in each.missing])
    entries, files = dict(checkpoint.entries), dict(checkpoint.files)
    made: dict[str, TensorConversion] = {}
    for conversion in conversions:
        for name in conversion.names:
            del entries[name]
    for conversion in conversions:
        for name, entry in _results(checkpoint, conversion).items():
            if name in entries:
                raise ModelRefused(
                    f"{checkpoint.folder}: tensor {name} is stored, and made from {conversion.names[0]} and "
                    "others too; fetch it again"
                )
            entries[name], made[name] = entry, conversion
            files[name] = checkpoint.files[conversion.names[0]]
    return ConvertedCheckpoint(checkpoint.folder, entries, files, checkpoint, made)


def _results(checkpoint: Checkpoint, conversion: TensorConversion) -> Mapping[str, TensorEntry]:
    """Return the shapes and dtypes of the tensors that a conversion makes, as entries of a header.

    Raises:
        ModelRefused: If a source is quantised, or the sources do not fit together.
    """
    for name in conversion.names:
        if checkpoint.entries[name].dtype not in _FLOATS.values():
            raise ModelRefused(f"{checkpoint.files[name]}: {describe_quantised_part(name, conversion.target)}")
    try:
        made = conversion.convert(checkpoint.on_meta)
    except ValueError as error:
        first, *others = conversion.names
        problem = _odd_part(checkpoint, conversion) or (
            f"tensor {first} and {len(others)} more cannot become {conversion.target} ({error})"
        )
        raise ModelRefused(f"{checkpoint.files[first]}: {problem}; {OWN_CONFIG}") from None
    return {
        name: TensorEntry(name, _FLOATS[tensor.dtype], tuple(tensor.shape), 0, tensor.nbytes)
        for name, tensor in made.items()
    }


def _odd_part(checkpoint: Checkpoint, conversion: TensorConversion) -> str | None:
    """Return which source of a conversion has another shape than most of those that are stacked with it, if any."""
    for names in conversion.sources.values():
        shapes = {name: checkpoint.entries[name].shape for name in names}
        usual = mode(shapes.values())
        for name, shape in shapes.items():
            if shape != usual:
                return (
                    f"tensor {name} has shape {list(shape)}, but the other parts of {conversion.target} have "
                    f"{list(usual)}"
                )
    return None
