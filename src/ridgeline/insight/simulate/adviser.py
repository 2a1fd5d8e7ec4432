"""A search for the token budget, request limit and memory share that make most requests meet their objectives.

A replica costs the same whatever its limits are, so the highest goodput is also the highest goodput per dollar. The
search walks a grid by coordinate descent from the user's setting: first the token budget of a step, then the number of
concurrent requests, then the share of GPU memory that the engine may use, and again from the start if anything
improved. Settings that cannot change the result are not run: a higher request limit that no run reached, a larger token
budget that no step filled, or more pages if no request waited for one, none was preempted and nothing was found in the
prefix cache. All settings see the same requests. Two settings are compared pairwise, request by request, over the
requests that arrived after the warm-up of the user's setting.
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

TOKEN_BUDGETS = tuple(2**power for power in range(8, 15))
"""The token budgets per step that the search tries: 256 to 16,384."""

REQUEST_LIMITS = tuple(2**power for power in range(4, 11))
"""The limits of concurrent requests that the search tries: 16 to 1,024."""

SHARES = (0.92, 0.95)
"""The shares of GPU memory that the search lets an engine use; the rest is for other programs and allocator waste."""

_AHEAD = 2  # settings that the second process has queued at most
_PREEMPTED = 0.01  # preemptions per request; a setting with more is never recommended


@dataclass(frozen=True, slots=True, eq=False)
class TriedSetting:
    """A setting of the engine's limits and memory share, with the simulated result."""

    limits: Limits
    memory: float
    """The share of a GPU's memory that the engine may use."""
    metrics: SimulationMetrics
    good: NDArray[np.bool_]
    """A mask of the requests that met their objectives; it selects none if the run is overloaded."""
    counted: NDArray[np.bool_]
    """A mask of the requests that count in comparisons, because they arrived after the warm-up."""
    most_running: int
    """The highest number of requests of a replica, running and waiting, at any step; higher limits change nothing."""
    most_positions: int
    """The highest number of tokens in any step; larger token budgets change nothing."""

    def covers(self, limits: Limits, memory: float, *, fixed: bool = False) -> bool:
        """Return whether a run with other limits and memory is certain to execute exactly the same steps as this one.

        That is so if neither run comes near a limit that differs, and no additional page would have been used.

        Args:
            limits: The other engine limits.
            memory: The other share of GPU memory.
            fixed: Whether the number of pages is fixed, whatever the limits are.
        """

        def alike(limit: int, other: int, most: int) -> bool:
            return limit == other or min(limit, other) > most

        own = self.limits
        # A smaller token budget needs less memory for activations, so more pages fit.
        more_pages = memory > self.memory or (limits.tokens < self.limits.tokens and not fixed)
        if memory < self.memory or (more_pages and self.is_short_of_pages):
            return False
        return alike(own.tokens, limits.tokens, self.most_positions) and alike(
            own.requests, limits.requests, self.most_running
        )

    @property
    def is_short_of_pages(self) -> bool:
        """Whether more KV pages could change the steps of this run."""
        return bool(self.metrics.steps.held["pages"] or self.metrics.preemptions or self.metrics.found)

    @property
    def overloaded(self) -> bool:
        """Whether the replicas or the API server cannot keep up with the arrivals; then no request counts as good."""
        return self.metrics.overloaded

    @property
    def share(self) -> float:
        """The share of the counted requests that met their objectives."""
        return float(self.good[self.counted].mean()) if self.counted.any() else 0.0

    def comparable_to(self, other: "TriedSetting") -> "TriedSetting":
        """Return a copy of this result whose `share` is computed over the requests that another result counts."""
        return replace(self, counted=other.counted)

    def tail_latency(self, name: str) -> float:
        """Return the p99 of a latency, or the highest percentile that has enough samples; infinite if there is none."""
        return math.inf if self.overloaded else self.metrics.late(name)

    @property
    def has_few_preemptions(self) -> bool:
        """Whether the run has few preemptions; the adviser never recommends a setting with many."""
        return self.metrics.preemptions <= _PREEMPTED * self.metrics.total

    @property
    def rank(self) -> tuple[float, bool, float]:
        """The sort key that orders settings: share of good requests, then few preemptions, then low mean TTFT."""
        ttft = self.metrics.latencies["TTFT"]
        return self.share, self.has_few_preemptions, -(math.inf if ttft is None else ttft.mean)


