"""A sweep over request rates for the knee: the highest rate at which a server still serves nearly all requests well."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ridgeline.insight.bench.bench_run import BenchRun
from ridgeline.insight.traffic.summary import middle

ATTAIN = 0.99  # the share of requests that must be good
MIN_REQUESTS = 20  # the minimum number of requests per rate: fewer have no median
_NEAR = 0.1  # the relative precision of the knee at which bisection stops
_MAX_DOUBLINGS = 16
_LIMIT = "the load generator is the limit"
_DECIDES = "the load generator was late for the requests that decide the verdict"
_SHORT = "too short to tell: give more --requests or --duration"
_UNDECIDED = (_LIMIT, _DECIDES, _SHORT)
_TIMES = 2.0  # arrivals must span this multiple of a request's duration; a shorter burst only fills the queue


@dataclass(frozen=True, slots=True)
class SweepLevel:
    """The benchmark run at one request rate, and whether that rate is good."""

    rate: float
    run: BenchRun
    why: str
    """The reason why the rate is not good; empty if it is."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The result of a sweep over request rates."""

    levels: tuple[SweepLevel, ...]
    """The request rates that were tried, lowest first."""
    knee: SweepLevel | None
    """The run at the highest good request rate; None if no rate is good.

    The rate is a limit of the server only if `reached` is True; otherwise the server may be able to serve more.
    """
    ended: str
    """The reason why no higher request rate was tried."""

    @property
    def above(self) -> SweepLevel | None:
        """The lowest tried rate above the knee; None if there is none or no knee."""
        return next((level for level in self.levels if self.knee is not None and level.rate > self.knee.rate), None)

    @property
    def reached(self) -> bool:
        """Whether the server was the limit above the knee, rather than the load generator or the run's length."""
        return self.above is not None and self.above.why not in _UNDECIDED

    @property
    def undecided(self) -> bool:
        """Whether the sweep says nothing of the server, because not even the lowest rate could be evaluated."""
        return self.knee is None and self.levels[0].why in _UNDECIDED

    @property
    def shown(self) -> BenchRun:
        """The benchmark run to report in detail: at the knee (highest good rate), or else at the lowest rate."""
        return (self.knee or self.levels[0]).run


async def sweep(start: float, measure: Callable[[float], Awaitable[BenchRun]]) -> Sweep:
    """Double the request rate until the server no longer serves it well, then bisect to within 10 %.

    A level that says nothing of the server ends the sweep: the load generator was the limit, or it was too short.
    """
    levels: list[SweepLevel] = []

    async def tried(rate: float) -> SweepLevel:
        run = await measure(rate)
        levels.append(SweepLevel(rate, run, fault(run)))
        return levels[-1]

    good, bad = 0.0, 0.0
    ended = "the rate reached the maximum number of doublings"
    for _ in range(_MAX_DOUBLINGS):
        level = await tried(2 * good or start)
        if level.why:
            bad, ended = level.rate, level.why
            break
        good = level.rate
    while bad and good and bad - good > _NEAR * bad and levels[-1].why not in _UNDECIDED:
        level = await tried((good + bad) / 2)
        good, bad = (good, level.rate) if level.why else (level.rate, bad)
    levels.sort(key=lambda level: level.rate)
    return Sweep(tuple(levels), next((level for level in levels if level.rate == good), None), ended)


def fault(run: BenchRun) -> str:
    """Return why a benchmark run does not count as well served by the server, or "" if it does."""
    if run.client_limited:
        return _LIMIT
    if run.overloaded or run.stopped:
        return run.stopped or "the server falls behind"
    share = run.summary.good_share
    if share >= ATTAIN:
        return _SHORT if _is_burst(run) else ""
    good = run.summary.goodput
    if good is not None and good.good + good.uncertain >= ATTAIN * run.summary.total:
        return _DECIDES
    lost = run.summary.total - run.summary.answered
    what = "good" if run.summary.goodput is not None else "answered"
    return f"{share:.1%} {what}" + (f", {lost} not answered" if lost and what == "good" else "")


def _is_burst(run: BenchRun) -> bool:
    """Return whether arrivals were so brief that few requests had ended before the last one arrived."""
    took, intended = run.summary.latencies["E2E"], [record.intended for record in run.records]
    return took is not None and max(intended) - min(intended) < _TIMES * middle(took) * 1e9
