"""Metrics: what the log of a run says, by the definitions of insight/traffic/summary.py, in seconds.

What comes while the replica fills up is left out: until as many requests run as run later on, by the median, everything
is faster than it will be. After the last arrival the run goes on until all have ended.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ridgeline.insight.simulate.columns import Columns, Ints, distribution, ints
from ridgeline.insight.simulate.run_log import HELD, OUTCOMES, RunLog
from ridgeline.insight.simulate.slo_classes import ClassMetrics, by_class
from ridgeline.insight.traffic.percentiles import DEVIATIONS_95, Distribution, Interval, wilson
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.stationarity import FALLING_BEHIND, SURE, Stationarity, judge_stationarity
from ridgeline.insight.traffic.summary import Goodput

_SAMPLES = 400  # moments at which requests under way are counted
_COMING = 0.1  # of the time: the least in which requests come for steps after the last of them not to count


@dataclass(frozen=True, slots=True)
class StepShares:
    """Of the steps, weighted by how long they took. busy: share of the time in which there is one, of all replicas.
    batch: sequences in one on average, and pages their share of the pool that requests hold; most_pages: the most of it
    at any time. prompts: share of the steps' time in those that run prompts; compute: in those with more arithmetic
    than memory traffic. held: share of all time in which somebody waits, by why (HELD). longest: seconds of the
    longest.
    """

    count: int
    busy: float
    batch: float
    pages: float
    most_pages: float
    prompts: float
    compute: float
    held: dict[str, float]
    longest: float


@dataclass(frozen=True, slots=True)
class MarginOfError:
    """How far off figures may be by the draw of requests, as shares of them: 1.96 standard errors, as if requests were
    independent. requests, good: of Poisson counts. tokens: of a compound Poisson sum, of their lengths. good_share:
    between which shares a binomial one lies, by Wilson.
    """

    requests: float
    tokens: float
    good: float
    good_share: tuple[float, float]


@dataclass(frozen=True, slots=True)
class SimulationMetrics:
    """Of a run. counts: requests by outcome, all of them; limited: answered ones that the context cut short. warm_up:
    seconds from the start in which arrivals are not counted, and left_out how many those are; the rest is of the
    others alone. duration: from then to the last token. offered: arrivals a second. latencies: by name; sizes: tokens
    in and out, on average. found: share of the prompt positions that were found in KV memory. good_share: of all
    requests. replicas: that were there, on average over the run. front: seconds of work that the front is given each
    second; None without one. front_wall: requests a second from which it does not keep up, as long as steps are as many
    as here. drawn, steadiness: None of users, the latter too where there is too little to see. classes: of each class
    of requests, where there are several.
    """

    counts: dict[str, int]
    reasons: dict[str, int]
    limited: int
    warm_up: float
    left_out: int
    duration: float
    offered: float
    requests_per_second: float
    tokens_per_second: float
    input: float
    output: float
    latencies: dict[str, Distribution | None]
    goodput: Goodput | None
    good_share: float
    found: float
    preemptions: int
    wasted: int
    steps: StepShares
    replicas: float
    front: float | None
    front_wall: float
    steadiness: Stationarity | None
    drawn: MarginOfError | None
    classes: dict[str, ClassMetrics] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All requests."""
        return sum(self.counts.values())

    @property
    def sizes(self) -> tuple[int, int]:
        """Tokens in and out of an average request, for a law."""
        return max(1, round(self.input)), max(1, round(self.output))

    @property
    def overloaded(self) -> bool:
        """Whether the replicas or their front fall behind, of what comes by itself: then latencies only say how long
        one looked.
        """
        if not self.counts["ok"] or self.steadiness is None:
            return False
        return self.front_overloaded or self.steadiness.overloaded

    @property
    def front_overloaded(self) -> bool:
        """Whether the front falls behind: more is under way as time passes, more than 5 % of what comes is left each
        second, as of `judge_stationarity`, and that is more than the draw of so many requests would make.
        """
        if self.steadiness is None or not self.offered:
            return False
        left = max(0.0, 1 - self.front_wall / self.offered)
        sure = left > FALLING_BEHIND and left * self.total > SURE * math.sqrt(self.total)
        return sure and self.steadiness.growth > 0

    def late(self, name: str) -> float:
        """The p99 of a latency, or the highest percentile that there are enough samples for; infinite without any."""
        found = self.latencies[name]
        known = [] if found is None else [at.mid for at in found.percentiles.values() if at is not None]
        return known[-1] if known else math.inf

    def latency(self, name: str, percent: int) -> Interval | None:
        """A percentile; None where there are too few samples."""
        found = self.latencies[name]
        return None if found is None else found.percentiles[percent]


