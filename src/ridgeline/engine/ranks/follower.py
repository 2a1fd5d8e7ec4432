"""What another rank does: what the first one orders, in the same order."""

import torch

from ridgeline.engine.ranks.link import time_all_reduces
from ridgeline.engine.ranks.orders import Head, Hidden, Prepare, Rewind, SaveStates, TimeLink
from ridgeline.engine.runner import Runner
from ridgeline.ops.batch import Batch


class Following:
    """A runner of a later part of a model, which does what the first rank orders."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._batch: Batch | None = None
        self._x_RD = torch.empty(0)

    def follow(self, order: object) -> None:
        """Do it."""
        runner = self._runner
        match order:
            case Prepare(plan):
                self._batch = runner.prepare(plan)
            case Hidden():
                assert self._batch is not None, "a batch comes before it runs"
                self._x_RD = runner.hidden(self._batch)
            case Head(first, count):
                with torch.inference_mode():
                    runner.head(self._x_RD[first : first + count], first)
            case SaveStates():
                runner.save_states()
            case Rewind():
                runner.rewind()
            case TimeLink(sizes, rounds):
                time_all_reduces(tuple(sizes), rounds)
            case _:
                raise AssertionError(f"{order} is no order")
