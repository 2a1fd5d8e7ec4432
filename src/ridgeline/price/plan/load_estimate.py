"""A steady-state queueing model of a server under load, with users, waiting times, throughput and cost per token.

The load is a closed loop in which `users` requests are always running, and a user who has finished sends the next
request at once. Prefills take priority over decoding. A request takes output - 1 decode steps after the prefill that
emits its first token. So after each decode step every user has finished and sent a new request with probability q = 1 /
(output - 1), independently of the others (outputs differ in length, so users are not synchronised). Prompts that arrive
together are packed into steps, where

    k = users q / (1 - (1 - q)^users)      is the mean number of waiting prompts if there are any
    P = users q / k                        is the probability that there are any after a step
    T(k), F(k)                             are the seconds until all of k prompts, or one of them, have a first token

T is nearly linear in k, so its mean over the waiting prompts is close to its value at their mean. The residence time L
of a request has output - 1 decode steps, each followed by a prefill with probability P. A user's own prompt meets
(users - 1) q others. Therefore

    L = (output - 1) (t_decode(users) + P T(k))     = (output - 1) t_decode + users T(k) / k
    requests per second X = users / L               tokens per second = output X
    TTFT = F(1 + (users - 1) q)                     from the request to its first token
    TPOT = (L - TTFT) / (output - 1)                between two tokens, including the prefills of other users

and Little's law holds, users = X (TTFT + (output - 1) TPOT). The TPOT of a single user is a decode step. Requests for a
single token have no decode steps, so every user's prompt is always waiting, and TTFT = L = T(users). For data-parallel
ranks with requests of their own, `prompt_queue.py` replaces the term P T(k).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from ridgeline.price.crossovers import first_between
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.price.plan.device_memory import DeviceMemory, memory_of
from ridgeline.price.plan.prompt_queue import Pauses, RankPrompts
from ridgeline.price.plan.request_phases import (
    Estimate,
    PhasePrice,
    decode_phase,
    decode_step,
    price_phase,
)
from ridgeline.price.plan.scenario import PlanWorkload, Scenario
from ridgeline.util.json_data import json_name, json_shape

_MAX_UNHELD = 256  # largest batch of a sweep if memory holds no user


@dataclass(frozen=True, slots=True)
class RankWaits:  # also in plan_formulas.js
    """The range of TPOT and throughput when data-parallel ranks wait for each other's prefills.

    `together` is the best case: all ranks receive prompts at the same moments. `apart` is the worst case: only one rank
    at a time receives prompts (`prompt_queue.py`).
    """

    users: int
    """The number of users on the fullest rank."""
    tpot_together: Estimate
    tpot_apart: Estimate
    tokens_per_second_together: Estimate
    tokens_per_second_apart: Estimate


@json_shape(..., "tokens_per_second_per_user=tokens_per_user")
@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """The latency and throughput that `users` concurrent users experience."""

    users: int
    itl: Estimate
    """The seconds of a decode step (inter-token latency without prefills in between)."""
    prefill: Estimate
    """The seconds to prefill one prompt alone."""
    tpot: Estimate
    """The average seconds between two tokens of a request, including the prefills of others but not its own."""
    ttft: Estimate
    """The seconds to the first token, behind prompts that arrived at the same time, if arrivals are spread evenly."""
    ttft_synchronised: Estimate = field(metadata=json_name("ttft_marching"))
    """The average seconds to the first token if all users always send their requests at the same moment.

    Half of the other prompts are then ahead of a prompt on average. The actual TTFT is between `ttft` and this value,
    depending on the arrivals.
    """
    tokens_per_second: Estimate
    requests_per_second: Estimate
    prefill_share: float
    """The share of the engine's time that prefills take, by expected times."""
    waits: RankWaits | None = None
    """The range of outcomes for data-parallel ranks that wait for each other; None for a single rank."""

    @property
    def tokens_per_user(self) -> Estimate:
        """The tokens per second that one user receives."""
        return self.tpot.per_second(1)


@dataclass(frozen=True, slots=True)
class UserCapacity:
    """The maximum number of concurrent users, what limits it, and the performance they experience."""

    users: int
    limit: str
    """The reason that one more user is not possible: "memory", "step" (too few positions), "ttft" or "tpot"."""
    load: LoadEstimate
    """The performance that this number of users experiences, or that one user would if no user can be served."""


@dataclass(frozen=True, slots=True)
class Residence:  # also in plan_formulas.js
    """The time that a request spends in the engine, as `users` users experience it."""

    seconds: Estimate
    """The seconds from the request to its last token."""
    ttft: Estimate
    """The seconds to the first token."""
    tpot: Estimate
    """The average seconds between two tokens."""


def residence_of(itl: Estimate, pause: Estimate, first: Estimate, steps: int) -> Residence:  # also in plan_formulas.js
    """Return the residence of a request.

    Args:
        itl: The seconds of a decode step.
        pause: The mean seconds of prefill after a decode step.
        first: The seconds to the first token.
        steps: The decode steps of a request, at least one.
    """
    seconds = (itl + pause) * steps
    return Residence(seconds, first, (seconds - first) * (1 / steps))


