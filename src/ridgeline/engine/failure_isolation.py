"""The search for the request to blame after a step of several requests has failed."""

import logging
from collections.abc import Mapping

from ridgeline.engine.events import describe_error
from ridgeline.engine.request import Request
from ridgeline.engine.scheduler import Scheduler
from ridgeline.engine.step_plan import StepPlan

logger = logging.getLogger("ridgeline.engine.suspects")  # documented: log filters may know it by this name


class FailureIsolation:
    """The requests of a failed step, which run one at a time until the one to blame has failed alone.

    A request is isolated until it has computed, alone, all positions that the failed step would have brought it to. If
    its own step fails, it is to blame; otherwise it is cleared, and joins the others again. No new request starts
    before the isolated ones.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._ends: dict[Request, int] = {}
        """The number of positions that each isolated request has to compute before it is cleared."""

    @property
    def active(self) -> bool:
        """Whether any isolated request has not ended."""
        return bool(self._ends) and any(request.finish is None for request in self._ends)

    def isolate(self, plan: StepPlan, requests: Mapping[int, Request], error: Exception) -> Request | None:
        """Undo a failed step and isolate its requests; if it had only one, return that request as the one to blame.

        The failure of a step of several requests is logged: if each of them runs well alone, nothing else reports it.

        Args:
            plan: The plan that failed.
            requests: All requests that have not ended, by id. Those of the plan that have ended since are not isolated.
            error: The exception that the executor raised.
        """
        self._scheduler.undo(plan)
        ends = {requests[item.request]: item.segment.kv_len for item in plan.items if item.request in requests}
        if len(plan.items) == 1:
            return next(iter(ends), None)
        self._ends = ends
        logger.warning(
            f"a step of {len(ends)} requests failed, so each request now runs in its own step: {describe_error(error)}"
        )
        return None

    def schedule(self, now: int) -> StepPlan | None:
        """Plan the next step of the first isolated request.

        As long as there are no pages for it, the requests that hold pages run instead.
        """
        isolated = [request for request in self._ends if request.finish is None]
        plan = self._scheduler.schedule(now, only=isolated[:1])
        if plan is not None:
            return plan
        return self._scheduler.schedule(now, only=[r for r in self._scheduler.running if r not in self._ends])

    def clear(self) -> None:
        """Release the requests that have ended or got past the positions at which the step failed."""
        if self._ends:
            self._ends = {r: end for r, end in self._ends.items() if r.finish is None and r.computed < end}
