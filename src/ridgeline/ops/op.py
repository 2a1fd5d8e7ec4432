"""Op: the contract of everything that computes."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ridgeline.ops.cost import Cost
from ridgeline.ops.work import Work

RowSpace = Literal["tokens", "logits"]


class Op(nn.Module, ABC):
    """A step of computation that states its own price.

    A model calls ops and nothing else computes, so the ops that a forward runs and the ops that a price sums are the
    same objects. `kind` is the calibration class: ops of one kind run on one sort of kernel.
    """

    kind: ClassVar[str]
    row_space: RowSpace = "tokens"

    @abstractmethod
    def cost(self, work: Work) -> Cost:
        """What this op must do for a step of `work`."""

    @abstractmethod
    def signature(self) -> Hashable:
        """Equal for two ops of one class whose `cost` is the same function, so that a price evaluates them once."""

    def rows(self, work: Work) -> int:
        """How many rows the op runs over in such a step: every token, or only those whose logits are wanted."""
        return work.tokens if self.row_space == "tokens" else work.logit_rows

    def parameter_count(self) -> int:
        """How many parameters it holds."""
        return sum(p.numel() for p in self.parameters(recurse=False))

    def stored_bytes(self) -> float:
        """Bytes that its parameters take as stored, scales included."""
        return float(sum(p.nbytes for p in self.parameters(recurse=False)))

    def take(self, name: str, full: Tensor) -> Tensor:
        """What this rank holds of the checkpoint tensor for its parameter `name`: all, unless the op is divided."""
        return full


def weight(*shape: int, dtype: torch.dtype) -> nn.Parameter:
    """An unfilled parameter on the current device (`meta` until a checkpoint fills it); nothing here is trained."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype), requires_grad=False)