def rank_waits(
    users: int, users_per_rank: int, output: int, itl: Estimate, pauses: Pauses
) -> RankWaits:  # also in plan_formulas.js
    """Return the range of outcomes if data-parallel ranks wait for each other, for outputs longer than one token."""
    together = residence_of(itl, pauses.together, pauses.first_together, output - 1)
    apart = residence_of(itl, pauses.apart, pauses.first_apart, output - 1)
    return RankWaits(
        users_per_rank,
        together.tpot,
        apart.tpot,
        together.seconds.per_second(users * output),
        apart.seconds.per_second(users * output),
    )


@dataclass(frozen=True, slots=True)
class SteadyState:  # also in plan_formulas.js
    """The mean times of requests while a constant number of users each send one request after the other."""

    itl: Estimate
    """The seconds of a decode step."""
    pauses: Pauses | None
    """The seconds of prefill between two decode steps; None for outputs of one token, which have no decode steps."""
    stay: Residence
    """The time that a request spends in the engine."""


def steady_state(users: int, own: int, itl: Estimate, prompts: RankPrompts) -> SteadyState:  # also in plan_formulas.js
    """Return the times that users experience.

    Args:
        users: The number of users.
        own: The number of users of the fullest rank.
        itl: The seconds of a decode step.
        prompts: The prompt queues.
    """
    steps = prompts.output - 1
    if not steps:
        seconds = prompts.on(users).all(own)
        return SteadyState(itl, None, Residence(seconds, seconds, itl))
    pauses = prompts.pauses(users)
    return SteadyState(itl, pauses, residence_of(itl, pauses.steady, pauses.first, steps))


def missed_target(
    first: float, each: float, ttft: float | None, tpot: float | None
) -> str | None:  # also in plan_formulas.js
    """Return the name of the latency target that a request misses, or None.

    Args:
        first: The seconds to the first token.
        each: The average seconds between two tokens.
        ttft: The target of the former; None for none.
        tpot: The target of the latter; None for none.
    """
    if ttft is not None and first > ttft:
        return "ttft"
    return "tpot" if tpot is not None and each > tpot else None


def most_users(
    held: int, limit: str, missed: Callable[[int], str | None]
) -> tuple[int, str]:  # also in plan_formulas.js
    """Return the maximum number of users, and what prevents one more.

    Args:
        held: The number of users that memory and a step allow.
        limit: Which of these two prevents one more.
        missed: Returns the name of the latency target that a number of users would miss, or None.
    """
    users = held
    if held and missed(held):
        users = first_between(1, held, lambda count: missed(count) is not None) - 1
    return users, limit if users == held else missed(users + 1) or limit


def prefill_share(itl: Estimate, stay: Residence, steps: int) -> float:  # also in plan_formulas.js
    """Return the share of the engine's time that prefills take, by expected times."""
    return 1 - itl.expected * steps / stay.seconds.expected


class LoadEstimator:
    """An estimator of the performance of a scenario under load."""

    def __init__(self, case: Scenario, workload: PlanWorkload) -> None:
        self.case, self.workload = case, workload
        self._prompts = RankPrompts.of(case, workload)

    @cached_property
    def memory(self) -> DeviceMemory:
        """The memory budget of one device."""
        return memory_of(self.case, self.workload)

    @cached_property
    def prefill(self) -> Estimate:
        """The seconds to prefill one prompt alone."""
        return self._prompts.on(1).all(1)

    def prefill_seconds(self, prompts: int) -> Estimate:
        """Return the seconds until `prompts` prompts that arrive at once all have their first token."""
        return self._prompts.on(prompts).all(self.case.requests_per_rank(prompts))

    def itl(self, batch: int) -> Estimate:
        """Return the seconds of a decode step of `batch` sequences at the average context length."""
        own = self.case.requests_per_rank(batch)
        return Estimate.of([decode_step(self.case, own, self.workload.context, self.workload.encoded)])

    def load(self, users: int) -> LoadEstimate:
        """Return the performance that `users` users experience, whether or not memory holds them."""
        output, own = self.workload.output, self.case.requests_per_rank(users)
        state = self._steady(users)
        itl, stay, waits = state.itl, state.stay, None
        if state.pauses is not None and self.case.ranks > 1:
            waits = rank_waits(users, own, output, itl, state.pauses)
        marching = self._prompts.on(users).one(own)
        requests = stay.seconds.per_second(users)
        share = prefill_share(itl, stay, output - 1)
        return LoadEstimate(
            users, itl, self.prefill, stay.tpot, stay.ttft, marching, requests * output, requests, share, waits
        )

    @cached_property
    def capacity(self) -> UserCapacity:
        """The maximum number of users that memory, step size and latency targets allow, by expected times."""
        users, limit = most_users(self.memory.users, self.memory.limit, self._missed)
        return UserCapacity(users, limit, self.load(max(1, users)))

    def users_within(self, interval: ErrorInterval, end: Literal[0, 1]) -> int:
        """Return the maximum number of users if times are at the lower (0) or the upper (1) end of their interval."""
        ttft, tpot = self.workload.ttft, self.workload.tpot

        def missed(users: int) -> str | None:
            if ttft is None and tpot is None:
                return None
            stay = self._steady(users).stay
            first, each = (interval.around_time(of.expected, of.floor)[end] for of in (stay.ttft, stay.tpot))
            return missed_target(first, each, ttft, tpot)

        return most_users(self.memory.users, self.memory.limit, missed)[0]

    def serves(self, users: int) -> bool:
        """Return whether memory, a step and the latency targets allow this number of users, by expected times."""
        return users <= self.memory.users and self._missed(users) is None

    def _missed(self, users: int) -> str | None:
        """Return the name of the latency target that `users` users would miss, or None."""
        ttft, tpot = self.workload.ttft, self.workload.tpot
        if ttft is None and tpot is None:
            return None
        stay = self._steady(users).stay
        return missed_target(stay.ttft.expected, stay.tpot.expected, ttft, tpot)

    def _steady(self, users: int) -> SteadyState:
        return steady_state(users, self.case.requests_per_rank(users), self.itl(users), self._prompts)

    @property
    def batch_fits(self) -> bool:
        """Whether memory and one step hold the workload's batch, started at once, to its end."""
        return self.memory.max_simultaneous >= self.workload.batch

    def dollars_per_million(self, tokens_per_second: float) -> float | None:
        """Return the dollars per million output tokens, prompts included; None if the price is unknown."""
        return dollars_per_million(self.case.setup.hourly, tokens_per_second)


