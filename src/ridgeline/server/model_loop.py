"""ModelLoop: the thread of the server's own process in which models run, one step at a time.

Whichever has had the fewest priced seconds is stepped next (fair_queue.py), and has the whole processor meanwhile:
two that ran at once would take each other's cores and caches, and neither would take what its price says. A step is not
divided, so that each waits for one step of every other at a time.
"""

import queue
import threading
from collections.abc import Callable
from typing import Protocol

import torch

from ridgeline.server.fair_queue import FairQueue


class Participant(Protocol):
    """What takes turns: a model, or several models that share one party's turns. All of it is called in the thread."""

    @property
    def busy(self) -> bool:
        """Whether a step would have something to do."""

    def step(self) -> float:
        """Run a step. Returns its seconds by the price."""

    def gone(self, reason: str) -> None:
        """The thread ends: whoever waits is to hear of it. Told once."""


class ModelLoop:
    """Steps the parties that join it. One that is idle takes no turns, and has no more of them for it afterwards."""

    def __init__(self, threads: int) -> None:
        """threads: that torch has."""
        self.threads = threads
        self._parties: list[Participant] = []  # touched in the thread
        self._turns: FairQueue[Participant] = FairQueue()
        self._had: dict[Participant, float] = {}  # priced seconds of parties that are idle while others are not
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="ridgeline models", daemon=True)
        self._thread.start()

    def join(self, party: Participant) -> None:
        """From now on a party takes turns whenever it is busy. From any thread."""
        self.ask(lambda: self._parties.append(party))

    def ask(self, work: Callable[[], None]) -> None:
        """Have something done in the thread before the next step. From any thread; nothing where it has ended."""
        self._inbox.put(work)

    def close(self) -> None:
        """End the thread after its present step."""
        self._inbox.put(None)
        self._thread.join()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self.threads)
        reason = "closed"
        try:
            while self._take_up():
                self._step()
        except Exception as error:  # a bug of ours: whoever waits must hear of it rather than wait for ever
            reason = type(error).__name__
            raise
        finally:
            for party in self._parties:
                party.gone(reason)

    def _take_up(self) -> bool:
        """Do what was asked; wait to be asked where nobody is busy. False when the thread is to end."""
        self._seat()
        while not len(self._turns) or not self._inbox.empty():
            if not len(self._turns):
                self._had.clear()  # a machine that stood still owes nobody
            work = self._inbox.get()
            if work is None:
                return False
            work()
            self._seat()
        return True

    def _seat(self) -> None:
        """Have those take turns who are busy, and no others."""
        for party in self._parties:
            if party.busy != (party in self._turns):
                if party.busy:
                    self._turns.join(party, self._had.pop(party, 0.0))
                else:
                    self._had[party] = self._turns.leave(party)

    def _step(self) -> None:
        party = self._turns.next()
        self._turns.took(party, party.step())
