"""The thread of the server's own process in which models run, one step at a time.

The participant with the fewest priced seconds so far runs the next step (fair_queue.py) and has the whole processor for
it. Two that ran at once would compete for cores and caches, and neither would take the time that its price predicts. A
step is never divided, so a participant may have to wait for a whole step of another.
"""

import queue
import threading
from collections.abc import Callable
from typing import Protocol

import torch

from ridgeline.server.fair_queue import FairQueue


class Participant(Protocol):
    """The interface of a model, or of several that share turns, whose steps a `ModelLoop` runs.

    All its methods run in the loop's thread.
    """

    @property
    def busy(self) -> bool:
        """Whether the model has requests for which a step can run."""

    def step(self) -> float:
        """Run one step of the model and return the predicted seconds of the step."""

    def on_loop_end(self, reason: str) -> None:
        """Fail all unfinished requests of the model, because the thread that runs its steps ends; called once."""


class ModelLoop:
    """A thread that runs the steps of several models, one step at a time and in fair turns.

    An idle participant takes no turns, and gets no credit for them later.
    """

    def __init__(self, threads: int) -> None:
        """Start the thread that runs the models.

        Args:
            threads: The number of threads that PyTorch uses for a step.
        """
        self.threads = threads
        self._parties: list[Participant] = []  # used in the thread only
        self._turns: FairQueue[Participant] = FairQueue()
        self._had: dict[Participant, float] = {}  # priced seconds of idle parties, while others are busy
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ridgeline models", daemon=True)
        self._thread.start()

    def join(self, party: Participant) -> None:
        """Add a model, which takes turns whenever it has requests to run; safe to call from any thread."""
        self.call_soon(lambda: self._parties.append(party))

    def call_soon(self, work: Callable[[], None]) -> None:
        """Schedule a function call in the thread that runs the models, before its next step.

        It is safe from any thread, and does nothing once the loop has ended.
        """
        self._inbox.put(work)

    def close(self) -> None:
        """End the thread of the models after its current step."""
        self._inbox.put(None)
        self._thread.join()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self.threads)
        reason = "closed"
        try:
            while self._take_up():
                self._step()
        except Exception as error:  # a bug: fail the unfinished requests, which would hang otherwise
            reason = type(error).__name__
            raise
        finally:
            for party in self._parties:
                party.on_loop_end(reason)

    def _take_up(self) -> bool:
        """Run the scheduled calls; wait for one while the loop is idle. Return whether the thread should go on."""
        self._seat()
        while not len(self._turns) or not self._inbox.empty():
            if not len(self._turns):
                self._had.clear()  # after an idle time all start equal
            work = self._inbox.get()
            if work is None:
                return False
            work()
            self._seat()
        return True

    def _seat(self) -> None:
        """Add models that have become busy to the queue for turns, and remove those that are idle."""
        for party in self._parties:
            if party.busy != (party in self._turns):
                if party.busy:
                    self._turns.join(party, self._had.pop(party, 0.0))
                else:
                    self._had[party] = self._turns.leave(party)

    def _step(self) -> None:
        party = self._turns.next()
        self._turns.took(party, party.step())