def dollars_per_million(
    hourly: float | None, tokens_per_second: float | None
) -> float | None:  # also in plan_formulas.js
    """Return the dollars per million tokens at an hourly price and a token rate; None if either is unknown."""
    return None if hourly is None or tokens_per_second is None else hourly / 3600 / tokens_per_second * 1e6


# -- the batch sweep: what one more user costs the others, and what the card gains ------------------------------------


@dataclass(frozen=True, slots=True)
class SweepRow:
    """The performance of a decode step of `batch` sequences at the workload's average context length."""

    batch: int
    itl: Estimate
    tokens_per_second: Estimate
    gain: float
    """The throughput of the batch relative to batch 1, by the bound."""
    intensity: float
    limit: str
    kv_bytes: float
    """The KV bytes that the batch takes on the fullest device."""
    experts: float | None
    """The expected number of distinct experts per layer that the tokens hit; None for a dense model."""
    fits: bool
    """Whether memory holds the KV of this batch until all requests end, and one step gives each a token."""


def batch_sweep(serving: LoadEstimator, batches: Sequence[int] = ()) -> list[SweepRow]:
    """Return a row per batch size, computed even for batch sizes that do not fit.

    By default the batch sizes are powers of two up to the maximum number of users, that number, the largest batch that
    can start at once, and the workload's batch. From 64 on, only every second power of two is used.

    Args:
        serving: The estimator.
        batches: The batch sizes to use instead of the default.
    """
    most = serving.memory.users or _MAX_UNHELD
    lone = _decode(serving, 1)
    held = serving.memory.max_simultaneous or most
    batches = batches or sorted({*_powers(most), most, held, serving.workload.batch})
    return [_row(serving, batch, _decode(serving, batch), lone) for batch in batches]


def touched_experts(case: Scenario, tokens: int) -> float | None:
    """Return the expected number of distinct experts of one layer that `tokens` tokens hit; None for a dense model.

    The tokens of all data-parallel ranks count, each rank with as many as the fullest.
    """
    op = next((priced.op for priced in case.price.ops if priced.op.experts is not None), None)
    if op is None or op.experts is None:
        return None
    return op.experts.expected_hits(case.requests_per_rank(tokens) * op.gathered_ranks)


def _decode(serving: LoadEstimator, batch: int) -> PhasePrice:
    case, workload = serving.case, serving.workload
    phase = decode_phase(case, case.requests_per_rank(batch), workload.context, encoded=workload.encoded)
    return price_phase(case.price, case.device, phase)


def _row(serving: LoadEstimator, batch: int, phase: PhasePrice, lone: PhasePrice) -> SweepRow:
    memory = serving.memory
    return SweepRow(
        batch,
        phase.seconds,
        phase.seconds.per_second(batch),
        batch * lone.seconds.bound / phase.seconds.bound,
        phase.intensity,
        phase.limit,
        memory.request_bytes * serving.case.requests_per_rank(batch),
        touched_experts(serving.case, batch),
        batch <= memory.max_simultaneous,
    )


def _powers(most: int) -> Iterator[int]:
    """Yield 1, 2, 4 ... 64, then every second power of two, which suffices to show the curve bend."""
    batch = 1
    while batch <= most:
        yield batch
        batch *= 2 if batch < 64 else 4
