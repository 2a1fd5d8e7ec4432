"""The adviser: which positions a step, requests at a time and share of memory make most of the requests good.

A replica costs the same whatever its limits are, so that most goodput a dollar is most goodput. Settings are those of a
grid, tried one line at a time from the one that was asked about: positions a step first, then requests at a time, then
the share of a card's memory that pages may take, then positions again where that changed something. What cannot differ
is not run: more places than ever were taken, more positions than a step ever ran, more pages where nobody waited for
one, none was taken away and nothing was found in one. All settings have the same requests; two are told apart by
pairs, request by request: those that came after the warm-up of the setting that was asked about.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass, replace
from itertools import islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.columns import Columns
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulation import Watch, run
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure, warm_up
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.traffic.percentiles import DEVIATIONS_95, Interval
from ridgeline.util.document.humanize import percent, say_seconds, three_digits

BUDGETS = tuple(2**power for power in range(8, 15))
"""Positions a step: 256 to 16,384."""

PLACES = tuple(2**power for power in range(4, 11))
"""Requests at a time: 16 to 1,024."""

SHARES = (0.92, 0.95)
"""Of a card's memory, that engines may use: what is left is for other programs and for what an allocator wastes."""

_AHEAD = 2  # settings that it is given at a time
_PREEMPTED = 0.01  # preemptions a request: a setting with more is not advised, whatever it wins


@dataclass(frozen=True, slots=True, eq=False)
class TriedSetting:
    """A setting and what it came to. memory: the share of a card's that may be used. good: of each request, whether it
    kept to the objectives. counted: whether it is one by which settings are compared, as it came after the warm-up.
    most_running, most_positions: the most of both at any time; equal for settings that differ only above it.
    """

    limits: Limits
    memory: float
    metrics: SimulationMetrics
    good: NDArray[np.bool_]
    counted: NDArray[np.bool_]
    most_running: int
    most_positions: int

    def covers(self, limits: Limits, memory: float, *, fixed: bool = False) -> bool:
        """Whether other limits, and no less memory, would make the same steps: they differ only where nothing came near
        either, and leave no pages that somebody would have taken. fixed: pages are, whatever the limits.
        """

        def alike(limit: int, other: int, most: int) -> bool:
            return limit == other or min(limit, other) > most

        own = self.limits
        # Smaller steps need less of the memory.
        more_pages = memory > self.memory or (limits.tokens < self.limits.tokens and not fixed)
        if memory < self.memory or (more_pages and self.short):
            return False
        return alike(own.tokens, limits.tokens, self.most_positions) and alike(
            own.requests, limits.requests, self.most_running
        )

    @property
    def short(self) -> bool:
        """Whether more pages could make other steps."""
        return bool(self.metrics.steps.held["pages"] or self.metrics.preemptions or self.metrics.found)

    @property
    def overloaded(self) -> bool:
        """Whether it falls behind: then nothing of it is good."""
        return self.metrics.overloaded

    @property
    def share(self) -> float:
        """Of the counted requests that are good."""
        return float(self.good[self.counted].mean()) if self.counted.any() else 0.0

    def beside(self, other: "TriedSetting") -> "TriedSetting":
        """This one, compared by the requests that another one counts."""
        return replace(self, counted=other.counted)

    def late(self, name: str) -> float:
        """The p99 of a latency, or the highest percentile that there are enough samples for; infinite without any."""
        return math.inf if self.overloaded else self.metrics.late(name)

    @property
    def calm(self) -> bool:
        """Whether it hardly preempts: what does is nothing to advise."""
        return self.metrics.preemptions <= _PREEMPTED * self.metrics.total

    @property
    def rank(self) -> tuple[float, bool, float]:
        """By what one is better than another: its goodput, that it does not preempt, that first tokens come early."""
        ttft = self.metrics.latencies["TTFT"]
        return self.share, self.calm, -(math.inf if ttft is None else ttft.mean)


@dataclass(frozen=True, slots=True)
class Advice:
    """own: the setting that was asked about. best: the highest in rank. options: all that were run, in the order of
    their limits. gain: of the share of good requests, with the interval that pairs give.
    """

    own: TriedSetting
    best: TriedSetting
    options: tuple[TriedSetting, ...]
    gain: Interval

    @property
    def worth(self) -> bool:
        """Whether the best is surely better: its gain's interval is above nothing."""
        return self.best is not self.own and self.gain.low > 0

    @property
    def count(self) -> int:
        """Requests by which settings were compared."""
        return int(self.own.counted.sum())

    @property
    def flags(self) -> str:
        """The options that say the best."""
        said = f"--max-batch-tokens {self.best.limits.tokens} --max-requests {self.best.limits.requests}"
        return said if self.best.memory == self.own.memory else f"{said} --memory-utilization {self.best.memory:g}"

    @property
    def pareto(self) -> tuple[TriedSetting, ...]:
        """The options that no other one beats in goodput, TTFT and ITL at once."""
        return tuple(one for one in self.options if not any(_beats(other, one) for other in self.options))

    @property
    def sentence(self) -> str:
        """What to do, and why, by counts of the two runs."""
        if not self.worth:
            return (
                f"No difference worth a flag: under {self.count:,} requests, of {len(self.options)} settings "
                f"the best has {percent(self.best.share)} of the requests good, yours "
                f"{percent(self.own.share)}."
            )
        points = " .. ".join(f"{100 * each:.1f}" for each in (self.gain.low, self.gain.high))
        return (
            f"{self.flags}: the share of good requests rises by {100 * self.gain.mid:.1f} points ({points}), of "
            f"{self.count:,} requests, because {reason(self.own, self.best)}."
        )


