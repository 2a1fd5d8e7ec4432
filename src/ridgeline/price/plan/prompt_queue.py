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
from dataclasses import dataclass, field

from ridgeline.price.plan.request_phases import Estimate, prefill_step
from ridgeline.price.plan.scenario import PlanWorkload, Scenario

_FAR, _NEVER = 10, 1e-12  # standard deviations and a probability that count as impossible


@dataclass(frozen=True, slots=True)
class PromptQueue:  # also in plan_formulas.js
    """The equal prompts that wait together on one rank and are packed into steps.

    It computes the time until all of them, or one of them, have a first token. Each full step is priced once, however
    many prompts follow.
    """

    input: int
    """The number of positions of a prompt that run; those that are cached do not."""
    prompt_step: int
    """The number of positions of a full step."""
    seconds_of: Callable[[int, int], Estimate]
    """A function that returns the seconds of the step that runs some positions of the prompts, laid end to end.

    Its arguments are the first of these positions, which is in the first prompt, and their end.
    """
    _clock: list[Estimate] = field(default_factory=lambda: [Estimate(0.0, 0.0, 0.0)])
    """The seconds of 0, 1, 2 ... full steps."""
    _waits: list[Estimate] = field(default_factory=lambda: [Estimate(0.0, 0.0, 0.0)])
    """The summed times to first token of all prompts that have ended after 0, 1, 2 ... full steps."""
    _rests: dict[int, Estimate] = field(default_factory=dict)
    """The seconds of a shorter last step, by its number of positions, which fixes where in a prompt it begins."""
    _known: dict[int, tuple[Estimate, Estimate]] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Scenario, workload: PlanWorkload) -> "PromptQueue":
        """Return the queue of a workload on one rank of a scenario."""
        return cls(
            workload.computed,
            workload.prompt_step,
            lambda start, end: Estimate.of([prefill_step(case, workload, start, end)]),
        )

    def all(self, count: float) -> Estimate:  # also in plan_formulas.js
        """Return the seconds until all of `count` prompts have their first token.

        Fractional counts are interpolated linearly.
        """
        return self._between(count, 0)

    def one(self, count: float) -> Estimate:  # also in plan_formulas.js
        """Return the average seconds until one of `count` prompts has its first token, over all places in the queue."""
        return self._between(count, 1)

    def _between(self, count: float, which: int) -> Estimate:  # also in plan_formulas.js
        assert count >= 1, f"{count} prompts do not make a step"
        lower = math.floor(count)
        low, part = self._whole(lower)[which], count - lower
        return low if not part else low * (1 - part) + self._whole(lower + 1)[which] * part

    def _whole(self, count: int) -> tuple[Estimate, Estimate]:  # also in plan_formulas.js
        if count not in self._known:
            self._known[count] = self._priced(count)
        return self._known[count]

    def _priced(self, count: int) -> tuple[Estimate, Estimate]:  # also in plan_formulas.js
        full, rest = divmod(count * self.input, self.prompt_step)
        clock, waits = self._full_steps(full)
        if rest:
            if rest not in self._rests:
                self._rests[rest] = self._seconds(full, rest)
            clock += self._rests[rest]
            waits += clock * (count - self._ended(full))
        return clock, waits * (1 / count)

    def _full_steps(self, count: int) -> tuple[Estimate, Estimate]:  # also in plan_formulas.js
        """Return the seconds of `count` full steps, and the summed times to first token of the prompts that end there.

        There are thousands if memory holds that many users, but they repeat once a step begins where a prompt does.
        """
        unlike = self.input // math.gcd(self.prompt_step, self.input)
        for at in range(len(self._clock) - 1, min(count, unlike)):
            clock = self._clock[at] + self._seconds(at, self.prompt_step)
            self._clock.append(clock)
            self._waits.append(self._waits[at] + clock * (self._ended(at + 1) - self._ended(at)))
        rounds, more = divmod(count, unlike)
        if not rounds:
            return self._clock[more], self._waits[more]
        clock, ended = self._clock[unlike], self._ended(unlike)
        # Prompts of later rounds also wait for all rounds before.
        later = clock * (ended * rounds * (rounds - 1) / 2 + rounds * self._ended(more))
        return clock * rounds + self._clock[more], self._waits[unlike] * rounds + self._waits[more] + later

    def _ended(self, steps: int) -> int:  # also in plan_formulas.js
        """Return the number of prompts that have ended after some full steps."""
        return steps * self.prompt_step // self.input

    def _seconds(self, before: int, positions: int) -> Estimate:  # also in plan_formulas.js
        """Return the seconds of the step of some positions that follows `before` full steps."""
        start = before * self.prompt_step % self.input
        return self.seconds_of(start, start + positions)


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


@dataclass(frozen=True, slots=True)
class RankPrompts:  # also in plan_formulas.js
    """The prompt queues of a workload on all data-parallel ranks."""

    ranks: int
    output: int
    """The number of tokens of each response."""
    queue_of: Callable[[int], PromptQueue]
    """A function that returns an empty queue of one rank, given the number of ranks that have prompts."""
    _queues: dict[int, PromptQueue] = field(default_factory=dict)

    @classmethod
    def of(cls, case: Scenario, workload: PlanWorkload) -> "RankPrompts":
        """Return the prompt queues of a workload on the ranks of a scenario."""
        return cls(case.ranks, workload.output, lambda ranks: PromptQueue.of(case.with_active_ranks(ranks), workload))

    def on(self, requests: int) -> PromptQueue:  # also in plan_formulas.js
        """Return the queue of one rank when as many ranks have prompts as `requests` requests spread over."""
        ranks = min(requests, self.ranks)
        if ranks not in self._queues:
            self._queues[ranks] = self.queue_of(ranks)
        return self._queues[ranks]

    def pauses(self, users: int) -> Pauses:  # also in plan_formulas.js
        """Return the prefill pauses between the decode steps of `users` users, for outputs longer than one token."""
        ends, ranks = 1 / (self.output - 1), min(users, self.ranks)
        own = users / ranks
        asks = 1 - (1 - ends) ** own
        some, fullest = 1 - (1 - ends) ** users, mean_max_prompts(users, ranks, ends)
        waiting, found = max(1.0, own * ends / asks), 1 + (own - 1) * ends
        alone, every = self.on(1).all(waiting), self.on(users).all(waiting)
        first_alone, first_every = self.on(1).one(found), self.on(users).one(found)
        more = (every - alone) * ((users * ends - fullest) / (waiting * max(1, ranks - 1)))
        steady = self.on(1).all(max(1.0, fullest / some)) * some + more
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
