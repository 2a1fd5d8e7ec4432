"""Sweep: the knee, the highest rate at which a server still serves nearly every request well."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from ridgeline.insight.bench.bench_run import BenchRun
from ridgeline.insight.traffic.summary import middle

ATTAIN = 0.99  # of all requests that must be good
MIN_REQUESTS = 20  # requests that a rate is judged from: fewer have no median
_NEAR = 0.1  # of the rate: closer than that the knee is not looked for
_MAX_DOUBLINGS = 16
_LIMIT = "the load generator is the limit"
_DECIDES = "the load generator was late for the requests that decide"
_SHORT = "too short to tell: give more --requests or --duration"
_UNDECIDED = (_LIMIT, _DECIDES, _SHORT)
_TIMES = 2.0  # a request's time for which requests must have come: fewer are one burst, which a server can put off


@dataclass(frozen=True, slots=True)
class SweepLevel:
    """A rate that was tried. why: what was wrong with it, empty where nothing was."""

    rate: float
    run: BenchRun
    why: str


@dataclass(frozen=True, slots=True)
class Sweep:
    """The rates that were tried, lowest first. knee: the highest that was good, None where none was; the server's own
    where it was `reached`, else a bound. ended: why no higher rate was tried.
    """

    levels: tuple[SweepLevel, ...]
    knee: SweepLevel | None
    ended: str

    @property
    def above(self) -> SweepLevel | None:
        """The lowest rate above the knee that was tried; None where none was, or there is no knee."""
        return next((level for level in self.levels if self.knee is not None and level.rate > self.knee.rate), None)

    @property
    def reached(self) -> bool:
        """Whether the server was the limit above the knee, and not the load generator or how long it was asked."""
        return self.above is not None and self.above.why not in _UNDECIDED

    @property
    def undecided(self) -> bool:
        """Whether nothing is known of the server: not even the lowest rate could be judged."""
        return self.knee is None and self.levels[0].why in _UNDECIDED

    @property
    def shown(self) -> BenchRun:
        """The run to look at closely: the knee's, else the lowest."""
        return (self.knee or self.levels[0]).run


async def sweep(start: float, measure: Callable[[float], Awaitable[BenchRun]]) -> Sweep:
    """Double the rate until a level is not good, then halve the interval until it is within 10 %.

    A level that says nothing of the server ends the sweep: the load generator was its limit, or it was too short.
    """
    levels: list[SweepLevel] = []

    async def tried(rate: float) -> SweepLevel:
        run = await measure(rate)
        levels.append(SweepLevel(rate, run, fault(run)))
        return levels[-1]

    good, bad = 0.0, 0.0
    ended = "the rate was doubled as often as it may be"
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
    """What is wrong with a run, empty where nothing is."""
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
    """Whether requests came for so short a time that few were over before the last of them came."""
    took, intended = run.summary.latencies["E2E"], [record.intended for record in run.records]
    return took is not None and max(intended) - min(intended) < _TIMES * middle(took) * 1e9
