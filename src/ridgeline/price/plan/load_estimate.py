"""A model under load: users, their waiting, requests a second, and what a million tokens costs.

The load is a closed loop: `users` requests are always under way, and who has finished asks again at once. Prefills come
first, decoding waits for them, and one request takes output - 1 decode steps after the prefill that emits its first
token. After a decode step each user has thus ended, and asked again, with the chance q = 1 / (output - 1), whenever the
others do (outputs differ, so users do not march in step). The prompts that came together are packed into steps, where

    k = users q / (1 - (1 - q)^users)      prompts wait on average when any does
    P = users q / k                        is the chance that any does after a step
    T(k), F(k)                             seconds until all of k prompts, and until one of them, have a first token

T is nearly a line in k, so that its mean over the prompts that wait is its value at their mean. In one request's stay L
there are output - 1 decode steps, and as many chances of a prefill; whose prompt comes finds (users - 1) q others:

    L = (output - 1) (t_decode(users) + P T(k))     = (output - 1) t_decode + users T(k) / k
    requests a second X = users / L                 tokens a second = output X
    TTFT = F(1 + (users - 1) q)                     from asking to the first token
    TPOT = (L - TTFT) / (output - 1)                between two tokens: the prefills are others', not one's own

so that Little's law holds: users = X (TTFT + (output - 1) TPOT). One user's TPOT is a decode step. Requests of a single
token have no decode steps: every user's prompt waits all the time, and TTFT = L = T(users). Where ranks have requests
of their own, `prompt_queue.py` says what stands in the place of P T(k).
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

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

_MAX_UNHELD = 256  # users that a sweep goes up to where memory holds none


@dataclass(frozen=True, slots=True)
class RankWaits:
    """What users get where all ranks wait for those that have prompts: together where prompts come to all ranks at the
    same moments, apart where to one rank after the other (`prompt_queue.py`). users: of the fullest rank.
    """

    users: int
    tpot_together: Estimate
    tpot_apart: Estimate
    tokens_per_second_together: Estimate
    tokens_per_second_apart: Estimate


@dataclass(frozen=True, slots=True)
class LoadEstimate:
    """What `users` users side by side get.

    itl: seconds of a decode step. prefill: of one prompt alone. tpot: between two tokens of a request on average, the
    prefills of the others included, never its own. ttft: from asking to the first token, behind the prompts that came
    with one's own, where users come and go steadily; ttft_marching: where all ask at once and stay in step, behind half
    of all prompts on average. The arrivals decide where between the two it is. prefill_share: of the engine's time, as
    expected. waits: what ranks that have requests of their own are between; None for one.
    """

    users: int
    itl: Estimate
    prefill: Estimate
    tpot: Estimate
    ttft: Estimate
    ttft_marching: Estimate
    tokens_per_second: Estimate
    requests_per_second: Estimate
    prefill_share: float
    waits: RankWaits | None = None

    @property
    def tokens_per_user(self) -> Estimate:
        """Tokens a second that one user sees."""
        return self.tpot.per_second(1)


@dataclass(frozen=True, slots=True)
class UserCapacity:
    """The most users there may be. limit: what stops one more of them: memory, step (a decode step runs no more
    positions), ttft or tpot.

    load: what they get; where there is not even one, what one would get.
    """

    users: int
    limit: str
    load: LoadEstimate


class LoadEstimator:
    """A case under a workload's requests."""

    def __init__(self, case: Scenario, workload: PlanWorkload) -> None:
        self.case, self.workload = case, workload
        self._prompts = RankPrompts(case, workload)

    @cached_property
    def memory(self) -> DeviceMemory:
        """What a card holds."""
        return memory_of(self.case, self.workload)

    @cached_property
    def prefill(self) -> Estimate:
        """Seconds of one prompt alone."""
        return self._prompts.on(1).all(1)

    def together(self, prompts: int) -> Estimate:
        """Seconds until so many prompts, asked at once, all have their first token."""
        return self._prompts.on(prompts).all(self.case.on_each(prompts))

    def itl(self, batch: int) -> Estimate:
        """Seconds of a decode step of `batch` sequences at the running context."""
        own = self.case.on_each(batch)
        return Estimate.of([decode_step(self.case, own, self.workload.context, self.workload.encoded)])

    def load(self, users: int) -> LoadEstimate:
        """What `users` users get, whether memory holds them or not."""
        output, steps = self.workload.output, self.workload.output - 1
        itl, own = self.itl(users), self.case.on_each(users)
        marching = self._prompts.on(users).one(own)
        if steps:
            pauses = self._prompts.pauses(users)
            stay, ttft = (itl + pauses.steady) * steps, pauses.first
            tpot = (stay - ttft) * (1 / steps)
            waits = self._waits(users, itl, pauses)
        else:
            stay = ttft = self.together(users)
            tpot, waits = itl, None
        requests = stay.per_second(users)
        share = 1 - itl.expected * steps / stay.expected
        return LoadEstimate(users, itl, self.prefill, tpot, ttft, marching, requests * output, requests, share, waits)

    def _waits(self, users: int, itl: Estimate, pauses: Pauses) -> RankWaits | None:
        """The ends that a load lies between where ranks wait for each other."""
        if self.case.ranks == 1:
            return None
        output, steps = self.workload.output, self.workload.output - 1
        together, apart = (itl + pauses.together) * steps, (itl + pauses.apart) * steps
        return RankWaits(
            self.case.on_each(users),
            (together - pauses.first_together) * (1 / steps),
            (apart - pauses.first_apart) * (1 / steps),
            together.per_second(users * output),
            apart.per_second(users * output),
        )

    @cached_property
    def capacity(self) -> UserCapacity:
        """The most users that memory holds, that a step has positions for and the targets allow, by expected times."""
        users = held = self.memory.users
        if held and self._missed(held):
            users = bisect_left(range(1, held), True, key=lambda count: self._missed(count) is not None)
        limit = self.memory.limit if users == held else self._missed(users + 1) or self.memory.limit
        return UserCapacity(users, limit, self.load(max(1, users)))

    def _missed(self, users: int) -> str | None:
        """Which target so many users would miss."""
        wanted = {"ttft": self.workload.ttft, "tpot": self.workload.tpot}
        if wanted == {"ttft": None, "tpot": None}:
            return None
        load = self.load(users)
        got = {"ttft": load.ttft.expected, "tpot": load.tpot.expected}
        return next((name for name, target in wanted.items() if target is not None and got[name] > target), None)

    @property
    def batch_fits(self) -> bool:
        """Whether memory and a step hold the workload's batch, which asks at once, to its end."""
        return self.memory.together >= self.workload.batch

    def dollars_per_million(self, tokens_per_second: float) -> float | None:
        """Dollars for a million tokens of output, their prompts included; None where no price is known."""
        return dollars_per_million(self.case.setup.hourly, tokens_per_second)


