"""Steps that are replayed: a backend keeps the kernel calls of a step and makes them again without Python, over other
numbers at the same addresses. On a CPU they are recorded calls, on a GPU a CUDA graph.

The classes below are the interface, for a backend that replays nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from torch import Tensor


class RowItem(Protocol):
    """The rows of a request in a step, which runs `tokens` from the position `start` on. logits: the rows whose logits
    are wanted, counted from `start`.
    """

    @property
    def request(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def logits(self) -> Sequence[int]: ...


class StepItem(RowItem, Protocol):
    """A request's part of a step, as of PlanItem (engine/step_plan.py)."""

    @property
    def encoder(self) -> object: ...
    @property
    def encoded(self) -> int: ...
    @property
    def scored(self) -> object | None: ...
    @property
    def adapter(self) -> int: ...


class PlannedStep(Protocol):
    """The plan of a step. tokens: positions that run. logit_rows: rows that tokens are sampled from. forget: requests
    whose page tables are needed no more.
    """

    @property
    def items(self) -> Sequence[StepItem]: ...
    @property
    def tokens(self) -> int: ...
    @property
    def logit_rows(self) -> int: ...
    @property
    def forget(self) -> Sequence[int]: ...


class PageTables(Protocol):
    """The page tables of all requests, up to the step that is to run."""

    def tables(self, request: int) -> list[list[int]]:
        """Return the page tables of a request, one a KV group. They are another list once it begins again."""
        ...

    def places(self, items: Sequence[Any], index: int) -> tuple[list[int], list[list[int]], list[int]]:
        """Return what `ops.batch.Tables` of a group would say of these items: slots, pages, first."""
        ...


class StepGraph(ABC):
    """A step that can be replayed.

    calls: the kernel calls that a replay makes, where it makes them one by one. result: its logits, in memory that
    another replay may use.
    """

    calls: tuple[Any, ...] = ()
    result: Tensor

    @abstractmethod
    def again(self) -> Tensor:
        """Replay it over what is now at its addresses -> `result`."""

    def moments(self, now: Callable[[], float]) -> list[float]:
        """Replay it. Return the moment before each of its calls, and the one after the last."""
        raise AssertionError("a step that is replayed as one has no moments between its calls")


class StepGraphs:
    """The steps of a model that are replayed: none.

    by_call: whether a replay makes its kernel calls one by one, so that each can be timed.
    """

    by_call = False

    def bucket(self, step: PlannedStep) -> Hashable | None:
        """Return what the steps of one graph have in common with this one; None for a step that is not replayed."""
        return None

    def logits(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> Tensor | None:
        """Run a step of a bucket, replayed if it can be -> logits fp32 [logit rows, vocabulary], until the next step.
        Return None, and run nothing, if a step of this bucket is not worth a graph yet.
        """
        raise AssertionError("a step without a bucket is not replayed")

    def graph(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> StepGraph | None:
        """Return the graph of a bucket, ready to replay this step; None if a call in the step cannot be replayed."""
        raise AssertionError("a step without a bucket is not replayed")


def is_verify(item: StepItem) -> bool:
    """Return whether an item runs positions of the model as it is, each of which is sampled: one, and guesses at those
    after it. What an adapter adds is torch's work in part, and which rows are whose changes from step to step.
    """
    return len(item.tokens) == len(item.logits) and not (item.encoder or item.encoded or item.adapter)