@dataclass(frozen=True, slots=True)
class Advice:
    """The outcome of a search over engine settings: the user's setting, the best one, and all that were simulated."""

    current: TriedSetting
    """The setting that the user specified, with its result."""
    best: TriedSetting
    """The setting with the highest rank, with its result."""
    options: tuple[TriedSetting, ...]
    """All simulated settings, sorted by their limits."""
    gain: Interval
    """The increase in the share of good requests, with a 95 % interval from paired comparison."""

    @property
    def is_significant(self) -> bool:
        """Whether the best setting is significantly better: the interval of its gain lies above zero."""
        return self.best is not self.current and self.gain.low > 0

    @property
    def count(self) -> int:
        """The number of requests over which settings were compared."""
        return int(self.current.counted.sum())

    @property
    def flags(self) -> str:
        """The command-line options that select the best setting."""
        flags = f"--max-batch-tokens {self.best.limits.tokens} --max-requests {self.best.limits.requests}"
        return (
            flags if self.best.memory == self.current.memory else f"{flags} --memory-utilization {self.best.memory:g}"
        )

    @property
    def pareto(self) -> tuple[TriedSetting, ...]:
        """The settings on the Pareto front of good share, tail TTFT and tail ITL."""
        return tuple(one for one in self.options if not any(_beats(other, one) for other in self.options))

    @property
    def sentence(self) -> str:
        """The recommendation in one sentence, with the statistics of both runs that justify it.

        If the best setting is not significantly better, it says so instead.
        """
        if not self.is_significant:
            return (
                f"No other setting is significantly better: of {len(self.options)} settings simulated with "
                f"{self.count:,} requests, the best has {percent(self.best.share)} good requests, yours "
                f"{percent(self.current.share)}."
            )
        points = " .. ".join(f"{100 * each:.1f}" for each in (self.gain.low, self.gain.high))
        return (
            f"{self.flags}: the share of good requests rises by {100 * self.gain.mid:.1f} points ({points}) over "
            f"{self.count:,} requests, because {reason(self.current, self.best)}."
        )


def _beats(one: TriedSetting, other: TriedSetting) -> bool:
    """Return whether a setting dominates another: no figure is worse and at least one differs."""
    mine, its = _figures(one), _figures(other)
    return one is not other and mine != its and all(a <= b for a, b in zip(mine, its, strict=True))


def _figures(option: TriedSetting) -> tuple[float, ...]:
    """Return the three numbers that compare engine settings, lower is better: -good share, tail TTFT, tail ITL."""
    return -option.share, option.tail_latency("TTFT"), option.tail_latency("ITL")


def reason(own: TriedSetting, best: TriedSetting) -> str:
    """Return the explanation of why the best setting beats the user's, from the step statistics of both runs.

    It names resources that requests wait for less often, tail latencies that are shorter, or fewer preemptions, at most
    two of them; if there are none, the average number of sequences per step.
    """
    parts = []
    names = {"requests": "places", "positions": "tokens of a step's budget", "pages": "KV pages"}
    for name, what in names.items():
        before, after = own.metrics.steps.held[name], best.metrics.steps.held[name]
        if before - after > 0.02:
            parts.append(f"requests wait for {what} {percent(after)} of the time instead of {percent(before)}")
    for name in ("TTFT", "ITL"):
        before, after = own.tail_latency(name), best.tail_latency(name)
        if after < 0.95 * before < math.inf:
            parts.append(f"the tail of {name} is {say_seconds(after)} instead of {say_seconds(before)}")
    if best.metrics.preemptions < own.metrics.preemptions:
        parts.append(f"there are {best.metrics.preemptions:,} preemptions instead of {own.metrics.preemptions:,}")
    if not parts:
        batch = f"{three_digits(best.metrics.steps.batch)} sequences instead of {three_digits(own.metrics.steps.batch)}"
        parts.append(f"a step has {batch} on average")
    return " and ".join(parts[:2])