def dollars_per_million(hourly: float | None, tokens_per_second: float | None) -> float | None:
    """Dollars for a million tokens, of what costs `hourly` dollars an hour; None where either is not known."""
    return None if hourly is None or tokens_per_second is None else hourly / 3600 / tokens_per_second * 1e6


# -- the batch sweep: what one more user costs the others, and what the card gains ------------------------------------


@dataclass(frozen=True, slots=True)
class SweepRow:
    """A decode step of `batch` sequences at the workload's running context.

    experts: distinct ones that a layer's tokens are expected to hit, None for a model without. gain: tokens a second
    by the bound, over those of batch 1. kv_bytes: of the fullest card. fits: whether memory holds such a batch to its
    end.
    """

    batch: int
    itl: Estimate
    tokens_per_second: Estimate
    gain: float
    intensity: float
    limit: str
    kv_bytes: float
    experts: float | None
    fits: bool


def batch_sweep(serving: LoadEstimator, asked: Sequence[int] = ()) -> list[SweepRow]:
    """The batches asked for; where none are, powers of two up to the users that memory holds, that many, the largest
    batch that it holds to its end, and the workload's.

    Where not even one fits, what there would be if it did.
    """
    most = serving.memory.users or _MAX_UNHELD
    lone = _decode(serving, 1)
    rows = []
    held = serving.memory.together or most
    for batch in asked or sorted({*_powers(most), most, held, serving.workload.batch}):
        rows.append(_row(serving, batch, _decode(serving, batch), lone))
    return rows


def touched_experts(case: Scenario, tokens: int) -> float | None:
    """Distinct experts of one layer that so many tokens are expected to hit, those of all ranks with as many as the
    fullest; None for a model without experts.
    """
    op = next((priced.op for priced in case.price.ops if priced.op.experts is not None), None)
    return None if op is None or op.experts is None else op.experts.of(case.on_each(tokens) * op.gathered)


def _decode(serving: LoadEstimator, batch: int) -> PhasePrice:
    case, workload = serving.case, serving.workload
    phase = decode_phase(case, case.on_each(batch), workload.context, encoded=workload.encoded)
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
        memory.request_bytes * serving.case.on_each(batch),
        touched_experts(serving.case, batch),
        batch <= memory.together,
    )


def _powers(most: int) -> Iterator[int]:
    """1, 2, 4 ... 64, then every fourth power: enough to see the curve bend."""
    batch = 1
    while batch <= most:
        yield batch
        batch *= 2 if batch < 64 else 4
