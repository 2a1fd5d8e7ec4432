"""Prompts that wait together, packed into steps: how long until all of them, and one of them, have a first token."""

import math

from ridgeline.roofline.plan.case import Case
from ridgeline.roofline.plan.estimate import Estimate
from ridgeline.roofline.plan.phases import prefill_step
from ridgeline.roofline.plan.workload import Workload

_NOTHING = Estimate(0.0, 0.0, 0.0)


class Prompts:
    """The prompts of one workload, all there at once. Each full step is priced once, however many prompts follow."""

    def __init__(self, case: Case, workload: Workload) -> None:
        self.case, self.workload = case, workload
        self._clock = [_NOTHING]  # after so many full steps
        self._waits = [_NOTHING]  # of the prompts that have ended by then, summed
        self._known: dict[int, tuple[Estimate, Estimate]] = {}

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
        return Estimate.of([prefill_step(self.case, self.workload, start, end)])
