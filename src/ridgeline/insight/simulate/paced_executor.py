"""An executor that runs no model: each step waits in real time for as long as its plan is priced."""

import time
from collections.abc import Callable, Iterator, Sequence

from ridgeline.engine.sampling.sample_row import Outcome, PromptLogprob, Sampled, SampleRow, Scored
from ridgeline.engine.step_plan import PlanItem, StepPlan

BEHIND = 100_000_000
"""The largest delay in nanoseconds that the executor catches up on by waiting less in later steps."""

_CERTAIN = 0.0  # the log-probability of a token without alternatives


class PacedExecutor:
    """An engine executor that takes the priced time for each step and returns filler tokens.

    The filler repeats until the engine itself ends a request.
    """

    def __init__(
        self,
        nanoseconds: Callable[[StepPlan], int],
        filler: Sequence[int],
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create an executor that paces steps by their price.

        Args:
            nanoseconds: Returns the duration of a plan's step.
            filler: The tokens of each response, repeated in a cycle.
            clock: Returns the time in nanoseconds.
            sleep: Waits for a number of seconds.
        """
        self._nanoseconds, self._filler, self._clock, self._sleep = nanoseconds, tuple(filler), clock, sleep
        self._until = 0  # when the previous step was due to end
        self._ran: frozenset[int] = frozenset()  # the requests of the previous step

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        """Return filler tokens, and log-probabilities of 0 for scored prompt tokens, after a step's priced time."""
        self._until = self._begun(plan) + self._nanoseconds(plan)
        self._ran = frozenset(item.request for item in plan.items)
        given, of = list[Outcome](), iter(rows)
        for item in plan.items:
            sampled = self._next(item, of)
            if item.scored is not None:
                given.append(Scored(tuple(PromptLogprob(token, _CERTAIN) for token in item.scored.tokens), sampled))
            elif sampled is not None:
                given.append(sampled)
        self._sleep(max(0, self._until - self._clock()) * 1e-9)
        return given

    def _begun(self, plan: StepPlan) -> int:
        """Return when a step starts: at the end of the previous one if it continues one of its requests, else now.

        The host time between two steps is therefore not added to their priced time, unless it exceeds `BEHIND`.
        """
        now = self._clock()
        goes_on = any(item.request in self._ran for item in plan.items)
        return max(self._until, now - BEHIND) if goes_on else now

    def _next(self, item: PlanItem, rows: Iterator[SampleRow]) -> Sampled | None:
        """Return the next filler token of a plan item, or None if the item needs no logits."""
        if not item.logits:
            return None
        row = next(rows)
        token = self._filler[row.generated % len(self._filler)]
        wanted = row.params.logprobs
        if wanted is None:
            return Sampled(token)
        top = ((token, _CERTAIN),) if wanted else ()
        return Sampled(token, _CERTAIN, _CERTAIN, top, top)
