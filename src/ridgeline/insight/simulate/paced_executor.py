"""An executor that runs nothing and makes the engine wait: a step takes in real time what its plan is priced at."""

import time
from collections.abc import Callable, Iterator, Sequence

from ridgeline.engine.sampling.sample_row import Outcome, PromptLogprob, Sampled, SampleRow, Scored
from ridgeline.engine.step_plan import PlanItem, StepPlan

BEHIND = 100_000_000
"""Nanoseconds that the program may be behind its own clock and still make up for, by waiting less."""

_CERTAIN = 0.0  # the log-probability of what nothing was weighed against


class PacedExecutor:
    """As engine.Executor. Tokens are filler, one after the other, until the engine itself ends a request."""

    def __init__(
        self,
        nanoseconds: Callable[[StepPlan], int],
        filler: Sequence[int],
        clock: Callable[[], int] = time.perf_counter_ns,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """nanoseconds: what the step of a plan takes. filler: the tokens of an answer, again and again."""
        self._nanoseconds, self._filler, self._clock, self._sleep = nanoseconds, tuple(filler), clock, sleep
        self._until = 0  # when the step before was to end
        self._ran: frozenset[int] = frozenset()  # the requests in it

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        """Give each logit row its token when the step's time is over."""
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
        """When a step begins: where the one before ended, if it goes on with a request of that; else now. What the
        program itself takes between two steps is thus not added to them.
        """
        now = self._clock()
        goes_on = any(item.request in self._ran for item in plan.items)
        return max(self._until, now - BEHIND) if goes_on else now

    def _next(self, item: PlanItem, rows: Iterator[SampleRow]) -> Sampled | None:
        """The token of an item, if it has a row for one."""
        if not item.logits:
            return None
        row = next(rows)
        token = self._filler[row.generated % len(self._filler)]
        wanted = row.params.logprobs
        if wanted is None:
            return Sampled(token)
        top = ((token, _CERTAIN),) if wanted else ()
        return Sampled(token, _CERTAIN, _CERTAIN, top, top)
