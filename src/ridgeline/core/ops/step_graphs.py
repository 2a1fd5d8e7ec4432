"""Replayed steps: a backend records the kernel calls of a step once, and repeats them without Python.

A replay runs over other numbers at the same addresses. On a CPU the steps are recorded calls, on a GPU CUDA graphs. The
classes below are the interface, for a backend that replays nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

from torch import Tensor


class RowItem(Protocol):
    """One request's rows in a step."""

    @property
    def request(self) -> int:
        """The id of the request whose rows a step runs."""

    @property
    def start(self) -> int:
        """The first position of the request that the step runs."""

    @property
    def tokens(self) -> Sequence[int]:
        """The ids of the request's tokens that the step runs, one per position."""

    @property
    def logits(self) -> Sequence[int]:
        """The request's rows whose logits are needed, counted from its first row in the step."""


class StepItem(RowItem, Protocol):
    """One request's part of a step: its rows, encoder input and adapter (PlanItem in engine/step_plan.py)."""

    @property
    def encoder(self) -> object:
        """The ids or features that the encoder reads in this step."""

    @property
    def encoded(self) -> int:
        """The number of encoder positions that the request attends to."""

    @property
    def scored(self) -> object | None:
        """The prompt tokens whose log-probabilities are needed; None for none."""

    @property
    def adapter(self) -> int:
        """The number of the request's LoRA adapter, from 1; 0 for none."""


class PlannedStep(Protocol):
    """The plan of a step: which requests run, at which positions."""

    @property
    def items(self) -> Sequence[StepItem]:
        """The parts of a step, one per request that runs in it."""

    @property
    def tokens(self) -> int:
        """The number of token positions that a step runs."""

    @property
    def logit_rows(self) -> int:
        """The number of a step's rows from which tokens are sampled."""

    @property
    def forget(self) -> Sequence[int]:
        """The ids of requests whose page tables are no longer needed."""


class PageTables(Protocol):
    """The page tables of all requests, as of the next step."""

    def tables(self, request: int) -> list[list[int]]:
        """Return the page tables of a request, one per KV group; a new list if the request has restarted."""

    def places(self, items: Sequence[Any], index: int) -> tuple[list[int], list[list[int]], list[int]]:
        """Return the slots, pages and first positions of requests in one KV group, as `GroupPageTables` holds them.

        Args:
            items: The items of a step.
            index: The index of the KV group.
        """


class StepGraph(ABC):
    """A step captured as a CUDA graph or recorded as a list of calls, so that it can be replayed."""

    calls: tuple[Any, ...] = ()
    """The kernel calls of a replayed step, if the replay makes them one by one."""
    result: Tensor
    """The logits of a replayed step, in memory that another replay may overwrite."""

    @abstractmethod
    def replay(self) -> Tensor:
        """Replay a captured or recorded step over its current inputs, and return the logits, `result`."""

    def timed_replay(self, now: Callable[[], float]) -> list[float]:
        """Replay a step, and return the time before each of its kernel calls and after the last."""
        raise AssertionError("a step that is replayed as a whole has no hooks between its calls")


class StepGraphs:
    """The replayed steps of a model; this base class replays none."""

    by_call = False
    """Whether a replay makes its kernel calls one by one, so that each can be timed."""

    def bucket(self, step: PlannedStep) -> Hashable | None:
        """Return the key that this step shares with all steps that one graph replays, or None if it is not replayed."""
        return None

    def logits(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> Tensor | None:
        """Run a step, replayed if possible, and return its logits, fp32 [logit rows, vocabulary].

        They are valid until the next step. If a graph is not worthwhile yet for this bucket, run nothing and return
        None.

        Args:
            step: The step.
            bucket: The result of `bucket(step)`.
            tables: The page tables of all requests.
        """
        raise AssertionError("a step without a bucket cannot be replayed")

    def graph(self, step: PlannedStep, bucket: Hashable, tables: PageTables) -> StepGraph | None:
        """Return the graph that replays this step, or None if one of the step's kernel calls cannot be replayed.

        Args:
            step: The step.
            bucket: The result of `bucket(step)`.
            tables: The page tables of all requests.
        """
        raise AssertionError("a step without a bucket cannot be replayed")


def is_verify(item: StepItem) -> bool:
    """Return whether a step needs logits at every position that it runs of a request, as to verify draft tokens.

    That is one position without draft tokens, and one more than there are draft tokens otherwise. The result is False
    for an item with an encoder or an adapter. Adapters run partly in PyTorch, and the rows that use them change from
    step to step.
    """
    return len(item.tokens) == len(item.logits) and not (item.encoder or item.encoded or item.adapter)
