"""The first rank's runner: it runs plans as any runner does, and has the others do the same at the same time."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from ridgeline.engine.ranks.link import ROUNDS, SIZES, link_of, time_all_reduces
from ridgeline.engine.ranks.orders import Head, Hidden, Prepare, Rewind, SaveStates, TimeLink, crossing
from ridgeline.engine.ranks.process import Followers
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import StepPlan
from ridgeline.models.model import Model
from ridgeline.ops.batch import Batch
from ridgeline.ops.collective import AllGather
from ridgeline.ops.kv import KVLayout
from ridgeline.roofline.link import Link


class LeadingRunner(Runner):
    """A Runner of the first part of a model, whose other parts follow. What fails here, or there, ends the engine: who
    has stopped in the middle of a step does not meet the others again."""

    def __init__(self, model: Model, layout: KVLayout, followers: Followers) -> None:
        super().__init__(model, layout)
        self._followers = followers
        self._joins = any(isinstance(op, AllGather) for _, op in model.ops())

    def prepare(self, plan: StepPlan) -> Batch:
        """As Runner.prepare."""
        with self._together():
            self._followers.tell(Prepare(crossing(plan)))
            return super().prepare(plan)

    def hidden(self, batch: Batch) -> Tensor:
        """As Runner.hidden."""
        with self._together():
            self._followers.tell(Hidden())
            return super().hidden(batch)

    def head(self, x_RD: Tensor, first: int = 0) -> Tensor:
        """As Runner.head."""
        with self._together():
            if self._joins:
                self._followers.tell(Head(first, len(x_RD)))
            return super().head(x_RD, first)

    def save_states(self) -> None:
        """As Runner.save_states."""
        with self._together():
            self._followers.tell(SaveStates())
            super().save_states()

    def rewind(self) -> None:
        """As Runner.rewind."""
        with self._together():
            self._followers.tell(Rewind())
            super().rewind()

    def close(self) -> None:
        """End the other ranks."""
        self._followers.close()

    def link(self) -> Link:
        """What joins the ranks, measured."""
        with self._together():
            self._followers.tell(TimeLink(SIZES, ROUNDS))
            return link_of(self._followers.size, SIZES, time_all_reduces(SIZES, ROUNDS))

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Raises RankGone for whatever fails."""
        try:
            yield
        except Exception as error:
            raise self._followers.gone(error) from error