def measure(log: RunLog, slo: SLO | None, *, open_loop: bool) -> SimulationMetrics:
    """The metrics of a log. open_loop: whether requests came by themselves, so that they may come too fast."""
    requests = Columns(log)
    since = warm_up(log, requests)
    counted = requests.arrived >= since
    answered = counted & requests.ok
    duration = _duration(requests, answered, counted)
    good = requests.goodput(answered, slo, duration)
    share = (int(answered.sum()) if good is None else good.good) / max(1, int(counted.sum()))
    arrivals = requests.arrived[counted]
    span = float(arrivals[-1] - arrivals[0]) / 1e9 if len(arrivals) else 0.0
    offered = (len(arrivals) - 1) / span if span else 0.0
    front, front_wall = _front(log, offered if open_loop else 0.0)
    made, prompts = int(requests.made[answered].sum()), int(requests.input[answered].sum())
    assert log.totals is not None, "the run has not ended"
    reasons: dict[str, int] = {}
    for reason in log.requests.reasons.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    classed = any(requests.classes) or _classed(slo)
    return SimulationMetrics(
        counts={name: int((requests.outcome == code).sum()) for code, name in enumerate(OUTCOMES)},
        reasons=reasons,
        limited=int(ints(log.requests.limited).sum()),
        warm_up=since / 1e9,
        left_out=int((~counted).sum()),
        duration=duration,
        offered=offered,
        requests_per_second=int(answered.sum()) / duration if duration else 0.0,
        tokens_per_second=made / duration if duration else 0.0,
        input=_mean(requests.input[answered]),
        output=_mean(requests.made[answered]),
        latencies=_latencies(log, requests, answered, since),
        goodput=good,
        good_share=share,
        found=int(requests.cached[answered].sum()) / prompts if prompts else 0.0,
        preemptions=log.totals.preemptions,
        wasted=log.totals.wasted,
        steps=_shares(log, since),
        replicas=sum(until - since for since, until in log.lives) / log.end if log.end else float(log.replicas),
        front=front,
        front_wall=front_wall,
        steadiness=_steadiness(requests, span) if open_loop else None,
        drawn=_drawn(requests.made[answered], int(counted.sum()), share) if open_loop else None,
        classes=by_class(requests, answered, counted, slo, duration) if classed else {},
    )


def _classed(slo: SLO | None) -> bool:
    """Whether objectives are stated class by class."""
    return slo is not None and bool(slo.classes)


def _drawn(made: Ints, counted: int, share: float) -> MarginOfError:
    """made: tokens of each answer. share: of so many requests that are good."""
    count, tokens, good = len(made), float(made.sum()), share * counted
    return MarginOfError(
        DEVIATIONS_95 / math.sqrt(count) if count else 0.0,
        DEVIATIONS_95 * math.sqrt(float((made.astype(np.float64) ** 2).sum())) / tokens if tokens else 0.0,
        DEVIATIONS_95 / math.sqrt(good) if good else 0.0,
        wilson(share, counted),
    )


