"""The collectives of a tensor-parallel model, over the default group of torch.distributed."""

from collections.abc import Hashable

import torch
from torch import Tensor, distributed, nn
from typing_extensions import override

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.cost_features import Feature, GatheredRows
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.shard import Shard


class AllReduce(Op):
    """The op that adds up the ranks' partial rows, so that every rank has the sum."""

    kind = "communication"

    def __init__(self, width: int, dtype: torch.dtype, shard: Shard, gathered: int = 1) -> None:
        """Create an op that adds up rows over the ranks of a tensor-parallel group.

        Args:
            width: The number of entries of a row.
            dtype: The dtype of the rows.
            shard: A share of the tensor-parallel group, for its size.
            gathered: The number of ranks whose rows the message contains, each with as many as this one. Their rows are
                gathered before and each rank receives the sum of its own rows afterwards; an all-gather and a
                reduce-scatter move as many bytes as an all-reduce of all rows. Above 1 it is only priced, not run.
        """
        super().__init__()
        self.width, self.dtype, self.size, self.gathered_ranks = width, dtype, shard.size, gathered

    @override
    def forward(self, x_TD: Tensor) -> Tensor:
        """Add up x_TD [rows, width] over the ranks, in place, and return it."""
        if not x_TD.is_meta:
            assert self.gathered_ranks == 1, "gathered_ranks rows can be priced, but not run"
            distributed.all_reduce(x_TD)
        return x_TD

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the communication cost of an all-reduce: the bytes of its rows, those of every gathered rank included.

        The price of the link counts how often each byte travels.
        """
        return Cost(communication={"all_reduce": float(rows * self.gathered_ranks * self.width * self.dtype.itemsize)})

    @property
    @override
    def features(self) -> tuple[Feature, ...]:
        return (GatheredRows(),) if self.gathered_ranks > 1 else ()

    @override
    def signature(self) -> Hashable:
        return self.width, self.size, self.dtype, self.gathered_ranks

    @override
    def extra_repr(self) -> str:
        return f"{self.width} over {self.size}"


class AllGather(Op):
    """The op that joins the vocabulary columns of the logits, which the ranks computed separately."""

    kind = "communication"

    def __init__(self, width: int, shard: Shard) -> None:
        super().__init__()
        self.width, self.size = width, shard.size

    @override
    def forward(self, x_RV: Tensor) -> Tensor:
        """Return the logits of all ranks: x_RV fp32 [logit rows, vocabulary / size] -> [logit rows, vocabulary]."""
        if x_RV.is_meta:
            return x_RV.new_empty(len(x_RV), self.size * x_RV.shape[1])
        parts = [torch.empty_like(x_RV) for _ in range(self.size)]
        distributed.all_gather(parts, x_RV.contiguous())
        return torch.cat(parts, dim=-1)

    @override
    def cost_of(self, rows: int) -> Cost:
        """Return the communication cost of an all-gather of logits: the bytes of the joined logits in fp32."""
        return Cost(communication={"all_gather": float(rows * self.width * 4)})

    @override
    def signature(self) -> Hashable:
        return self.width, self.size

    @override
    def extra_repr(self) -> str:
        return f"{self.width} from {self.size}"


def all_reduce(width: int, dtype: torch.dtype, shard: Shard, gathered: int = 1) -> nn.Module:
    """Return an AllReduce, or an identity module if there is only one rank."""
    return AllReduce(width, dtype, shard, gathered) if shard.size > 1 else nn.Identity()


def all_gather(width: int, shard: Shard) -> nn.Module:
    """Return an AllGather, or an identity module if there is only one rank."""
    return AllGather(width, shard) if shard.size > 1 else nn.Identity()
