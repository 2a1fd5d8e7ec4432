"""Prompts that wait for their first token, on one rank and on several that wait for each other.

Each of R ranks with requests of its own (attention data-parallel) has u = users / R of them, and all take every step
together: whoever has no prompt waits for those that have. On one rank k prompts wait on average when any does, which
has the chance P after a decode step (`load_estimate.py`); S = 1 - (1 - P)^R is the chance that any rank has some, and M
the mean of the most that one rank has. T_m(k) are the seconds until all of k prompts on each of m ranks have a first
token, their rows together at the experts. After a decode step come, on average, prefills of

    together      P T_R(k)                                  prompts come to all ranks at the same moments
    steady        S T_1(M / S) + (R u q - M) t              to each at moments of its own
    apart         R P T_1(k)                                to one rank after the other

where t = (T_R(k) - T_1(k)) / ((R - 1) k) are the seconds that a prompt on another rank adds: it runs beside those of
the fullest rank, and its rows come to the experts. With T a line in k and T_R no more than R T_1 the steady case lies
between the other two; where T bends, as a floor does between memory and arithmetic, they reach at least as far as it.
With R = 1 all are P T(k). One's own prompt finds (u - 1) q others on its rank, and prompts on each other rank with the
chance P.
"""

import math
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from ridgeline.price.plan.request_phases import Estimate, prefill_step
from ridgeline.price.plan.scenario import PlanWorkload, Scenario

Figures = npt.NDArray[np.float64]
"""Rows of floor, bound and expected."""

_FAR, _NEVER = 10, 1e-12  # standard deviations beyond which nothing is, and a chance that is none


class PromptQueue:
    """Prompts of one workload that wait together on one rank, packed into steps: how long until all of them, and one of
    them, have a first token. Each full step is priced once, however many prompts follow.
    """

    def __init__(self, case: Scenario, workload: PlanWorkload) -> None:
        self.case, self.workload = case, workload
        # Floor, bound and expected after so many full steps, and of the prompts that have ended by then, summed.
        self._clock = self._waits = np.zeros((1, 3))
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
        step, positions = self.workload.prompt_step, count * self.workload.input
        full = positions // step
        if len(self._clock) <= full:
            self._fill(full)
        clock, waits = Estimate(*self._clock[full].tolist()), Estimate(*self._waits[full].tolist())
        if positions % step:
            clock += self._seconds(full * step, positions)
            waits += clock * (count - full * step // self.workload.input)
        return clock, waits * (1 / count)

    def _fill(self, full: int) -> None:
        """So many full steps: thousands where memory holds as many users, few of them unlike each other."""
        step, length, done = self.workload.prompt_step, self.workload.input, len(self._clock) - 1
        unlike = min(full, length // math.gcd(step, length))  # then steps begin at the same places in prompts again
        each = [astuple(self._seconds(at * step, (at + 1) * step)) for at in range(unlike)]
        at = np.arange(done, full)
        ended = (at + 1) * step // length - at * step // length
        clock = _run_on(self._clock, np.array(each)[at % unlike])
        self._waits = _run_on(self._waits, clock[done + 1 :] * ended[:, None])
        self._clock = clock

    def _seconds(self, start: int, end: int) -> Estimate:
        """Of the step that runs these positions. Where in a prompt it begins and how long it is is all that it is."""
        begins, length = start % self.workload.input, end - start
        found = self._steps.get((begins, length))
        if found is None:
            step = prefill_step(self.case, self.workload, begins, begins + length)
            found = self._steps[begins, length] = Estimate.of([step])
        return found


def _run_on(sums: Figures, more: Figures) -> Figures:
    """Running sums with those of further rows behind them."""
    return np.concatenate([sums[:-1], np.cumsum(np.concatenate([sums[-1:], more]), axis=0)])


@dataclass(frozen=True, slots=True)
class Pauses:
    """Seconds of prefills after a decode step, and until one's own prompt has its first token, by how prompts come to
    the ranks.
    """

    steady: Estimate
    together: Estimate
    apart: Estimate
    first: Estimate
    first_together: Estimate
    first_apart: Estimate


class RankPrompts:
    """Prompts of one workload on all ranks of a case."""

    def __init__(self, case: Scenario, workload: PlanWorkload) -> None:
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
        some, fullest = 1 - (1 - ends) ** users, most_of_a_rank(users, ranks, ends)
        waiting, found = max(1.0, own * ends / asks), 1 + (own - 1) * ends
        alone, every = self.on(1).all(waiting), self.on(users).all(waiting)
        first_alone, first_every = self.on(1).one(found), self.on(users).one(found)
        more = (every - alone) * ((users * ends - fullest) / (waiting * max(1, ranks - 1)))
        steady = self.on(1).all(max(1.0, fullest / some)) * some + more
        return Pauses(
            steady,
            steady.beside(every * asks, min),
            steady.beside(alone * (ranks * asks), max),
            first_alone + (first_every - first_alone) * asks,
            first_every,
            first_alone,
        )


def most_of_a_rank(users: int, ranks: int, chance: float) -> float:
    """The mean of the most prompts that any rank has, where each of the users, divided evenly, has one with this
    chance: the sum over x of the chance that not all ranks have x or fewer.
    """
    if ranks == 1 or chance == 1:
        return math.ceil(users / ranks) * chance
    fewer, fuller = divmod(users, ranks)  # so many ranks have one user more than the others
    mean = (fewer + 1) * chance
    least = max(0, math.floor(mean - _FAR * math.sqrt(mean) - _FAR))  # fewer are never the most
    below, most = [0.0, 0.0], float(least)
    for count in range(least, fewer + 1):
        below = [sum_ + _binomial(size, count, chance) for size, sum_ in zip((fewer, fewer + 1), below, strict=True)]
        beyond = 1 - below[0] ** (ranks - fuller) * below[1] ** fuller
        most += beyond
        if beyond < _NEVER:
            break
    return most


def _binomial(size: int, count: int, chance: float) -> float:
    """The chance that so many of `size` users have a prompt."""
    if count > size:
        return 0.0
    ways = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    return math.exp(ways + count * math.log(chance) + (size - count) * math.log1p(-chance))
