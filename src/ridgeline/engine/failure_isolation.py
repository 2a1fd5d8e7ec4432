"""After a step failed, those that were in it run one at a time, to find the one to blame."""

import logging

from ridgeline.engine.events import fault
from ridgeline.engine.request import Request
from ridgeline.engine.scheduler import Scheduler
from ridgeline.engine.step_plan import StepPlan

logger = logging.getLogger("ridgeline.engine.suspects")  # documented: log filters may know it by this name


class FailureIsolation:
    """Requests of a step that failed, and how far each has to get by itself to be cleared."""

    def __init__(self) -> None:
        self._ends: dict[Request, int] = {}

    def __bool__(self) -> bool:
        return bool(self._ends)

    def accuse(self, ends: dict[Request, int], error: Exception) -> None:
        """Suspect these requests; `ends`: the positions that each had got to with the step that failed. It is logged:
        where each of them runs well alone, nobody else hears of it, but for the time that it takes."""
        self._ends = ends
        reason = fault(error)
        logger.warning(f"a step of {len(ends)} requests failed, and each runs alone now: {reason}")

    def forget(self, request: Request) -> None:
        """A request has ended."""
        self._ends.pop(request, None)

    def clear(self) -> None:
        """Let go of those that got past the positions at which the step failed."""
        self._ends = {request: end for request, end in self._ends.items() if request.computed < end}

    def schedule(self, scheduler: Scheduler, now: int) -> StepPlan | None:
        """The next suspect's step. While it finds no pages, those who hold them go on; nobody new gets ahead of it."""
        plan = scheduler.schedule(now, only=[next(iter(self._ends))])
        if plan is not None:
            return plan
        return scheduler.schedule(now, only=[request for request in scheduler.running if request not in self._ends])