def _beats(one: TriedSetting, other: TriedSetting) -> bool:
    mine, its = _figures(one), _figures(other)
    return one is not other and mine != its and all(a <= b for a, b in zip(mine, its, strict=True))


def _figures(option: TriedSetting) -> tuple[float, ...]:
    """Less is better."""
    return -option.share, option.late("TTFT"), option.late("ITL")


def reason(own: TriedSetting, best: TriedSetting) -> str:
    """What the steps of both say: the place where requests wait less, or the gaps that are shorter."""
    said = []
    names = {"requests": "places", "positions": "positions of a step", "pages": "KV pages"}
    for name, what in names.items():
        before, after = own.metrics.steps.held[name], best.metrics.steps.held[name]
        if before - after > 0.02:
            said.append(f"requests wait for {what} {percent(after)} of the time instead of {percent(before)}")
    for name in ("TTFT", "ITL"):
        before, after = own.late(name), best.late(name)
        if after < 0.95 * before < math.inf:
            said.append(f"the slowest {name}s are {say_seconds(after)} instead of {say_seconds(before)}")
    if best.metrics.preemptions < own.metrics.preemptions:
        said.append(f"there are {best.metrics.preemptions:,} preemptions instead of {own.metrics.preemptions:,}")
    if not said:
        batch = f"{three_digits(best.metrics.steps.batch)} sequences instead of {three_digits(own.metrics.steps.batch)}"
        said.append(f"a step has {batch}")
    return " and ".join(said[:2])


Rebuilt = Callable[[Limits, float], Machine]
"""The machine with other limits, which leave other memory for pages, and another share of its cards' memory."""

Setting = tuple[Limits, float]
"""Limits, and the share of memory."""


class TrialProcess(Protocol):
    """Another process that runs settings, as Beside."""

    @property
    def ready(self) -> bool: ...
    def submit(self, limits: Limits, memory: float) -> "Future[TriedSetting | None]": ...
    def close(self) -> None: ...


def advise(
    asked: SimulationQuery,
    rebuilt: Rebuilt,
    progress: Callable[[str], Watch] | None = None,
    shares: Sequence[float] = SHARES,
    second: TrialProcess | None = None,
    own: TriedSetting | None = None,
) -> Advice:
    """Look for a better setting of a machine under the requests that were asked about. shares: of memory, to be tried
    where they are more than its own; none where its pages are stated. second: another process to run settings in, which
    is ended; what is advised is the same. own: what the setting that was asked about came to, where it has run. Raises
    ValueError without objectives, and for users, whose requests depend on the answers.
    """
    if not asked.slo or not asked.open_loop:
        raise ValueError("--advise compares how many of the same requests are good: give --slo, and --rate or --trace")
    try:
        own = own or option_of(asked, asked.machine)
        trials = _Trials(asked, rebuilt, own, progress, second, fixed=not shares)
        best, before = own, None
        while best is not before:
            before = best
            for line in _lines(shares):
                best = _best(best, trials.of(line(best)))
    finally:
        if second is not None:
            second.close()
    options = sorted(trials.tried, key=lambda each: (each.limits.tokens, each.limits.requests, each.memory))
    return Advice(own, best, tuple(options), _gain(own.good[own.counted], best.good[own.counted]))


def _lines(shares: Sequence[float]) -> tuple[Callable[[TriedSetting], list[Setting]], ...]:
    """The settings that differ from one in a single thing, thing by thing."""
    return (
        lambda best: [(replace(best.limits, tokens=tokens), best.memory) for tokens in BUDGETS],
        lambda best: [(replace(best.limits, requests=places), best.memory) for places in PLACES],
        lambda best: [(best.limits, share) for share in shares if share > best.memory],
    )


