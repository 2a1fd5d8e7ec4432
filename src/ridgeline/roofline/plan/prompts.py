"""Prompts that wait for their first token, on one rank and on several that wait for each other.

Each of R ranks with requests of its own (attention data-parallel) has u = users / R of them, and all take every step
together: whoever has no prompt waits for those that have. On one rank k prompts wait on average when any does, which
has the chance P after a decode step (`serving.py`); S = 1 - (1 - P)^R is the chance that any rank has some. T_m(k) are
the seconds until all of k prompts on each of m ranks have a first token, their rows together at the experts. After a
decode step come, on average, prefills of

    together      P T_R(k)                                              prompts come to all ranks at the same moments
    steady        S T_1(k) + (R P - S) (T_R(k) - T_1(k)) / (R - 1)      to each at moments of its own
    apart         R P T_1(k)                                            to one rank after the other

In the steady case R P ranks have prompts on average, of which each one after the first adds its rows to a step. T_R is
no more than R T_1, so that it lies between the other two. With R = 1 all are P T(k). One's own prompt finds (u - 1) q
others on its rank, and prompts on each other rank with the chance P.
"""

import math
from dataclasses import dataclass

from ridgeline.roofline.plan.case import Case, Workload
from ridgeline.roofline.plan.phases import Estimate, prefill_step

_NOTHING = Estimate(0.0, 0.0, 0.0)


class PromptQueue:
    """Prompts of one workload that wait together on one rank, packed into steps: how long until all of them, and one of
    them, have a first token. Each full step is priced once, however many prompts follow."""

    def __init__(self, case: Case, workload: Workload) -> None:
        self.case, self.workload = case, workload
        self._clock = [_NOTHING]  # after so many full steps
        self._waits = [_NOTHING]  # of the prompts that have ended by then, summed
        self._known: dict[int, tuple[Estimate, Estimate]] = {}
        self._steps: dict[tuple[int, int], Estimate] = {}

    def all(self, count: float) -> Estimate:
        """Seconds until all of `count` prompts have their first token; between whole numbers a straight line."""
        return self._between(count, 0)

    def one(self, count: float) -> Estimate:
        """Seconds until one of them has, on average over their places in the row."""
        return self._between(count, 1)

    def _between(self, count: float, which: int) -> Estimate:
        assert count >= 1, f"{count} prompts do not make a step"
        lower = math.floor(count)
        low, part = self._whole(lower)[which], count - lower
        return low if not part else low * (1 - part) + self._whole(lower + 1)[which] * part

    def _whole(self, count: int) -> tuple[Estimate, Estimate]:
        found = self._known.get(count)
        if found is None:
            found = self._known[count] = self._priced(count)
        return found

    def _priced(self, count: int) -> tuple[Estimate, Estimate]:
        step, positions = self.workload.step_tokens, count * self.workload.input
        full = positions // step
        while len(self._clock) <= full:
            self._fill()
        clock, waits = self._clock[full], self._waits[full]
        if positions % step:
            clock += self._seconds(full * step, positions)
            waits += clock * (count - full * step // self.workload.input)
        return clock, waits * (1 / count)

    def _fill(self) -> None:
        """One more full step."""
        step, length, full = self.workload.step_tokens, self.workload.input, len(self._clock) - 1
        clock = self._clock[-1] + self._seconds(full * step, (full + 1) * step)
        self._waits.append(self._waits[-1] + clock * ((full + 1) * step // length - full * step // length))
        self._clock.append(clock)

    def _seconds(self, start: int, end: int) -> Estimate:
        """Of the step that runs these positions. Where in a prompt it begins and how long it is is all that it is."""
        begins, length = start % self.workload.input, end - start
        found = self._steps.get((begins, length))
        if found is None:
            step = prefill_step(self.case, self.workload, begins, begins + length)
            found = self._steps[begins, length] = Estimate.of([step])
        return found


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds of prefills after a decode step, and until one's own prompt has its first token, by how prompts come to
    the ranks."""

    steady: Estimate
    together: Estimate
    apart: Estimate
    first: Estimate
    first_together: Estimate
    first_apart: Estimate


class RankPrompts:
    """Prompts of one workload on all ranks of a case."""

    def __init__(self, case: Case, workload: Workload) -> None:
        self.case, self.workload = case, workload
        self._queues: dict[int, PromptQueue] = {}

    def on(self, requests: int) -> PromptQueue:
        """The prompts of one rank, where as many have some as so many requests are on."""
        ranks = min(requests, self.case.ranks)
        if ranks not in self._queues:
            self._queues[ranks] = PromptQueue(self.case.busy(ranks), self.workload)
        return self._queues[ranks]

    def pauses(self, users: int) -> Pauses:
        """Between the decode steps of so many users, for a workload that has some."""
        ends, ranks = 1 / (self.workload.output - 1), min(users, self.case.ranks)
        own = users / ranks
        asks = 1 - (1 - ends) ** own
        some = 1 - (1 - ends) ** users
        waiting, found = max(1.0, own * ends / asks), 1 + (own - 1) * ends
        alone, every = self.on(1).all(waiting), self.on(users).all(waiting)
        first_alone, first_every = self.on(1).one(found), self.on(users).one(found)
        more = (ranks * asks - some) / (ranks - 1) if ranks > 1 else 0.0
        return Pauses(
            alone * (some - more) + every * more,
            every * asks,
            alone * (ranks * asks),
            first_alone + (first_every - first_alone) * asks,
            first_every,
            first_alone,
        )