MachineBuilder = Callable[[Limits, float], Machine]
"""A function that returns the simulated machine with other engine limits and GPU memory share."""

Setting = tuple[Limits, float]
"""A point of the search: engine limits and the share of GPU memory."""


class TrialProcess(Protocol):
    """A second process that simulates settings ahead of the search."""

    @property
    def ready(self) -> bool:
        """Whether the process has started and can run settings."""

    def submit(self, limits: Limits, memory: float) -> "Future[TriedSetting | None]":
        """Queue a setting and return the future of its result; None if the machine cannot have it."""

    def close(self) -> None:
        """End the second process, whatever it is doing."""


def advise(
    query: SimulationQuery,
    rebuilt: MachineBuilder,
    progress: Callable[[str], Watch] | None = None,
    shares: Sequence[float] = SHARES,
    second: TrialProcess | None = None,
    own: TriedSetting | None = None,
) -> Advice:
    """Search for better engine settings under the requests of a query.

    Args:
        query: The simulation query; it needs objectives and an open loop.
        rebuilt: Builds the machine with other limits and another memory share.
        progress: Returns the watcher of a run, given the run's name.
        shares: Memory shares to try if larger than the query's; empty if the number of pages is fixed.
        second: A second process that runs settings in parallel, without affecting the outcome; it is closed at the end.
        own: The result of the user's setting, if it has already been simulated.

    Raises:
        ValueError: If the query has no objectives, or is a closed loop, whose requests depend on the responses.
    """
    if not query.slo or not query.open_loop:
        raise ValueError("--advise compares the share of good requests: give --slo, and --rate or --trace")
    try:
        own = own or simulate_setting(query, query.machine)
        trials = _Trials(query, rebuilt, own, progress, second, fixed=not shares)
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
    """Return a function for each parameter that lists the settings to try, which differ from a given one only in it."""
    return (
        lambda best: [(replace(best.limits, tokens=tokens), best.memory) for tokens in TOKEN_BUDGETS],
        lambda best: [(replace(best.limits, requests=places), best.memory) for places in REQUEST_LIMITS],
        lambda best: [(best.limits, share) for share in shares if share > best.memory],
    )


class _Trials:
    """The settings simulated so far, and those that a second process simulates ahead of time.

    Results are taken in the order of the search line, so the outcome equals that of one sequential process.
    """

    def __init__(
        self,
        query: SimulationQuery,
        rebuilt: MachineBuilder,
        own: TriedSetting,
        progress: Callable[[str], Watch] | None,
        second: TrialProcess | None,
        *,
        fixed: bool,
    ) -> None:
        """Start with the user's setting as the only known result.

        Args:
            query: The simulation query.
            rebuilt: Builds the machine with other limits and another memory share.
            own: The result of the user's setting.
            progress: Returns the watcher of a run, given the run's name.
            second: The second process, if there is one.
            fixed: Whether the number of pages is fixed, as for `TriedSetting.covers`.
        """
        self._query, self._rebuilt, self._progress, self._second, self._fixed = query, rebuilt, progress, second, fixed
        self._own, self.tried = own, [own]
        self._there: dict[Setting, Future[TriedSetting | None]] = {}
        self._here: dict[Setting, TriedSetting | None] = {}

    def of(self, line: Sequence[Setting]) -> list[TriedSetting]:
        """Return the results of the settings on a search line, simulating those that are not known."""
        found = []
        for place, setting in enumerate(line):
            option = self._known(setting)
            if option is None:
                option = self._taken(setting, line[place + 1 :])
                if option is None:  # the token budget leaves no memory for pages
                    option = self._own
                else:
                    option = option.comparable_to(self._own)
                    self.tried.append(option)
            found.append(option)
        return found

    def _known(self, setting: Setting) -> TriedSetting | None:
        """Return an earlier result whose run would have executed the same steps as this setting, or None."""
        return next((each for each in self.tried if each.covers(*setting, fixed=self._fixed)), None)

    def _taken(self, setting: Setting, later: Sequence[Setting]) -> TriedSetting | None:
        """Return the result of a setting from either process, while the second process works on later settings."""
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
        """Forget the second process after it died (killed or out of memory), so this process runs its settings."""
        self._second = None
        self._there.clear()

    def _go_on(self, later: Iterable[Setting]) -> None:
        """Submit later settings to the second process, until its queue is full."""
        waiting = sum(not each.done() for each in self._there.values())
        if self._second is not None and self._second.ready:
            try:
                for setting in islice(self._new(later), _AHEAD - waiting):
                    self._there[setting] = self._second.submit(*setting)
            except BrokenExecutor:
                self._lose_second()

    def _new(self, later: Iterable[Setting]) -> Iterator[Setting]:
        """Return the settings that have no result yet and were not submitted to the second process."""
        return (
            each for each in later if each not in self._there and each not in self._here and self._known(each) is None
        )

    def _run(self, setting: Setting) -> TriedSetting | None:
        limits, memory = setting
        watch = None
        if self._progress is not None:
            watch = self._progress(
                f"{limits.tokens:,} tokens per step, {limits.requests:,} requests, {memory:.0%} of memory"
            )
        return trial(self._query, self._rebuilt, limits, memory, watch)


