"""The waiting time of prompts for their first token, on one rank or on data-parallel ranks that wait for each other.

Each of R ranks (attention data-parallel) has u = users / R requests of its own, and all ranks take every step together:
a rank without a prompt waits for those that have one. As in `load_estimate.py`, on one rank k is the mean number of
waiting prompts if there are any, and P the probability that there are any after a decode step. S = 1 - (1 - P)^R is the
probability that any rank has a prompt, and M the mean of the largest number of prompts on any rank. T_m(k) are the
seconds until all of k prompts on each of m ranks, whose rows meet at the experts, have a first token. The mean prefill
time after a decode step is

    together      P T_R(k)                                  if prompts reach all ranks at the same moments
    steady        S T_1(M / S) + (R u q - M) t              if they reach each rank independently
    apart         R P T_1(k)                                if they reach one rank after the other

where t = (T_R(k) - T_1(k)) / ((R - 1) k) are the seconds that a prompt on another rank adds: it runs alongside those of
the fullest rank, and its rows go through the experts too. If T is linear in k and T_R at most R T_1, the steady case
lies between the other two. T may bend, as a floor does between memory-bound and compute-bound; then the other two are
extended to include the steady case. For R = 1 all three are P T(k). A user's own prompt meets (u - 1) q others on its
rank, and with probability P prompts on each other rank.
"""

import math
from collections.abc import Callable
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from ridgeline.price.plan.request_phases import Estimate, prefill_step
from ridgeline.price.plan.scenario import PlanWorkload, Scenario

Figures = npt.NDArray[np.float64]
"""A table of times in seconds with one row per entry and three columns: floor, bound and expected (see `Estimate`)."""

_FAR, _NEVER = 10, 1e-12  # standard deviations and a probability that count as impossible


