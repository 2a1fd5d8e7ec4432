"""Op: the contract of everything that computes."""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from ridgeline.ops.cost import Cost
from ridgeline.ops.work import Work

RowSpace = Literal["tokens", "logits"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """What one sort of kernel does of an op in a step.

    name: its calibration class, from the general to the particular: `attention.decode`. number: the format it works
    on. calls: how often it is launched. cost: of all calls together.
    """

    name: str
    number: str
    calls: float
    cost: Cost


def by_head(kernel: str, head_dim: int) -> str:
    """The name of a kernel that works head by head: `attention.decode` -> `attention.decode.64`. What a pair or a row
    takes beside its products (a softmax's exp, a short copy) weighs more, the narrower a head is."""
    return f"{kernel}.{1 << round(math.log2(head_dim))}"


class Op(nn.Module, ABC):
    """A step of computation that states its own price.

    A model calls ops and nothing else computes, so the ops that a forward runs and the ops that a price sums are the
    same objects. `kind` is what it is called in tables; the kernels that it runs, each a calibration class of its own,
    are its `kernels`. `reads_context`: whether its cost depends on `Work.attention`, that is on how long the sequences
    are.
    """

    kind: ClassVar[str]
    reads_context: ClassVar[bool] = False
    row_space: RowSpace = "tokens"

    @abstractmethod
    def cost(self, work: Work) -> Cost:
        """What this op must do for a step of `work`."""

    def kernel(self, work: Work) -> str:
        """The sort of kernel that `forward` calls for such a step, from the general to the particular."""
        return self.kind

    @property
    def number(self) -> str:
        """The format that its kernel works on; empty where there is but one."""
        return ""

    def kernels(self, work: Work) -> tuple[Kernel, ...]:
        """`cost`, by the kernels that `forward` calls for such a step. Most ops call one."""
        return (Kernel(self.kernel(work), self.number, 1, self.cost(work)),)

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