class _Trials:
    """Settings that were run, and those that a second process runs ahead of time: what came of it is taken in the order
    of the line, as if one process had run one after the other.
    """

    def __init__(
        self,
        asked: SimulationQuery,
        rebuilt: Rebuilt,
        own: TriedSetting,
        progress: Callable[[str], Watch] | None,
        second: TrialProcess | None,
        *,
        fixed: bool,
    ) -> None:
        """own: what the setting that was asked about came to. tried: those that were run, in order. fixed: as of
        Option.covers.
        """
        self._asked, self._rebuilt, self._progress, self._second, self._fixed = asked, rebuilt, progress, second, fixed
        self._own, self.tried = own, [own]
        self._there: dict[Setting, Future[TriedSetting | None]] = {}
        self._here: dict[Setting, TriedSetting | None] = {}

    def of(self, line: Sequence[Setting]) -> list[TriedSetting]:
        """What the settings of a line come to."""
        found = []
        for place, setting in enumerate(line):
            option = self._known(setting)
            if option is None:
                option = self._taken(setting, line[place + 1 :])
                if option is None:  # a step of so many positions leaves no page
                    option = self._own
                else:
                    option = option.beside(self._own)
                    self.tried.append(option)
            found.append(option)
        return found

    def _known(self, setting: Setting) -> TriedSetting | None:
        """One that was run and makes the same steps."""
        return next((each for each in self.tried if each.covers(*setting, fixed=self._fixed)), None)

    def _taken(self, setting: Setting, later: Sequence[Setting]) -> TriedSetting | None:
        """Run a setting, or take what has been run of it; meanwhile the second process goes on with later ones."""
        if setting in self._here:
            return self._here.pop(setting)
        self._go_on(later)
        there = self._there.pop(setting, None)
        if there is None:
            return self._run(setting)
        ahead = next(self._new(later), None)
        if not there.done() and ahead is not None:
            self._here[ahead] = self._run(ahead)
        try:
            return there.result()
        except BrokenExecutor:
            self._lose_second()
            return self._run(setting)

    def _lose_second(self) -> None:
        """Somebody has ended the second process, or memory has: what it was given is run here."""
        self._second = None
        self._there.clear()

    def _go_on(self, later: Iterable[Setting]) -> None:
        """Give the second process what to do until it is asked."""
        waiting = sum(not each.done() for each in self._there.values())
        if self._second is not None and self._second.ready:
            try:
                for setting in islice(self._new(later), _AHEAD - waiting):
                    self._there[setting] = self._second.submit(*setting)
            except BrokenExecutor:
                self._lose_second()

    def _new(self, later: Iterable[Setting]) -> Iterator[Setting]:
        """Those that nobody runs or has run."""
        return (
            each for each in later if each not in self._there and each not in self._here and self._known(each) is None
        )

    def _run(self, setting: Setting) -> TriedSetting | None:
        limits, memory = setting
        watch = None
        if self._progress is not None:
            watch = self._progress(f"{limits.tokens:,} positions, {limits.requests:,} requests, {memory:.0%} of memory")
        return trial(self._asked, self._rebuilt, limits, memory, watch)


def trial(
    asked: SimulationQuery, rebuilt: Rebuilt, limits: Limits, memory: float, watch: Watch | None = None
) -> TriedSetting | None:
    """What a setting makes of the requests that were asked about; None for one that cannot be."""
    try:
        machine = rebuilt(limits, memory)
    except ValueError:
        return None
    return option_of(asked, machine, watch)


def _best(found: TriedSetting, others: Iterable[TriedSetting]) -> TriedSetting:
    """The highest in rank of one and of the calm ones among others; of equals the first."""
    return max([found, *(each for each in others if each.calm)], key=lambda each: each.rank)


def option_of(asked: SimulationQuery, machine: Machine, watch: Watch | None = None) -> TriedSetting:
    """What a machine makes of the requests that were asked about, which have objectives."""
    return option_in(asked, machine, run(machine, asked.offered(), 1.0, watch, asked.fleet))


def option_in(asked: SimulationQuery, machine: Machine, log: RunLog) -> TriedSetting:
    """The same, by the log of a machine that has run."""
    assert asked.slo is not None
    requests, steps = Columns(log), log.steps
    good = np.zeros(len(requests.ok), dtype=bool)
    good[requests.ok] = [met is True for met in requests.verdicts(requests.ok, asked.slo)]
    running = np.asarray(steps.running) + np.asarray(steps.waiting)
    most = int(running.max(initial=0)), int(np.asarray(steps.positions).max(initial=0))
    memory = machine.case.setup.utilization
    counted = requests.arrived >= warm_up(log, requests)
    metrics = measure(log, asked.slo, open_loop=asked.open_loop)
    found = TriedSetting(machine.limits, memory, metrics, good, counted, *most)
    return replace(found, good=np.zeros_like(good)) if found.overloaded else found  # else it is how long one looked


def _gain(own: NDArray[np.bool_], best: NDArray[np.bool_]) -> Interval:
    """How much larger the share of good requests is, by pairs: those that are good under one of the two alone tell."""
    count = max(1, len(own))
    won, lost = int((best & ~own).sum()), int((own & ~best).sum())
    mid = (won - lost) / count
    off = DEVIATIONS_95 * math.sqrt(max(0.0, won + lost - (won - lost) ** 2 / count)) / count
    return Interval(mid - off, mid, mid + off)
