"""The collectives of a transformers class that is divided over ranks: sums and joins of the results of its ops."""

from torch import Tensor, nn

from ridgeline.core.ops.collective import AllGather, AllReduce


class JoinsRanks:
    """The mixin of ops in a class whose results are joined over the ranks right after the call."""

    collective: AllReduce | AllGather | None = None
    """The op that joins the results; None if there is one rank, or if each rank has results of its own."""

    def joined(self, results_TO: Tensor) -> Tensor:
        """Return the results of all ranks from those of this one, row by row."""
        return results_TO if self.collective is None else self.collective(results_TO)


def join_ranks(parent: nn.Module, name: str, op: JoinsRanks, collective: AllReduce | AllGather) -> None:
    """Make an op join its results over the ranks.

    The collective becomes a submodule of the module that calls the op, as an op that prices and traces see.

    Args:
        parent: The module that calls the op.
        name: The op's name there.
        op: The op.
        collective: The op that joins the results.
    """
    parent.add_module(f"{name}_{'sum' if isinstance(collective, AllReduce) else 'join'}", collective)
    op.__dict__["collective"] = collective  # no submodule of the op, whose tensors have the op's name
