"""The first rank's control of the others: its runner has them execute what it executes itself.

Before the first step all ranks measure their interconnect: the seconds of an all-reduce by its size.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import distributed
from typing_extensions import override

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.collective import AllGather
from ridgeline.engine.ranks.other_ranks import OtherRanks
from ridgeline.engine.ranks.rank_commands import (
    Command,
    ComputeHiddenStates,
    ComputeLogits,
    PrepareBatch,
    Rewind,
    SaveStates,
    TimeLink,
    crossing,
)
from ridgeline.engine.ranks.rank_processes import RankProcesses
from ridgeline.engine.step_plan import StepPlan
from ridgeline.price.interconnect import Curve, Interconnect

SIZES = tuple(1 << power for power in range(10, 23, 2))
"""The message sizes of the all-reduces to time, in bytes: from a row of a small model to a prompt of a large one."""
ROUNDS = 15


def time_all_reduces(sizes: tuple[int, ...], rounds: int) -> list[float]:
    """Return the median seconds of an all-reduce of each size in bytes; every rank of the group must call this."""
    found = []
    for size in sizes:
        message, seconds = torch.zeros(size // 4), []
        for _ in range(rounds):
            start = time.perf_counter()
            distributed.all_reduce(message)
            seconds.append(time.perf_counter() - start)
        found.append(sorted(seconds)[rounds // 2])
    return found


def link_of(ranks: int, sizes: tuple[int, ...], seconds: list[float]) -> Interconnect:
    """Return the interconnect with these all-reduce times. Its bandwidth is the best of any size."""
    rising = [max(seconds[: place + 1]) for place in range(len(seconds))]
    moved = [2 * (ranks - 1) / ranks * size for size in sizes]
    bandwidth = max(nbytes / each for nbytes, each in zip(moved, rising, strict=True))
    return Interconnect("gloo", bandwidth, {"gloo": {ranks: Curve(tuple(map(float, sizes)), tuple(rising))}})


class FollowerRanks(OtherRanks):
    """The other ranks of a model, controlled by the runner of the first.

    A failure of any rank ends the engine: a rank that stops in the middle of a step is out of step with the others for
    good.
    """

    several = True

    def __init__(self, model: Model, followers: RankProcesses) -> None:
        self.followers = followers
        self._joins = any(isinstance(op, AllGather) for _, op in model.ops())

    @override
    def prepare(self, plan: StepPlan) -> AbstractContextManager[None]:
        return self._together(PrepareBatch(crossing(plan)))

    @override
    def hidden(self) -> AbstractContextManager[None]:
        return self._together(ComputeHiddenStates())

    @override
    def head(self, first: int, count: int) -> AbstractContextManager[None]:
        return self._together(ComputeLogits(first, count) if self._joins else None)

    @override
    def save_states(self) -> AbstractContextManager[None]:
        return self._together(SaveStates())

    @override
    def rewind(self) -> AbstractContextManager[None]:
        return self._together(Rewind())

    def close(self) -> None:
        """End the processes of the other ranks."""
        self.followers.close()

    def link(self) -> Interconnect:
        """Measure the interconnect of the ranks and return it."""
        with self._together(TimeLink(SIZES, ROUNDS)):
            return link_of(self.followers.size, SIZES, time_all_reduces(SIZES, ROUNDS))

    @contextmanager
    def _together(self, order: Command | None) -> Iterator[None]:
        """Send the other ranks a command, if there is one, while this rank executes it inside the context.

        Raises:
            RankGone: If any rank fails.
        """
        try:
            if order is not None:
                self.followers.send(order)
            yield
        except Exception as error:
            raise self.followers.gone(error) from error