def trial(
    query: SimulationQuery, rebuilt: MachineBuilder, limits: Limits, memory: float, watch: Watch | None = None
) -> TriedSetting | None:
    """Simulate a setting under the requests of a query; return None if the machine cannot have that setting."""
    try:
        machine = rebuilt(limits, memory)
    except ValueError:
        return None
    return simulate_setting(query, machine, watch)


def _best(found: TriedSetting, others: Iterable[TriedSetting]) -> TriedSetting:
    """Return the highest-ranked among a setting and others with few preemptions; the first of equals wins."""
    return max([found, *(each for each in others if each.has_few_preemptions)], key=lambda each: each.rank)


def simulate_setting(query: SimulationQuery, machine: Machine, watch: Watch | None = None) -> TriedSetting:
    """Simulate the requests of a query on a machine and return the result with each request's verdict."""
    return evaluate_log(query, machine, run(machine, query.offered(), 1.0, watch, query.fleet))


def evaluate_log(query: SimulationQuery, machine: Machine, log: RunLog) -> TriedSetting:
    """Return the result of a run on a machine from its log, with each request's verdict."""
    assert query.slo is not None
    requests, steps = Columns(log), log.steps
    good = np.zeros(len(requests.ok), dtype=bool)
    good[requests.ok] = [met is True for met in requests.verdicts(requests.ok, query.slo)]
    running = np.asarray(steps.running) + np.asarray(steps.waiting)
    most = int(running.max(initial=0)), int(np.asarray(steps.positions).max(initial=0))
    memory = machine.case.setup.utilization
    counted = requests.arrived >= warm_up(log, requests)
    metrics = measure(log, query.slo, open_loop=query.open_loop)
    found = TriedSetting(machine.limits, memory, metrics, good, counted, *most)
    # In an overloaded run, how many requests are good depends on the length of the run.
    return replace(found, good=np.zeros_like(good)) if found.overloaded else found


def _gain(own: NDArray[np.bool_], best: NDArray[np.bool_]) -> Interval:
    """Return the increase in the share of good requests, with a 95 % interval for paired samples.

    Only requests that are good under exactly one of the two settings contribute.
    """
    count = max(1, len(own))
    won, lost = int((best & ~own).sum()), int((own & ~best).sum())
    mid = (won - lost) / count
    off = DEVIATIONS_95 * math.sqrt(max(0.0, won + lost - (won - lost) ** 2 / count)) / count
    return Interval(mid - off, mid, mid + off)
