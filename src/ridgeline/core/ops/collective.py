"""Collectives: what the ranks of a tensor-parallel model (torch.distributed's default group) tell each other."""

from collections.abc import Hashable

import torch
from torch import Tensor, distributed, nn
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.cost_features import Feature, GatheredRows
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.shard import Shard


class AllReduce(Op):
    """Adds up the rows that each rank has a summand of, so that all have the sum."""

    kind = "communication"

    def __init__(self, width: int, dtype: torch.dtype, shard: Shard, gathered: int = 1) -> None:
        """gathered: ranks whose rows, as many as this one's, are in the message: they are gathered before, and each
        rank keeps the sum of its own, which together moves as much as adding up all of them; priced, not run.
        """
        super().__init__()
        self.width, self.dtype, self.size, self.gathered = width, dtype, shard.size, gathered

    @override
    def forward(self, x_TD: Tensor) -> Tensor:
        """x_TD [rows, width] -> the sum over ranks, in place."""
        if not x_TD.is_meta:
            assert self.gathered == 1, "rows that are gathered are priced, not run"
            distributed.all_reduce(x_TD)
        return x_TD

    @override
    def cost_of(self, rows: int) -> Cost:
        """The message: every rank's rows. How often each byte travels is the link's affair."""
        return Cost(communication={"all_reduce": float(rows * self.gathered * self.width * self.dtype.itemsize)})

    @property
    @override
    def features(self) -> tuple[Feature, ...]:
        return (GatheredRows(),) if self.gathered > 1 else ()

    @override
    def signature(self) -> Hashable:
        return self.width, self.size, self.dtype, self.gathered

    @override
    def extra_repr(self) -> str:
        return f"{self.width} over {self.size}"


class AllGather(Op):
    """Joins the columns that each rank computed of the logits."""

    kind = "communication"

    def __init__(self, width: int, shard: Shard) -> None:
        super().__init__()
        self.width, self.size = width, shard.size

    @override
    def forward(self, x_RV: Tensor) -> Tensor:
        """x_RV fp32 [logit rows, vocabulary / size] -> [logit rows, vocabulary]."""
        if x_RV.is_meta:
            return x_RV.new_empty(len(x_RV), self.size * x_RV.shape[1])
        parts = [torch.empty_like(x_RV) for _ in range(self.size)]
        distributed.all_gather(parts, x_RV.contiguous())
        return torch.cat(parts, dim=-1)

    @override
    def cost_of(self, rows: int) -> Cost:
        """The joined rows, fp32."""
        return Cost(communication={"all_gather": float(rows * self.width * 4)})

    @override
    def signature(self) -> Hashable:
        return self.width, self.size

    @override
    def extra_repr(self) -> str:
        return f"{self.width} from {self.size}"


def all_reduce(width: int, dtype: torch.dtype, shard: Shard, gathered: int = 1) -> nn.Module:
    """An AllReduce, or nothing where there is one rank."""
    return AllReduce(width, dtype, shard, gathered) if shard.size > 1 else nn.Identity()


def all_gather(width: int, shard: Shard) -> nn.Module:
    """An AllGather, or nothing where there is one rank."""
    return AllGather(width, shard) if shard.size > 1 else nn.Identity()