def warm_up(log: RunLog, requests: Columns) -> int:
    """The moment from which requests are counted: the first at which as many run, on all replicas together, as run by
    the median in the last two thirds of the time in which requests come. 0 where no step tells. requests: the log's.
    """
    arrived, started = requests.arrived, ints(log.steps.started)
    if len(started) == 0:
        return 0
    running, took = _running(requests, started), ints(log.steps.took)
    third = int(arrived[0] + (arrived[-1] - arrived[0]) // 3)
    later = (started >= third) & (started <= arrived[-1])
    if not later.any():
        return 0
    order = np.argsort(running[later], kind="stable")
    ranks = np.cumsum(took[later][order])
    median = running[later][order][np.searchsorted(ranks, ranks[-1] / 2)]
    first = int(started[np.argmax(running >= median)])
    return 0 if first <= arrived[0] else min(first, third)


def _running(requests: Columns, moments: Ints) -> Ints:
    """How many requests run at each moment: from a request's first step to its end."""
    begun, over = np.sort(requests.scheduled[requests.ok]), np.sort(requests.over[requests.ok])
    return np.searchsorted(begun, moments, side="right") - np.searchsorted(over, moments, side="right")


# -- requests ---------------------------------------------------------------------------------------------------------


def _duration(requests: Columns, answered: NDArray[np.bool_], counted: NDArray[np.bool_]) -> float:
    """From the first arrival that counts to the last token."""
    if not answered.any():
        return 0.0
    return float(requests.last[answered].max() - requests.arrived[counted].min()) / 1e9


def _latencies(
    log: RunLog, requests: Columns, answered: NDArray[np.bool_], since: int
) -> dict[str, Distribution | None]:
    """In seconds, each percentile with the wider of two intervals: that of its rank, and that of blocks of a minute."""
    several, moments = answered & (requests.made > 1), requests.arrived
    found = requests.latencies(answered)
    found["queue"] = distribution((requests.scheduled - requests.arrived)[answered], None, moments[answered])
    found["worst gap"] = distribution(requests.worst_gap[several], None, moments[several])
    at = ints(log.gaps.at)
    late = at >= since
    found["ITL"] = distribution(ints(log.gaps.gap)[late], ints(log.gaps.tokens)[late].astype(np.float64), at[late])
    return found


def _steadiness(requests: Columns, span: float) -> Stationarity | None:
    """While requests come: what is under way falls after that, whatever the load was."""
    if not span:
        return None
    start, end = int(requests.arrived[0]), int(requests.arrived[-1])
    moments = np.linspace(start, end, _SAMPLES)
    begun, over = np.sort(requests.arrived), np.sort(requests.over)
    counts = np.searchsorted(begun, moments, side="right") - np.searchsorted(over, moments, side="right")
    ok = requests.ok
    sent = np.where(requests.apart, requests.worst_gap, 0)  # the wait for a link comes after the first token
    came, waited = requests.arrived[ok] / 1e9, (requests.first - requests.arrived + sent)[ok] / 1e9
    waits = zip(came.tolist(), waited.tolist(), strict=True)
    rate = (len(requests.arrived) - 1) / ((end - start) / 1e9)
    under_way = zip((moments / 1e9).tolist(), counts.astype(float).tolist(), strict=True)
    return judge_stationarity(list(under_way), list(waits), rate)


def _front(log: RunLog, rate: float) -> tuple[float | None, float]:
    """`front` and `front_wall`, of requests that come at this rate; of 0 and of users, at the rate of the run."""
    totals, count, end = log.totals, len(log.requests), log.end / 1e9
    assert totals is not None, "the run has not ended"
    if not count or not (totals.front_requests or totals.front_steps):
        return None, math.inf
    stepped = (log.steps.started[-1] + log.steps.took[-1]) / 1e9 if log.steps.started else end
    steps, each = totals.front_steps / 1e9 / stepped, totals.front_requests / 1e9 / count
    if not rate:
        return (totals.front_requests + totals.front_steps) / 1e9 / end, math.inf
    return steps + rate * each, max(0.0, 1 - steps) / each if each else math.inf if steps < 1 else 0.0


# -- steps ------------------------------------------------------------------------------------------------------------


def _shares(log: RunLog, since: int) -> StepShares:
    """Of the steps from `since` to the last arrival, after which the replica only empties; of all from `since` where
    requests come in a tenth of the time or less. most_pages, longest: of all steps.
    """
    steps = log.steps
    started, took = ints(steps.started), ints(steps.took)
    last = log.requests.arrived[-1] if len(log.requests) else 0
    within = started >= since
    if last - since > _COMING * (log.end - since):
        within &= started <= last
    if not within.any():
        within = np.ones(len(started), dtype=bool)
    if not within.any():
        return StepShares(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, dict.fromkeys(HELD[1:], 0.0), 0.0)
    longest, took = float(took.max()) / 1e9, took[within]
    busy = float(took.sum())
    begun, over = int(started[within][0]), int(started[within][-1] + took[-1])
    whole = float(sum(max(0, min(until, over) - max(since, begun)) for since, until in log.lives))
    assert log.totals is not None, "the run has not ended"
    held, pages = ints(steps.held)[within], ints(steps.pages) / np.asarray(log.totals.pages)[ints(steps.replica)]

    def share(of: NDArray[Any]) -> float:
        return float((took * of).sum()) / busy if busy else 0.0

    return StepShares(
        int(within.sum()),
        busy / whole if whole else 0.0,
        share(ints(steps.sequences)[within]),
        share(pages[within]),
        float(pages.max()),
        share(ints(steps.prompts)[within] > 0),
        share(ints(steps.compute)[within]),
        {name: float(took[held == code].sum()) / whole for code, name in enumerate(HELD) if name} if whole else {},
        longest,
    )


def _mean(values: Ints) -> float:
    return float(values.mean()) if len(values) else 0.0
