"""Casts of checkpoint floats to the dtype of the model, as in transformers and vLLM."""

import torch
from torch import Tensor

from ridgeline.core.models.common.fields import ModelRefused

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_PIECE = 1 << 20  # numbers per comparison


def cast(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Cast plain floats to `dtype`, unless that is None; codes and integers of quantised weights stay as they are."""
    return tensor.to(dtype) if dtype is not None and tensor.dtype in _FLOATS else tensor


class Casts:
    """The casts while loading a checkpoint that could change numbers, by source and target dtype."""

    def __init__(self) -> None:
        self._counts: dict[tuple[torch.dtype, torch.dtype], int] = {}
        self._rounded: dict[tuple[torch.dtype, torch.dtype], str] = {}  # the first tensor whose numbers changed

    def cast(self, name: str, tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
        """Cast a checkpoint tensor as the function `cast` does, and record the cast if it could change numbers.

        Raises:
            ModelRefused: If a finite number is beyond the range of the dtype.
        """
        made = cast(tensor, dtype)
        kinds = tensor.dtype, made.dtype
        if made is tensor or torch.promote_types(*kinds) == made.dtype:  # the cast preserves every number
            return made
        if torch.finfo(made.dtype).max < torch.finfo(tensor.dtype).max:
            _check_range(name, tensor, made)
        self._counts[kinds] = self._counts.get(kinds, 0) + 1
        if kinds not in self._rounded and not _is_exact(tensor, made):
            self._rounded[kinds] = name
        return made

    @property
    def notes(self) -> tuple[str, ...]:
        """One line per pair of dtypes whose casts rounded numbers; bf16 numbers stored in fp32 stay exact."""
        return tuple(
            f"{count} tensor{'s' * (count != 1)} stored in {_called(stored)} {'is' if count == 1 else 'are'} cast to "
            f"{_called(own)}, the dtype of the model, which rounds numbers (first in {self._rounded[stored, own]})"
            for (stored, own), count in self._counts.items()
            if (stored, own) in self._rounded
        )


def _check_range(name: str, tensor: Tensor, made: Tensor) -> None:
    """Raise ModelRefused if a cast to a narrower dtype turned a finite number into infinity."""
    if not torch.isfinite(made).all() and (torch.isfinite(tensor) & made.isinf()).any():
        wider = "bfloat16" if made.dtype == torch.float16 else "float32"
        raise ModelRefused(
            f"tensor {name} is stored in {_called(tensor.dtype)} and has numbers beyond the range of "
            f"{_called(made.dtype)}, the dtype of the model; set dtype to {wider} in its config.json"
        )


def _is_exact(tensor: Tensor, made: Tensor) -> bool:
    """Return whether a cast to another dtype preserved every number."""
    pieces = zip(torch.split(tensor.flatten(), _PIECE), torch.split(made.flatten(), _PIECE), strict=True)
    return all(torch.equal(piece, other.to(piece.dtype)) for piece, other in pieces)


def _called(dtype: torch.dtype) -> str:
    """Return the name of a dtype without "torch."."""
    return str(dtype).removeprefix("torch.")