class PromptQueue:
    """The prompts of one workload that wait together on one rank and are packed into steps.

    It computes the time until all of them, or one of them, have a first token. Each full step is priced once, however
    many prompts follow.
    """

    def __init__(self, case: Scenario, workload: PlanWorkload) -> None:
        self.case, self.workload = case, workload
        # Row n of _clock holds the seconds (floor, bound, expected) of n full steps. Row n of _waits holds the summed
        # times to first token of all prompts that have ended by then.
        self._clock = self._waits = np.zeros((1, 3))
        self._known: dict[int, tuple[Estimate, Estimate]] = {}
        self._steps: dict[tuple[int, int], Estimate] = {}

    def all(self, count: float) -> Estimate:
        """Return the seconds until all of `count` prompts have their first token.

        Fractional counts are interpolated linearly.
        """
        return self._between(count, 0)

    def one(self, count: float) -> Estimate:
        """Return the average seconds until one of `count` prompts has its first token, over all places in the queue."""
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
        """Extend the running sums to `full` full steps.

        There are thousands if memory holds that many users, but few of them differ.
        """
        step, length, done = self.workload.prompt_step, self.workload.input, len(self._clock) - 1
        unlike = min(full, length // math.gcd(step, length))  # after these, the steps' start offsets in prompts repeat
        each = [astuple(self._seconds(at * step, (at + 1) * step)) for at in range(unlike)]
        at = np.arange(done, full)
        ended = (at + 1) * step // length - at * step // length
        clock = _run_on(self._clock, np.array(each)[at % unlike])
        self._waits = _run_on(self._waits, clock[done + 1 :] * ended[:, None])
        self._clock = clock

    def _seconds(self, start: int, end: int) -> Estimate:
        """Return the seconds of the step that runs these positions.

        The step depends only on where in a prompt it begins and on its length.
        """
        begins, length = start % self.workload.input, end - start
        found = self._steps.get((begins, length))
        if found is None:
            step = prefill_step(self.case, self.workload, begins, begins + length)
            found = self._steps[begins, length] = Estimate.of([step])
        return found


def _run_on(sums: Figures, more: Figures) -> Figures:
    """Return an array of running sums, extended by the running sums of further rows."""
    return np.concatenate([sums[:-1], np.cumsum(np.concatenate([sums[-1:], more]), axis=0)])


@dataclass(frozen=True, slots=True)
class Pauses:  # also in plan_formulas.js
    """The mean seconds of prefill after a decode step, and those to a first token, for three patterns of arrival.

    Prompts reach the data-parallel ranks independently of each other (`steady`, `first`), all ranks at the same moments
    (`together`), or one rank at a time (`apart`). Ranks wait for each other's prefills, so the pauses are shortest for
    `together` and longest for `apart`.
    """

    steady: Estimate
    """The mean prefill seconds after a decode step if each data-parallel rank receives prompts independently."""
    together: Estimate
    """The mean prefill seconds after a decode step, at best: all data-parallel ranks receive prompts at once."""
    apart: Estimate
    """The mean prefill seconds after a decode step, at worst: only one data-parallel rank at a time gets prompts."""
    first: Estimate
    """The mean seconds to the first token if each data-parallel rank receives prompts independently."""
    first_together: Estimate
    """The mean seconds to the first token if all data-parallel ranks receive prompts at the same moments."""
    first_apart: Estimate
    """The mean seconds to the first token if only one data-parallel rank at a time receives prompts."""


class RankPrompts:
    """The prompt queues of a workload on all ranks of a scenario."""

    def __init__(self, case: Scenario, workload: PlanWorkload) -> None:
        self.case, self.workload = case, workload
        self._queues: dict[int, PromptQueue] = {}

    def on(self, requests: int) -> PromptQueue:
        """Return the queue of one rank when as many ranks have prompts as `requests` requests spread over."""
        ranks = min(requests, self.case.ranks)
        if ranks not in self._queues:
            self._queues[ranks] = PromptQueue(self.case.with_active_ranks(ranks), self.workload)
        return self._queues[ranks]

    def pauses(self, users: int) -> Pauses:
        """Return the prefill pauses between the decode steps of `users` users, for outputs longer than one token."""
        return prompt_pauses(
            users,
            self.case.ranks,
            self.workload.output,
            lambda requests, count: self.on(requests).all(count),
            lambda requests, count: self.on(requests).one(count),
        )


def prompt_pauses(
    users: int,
    ranks: int,
    output: int,
    all_of: Callable[[int, float], Estimate],
    one_of: Callable[[int, float], Estimate],
) -> Pauses:  # also in plan_formulas.js
    """Return the prefill pauses between the decode steps of `users` users.

    Args:
        users: The number of users.
        ranks: The number of data-parallel ranks.
        output: The tokens of each response, more than one.
        all_of: Returns the seconds until all of some prompts on one rank have their first token, from the number of
            requests that the ranks have and the number of prompts (`PromptQueue.all`).
        one_of: Returns the average seconds until one of them has, from the same numbers (`PromptQueue.one`).
    """
    ends, ranks = 1 / (output - 1), min(users, ranks)
    own = users / ranks
    asks = 1 - (1 - ends) ** own
    some, fullest = 1 - (1 - ends) ** users, mean_max_prompts(users, ranks, ends)
    waiting, found = max(1.0, own * ends / asks), 1 + (own - 1) * ends
    alone, every = all_of(1, waiting), all_of(users, waiting)
    first_alone, first_every = one_of(1, found), one_of(users, found)
    more = (every - alone) * ((users * ends - fullest) / (waiting * max(1, ranks - 1)))
    steady = all_of(1, max(1.0, fullest / some)) * some + more
    return Pauses(
        steady,
        steady.combine(every * asks, min),
        steady.combine(alone * (ranks * asks), max),
        first_alone + (first_every - first_alone) * asks,
        first_every,
        first_alone,
    )


def mean_max_prompts(users: int, ranks: int, chance: float) -> float:  # also in plan_formulas.js
    """Return the mean of the largest number of prompts on any rank.

    It is the sum over x of the probability that not all ranks have x prompts or fewer.

    Args:
        users: The number of users, divided evenly among the ranks.
        ranks: The number of ranks.
        chance: The probability that a user has a prompt.
    """
    if ranks == 1 or chance == 1:
        return math.ceil(users / ranks) * chance
    fewer, fuller = divmod(users, ranks)  # `fuller` ranks have one user more
    mean = (fewer + 1) * chance
    least = max(0, math.floor(mean - _FAR * math.sqrt(mean) - _FAR))  # the maximum is never lower
    below, most = [0.0, 0.0], float(least)
    for count in range(least, fewer + 1):
        below = [sum_ + _binomial(size, count, chance) for size, sum_ in zip((fewer, fewer + 1), below, strict=True)]
        beyond = 1 - below[0] ** (ranks - fuller) * below[1] ** fuller
        most += beyond
        if beyond < _NEVER:
            break
    return most


def _binomial(size: int, count: int, chance: float) -> float:  # also in plan_formulas.js
    """Return the probability that exactly `count` of `size` users have a prompt."""
    if count > size:
        return 0.0
    ways = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
    return math.exp(ways + count * math.log(chance) + (size - count) * math.log1p(-chance))
