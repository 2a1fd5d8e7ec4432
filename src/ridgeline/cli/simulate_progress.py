"""The progress of `ridgeline simulate`: a time estimate, then the state of its runs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, product

from ridgeline.cli.console import changing_line, err, rough_time, say
from ridgeline.cli.simulate_options import ObjectiveFlags
from ridgeline.cli.simulate_traffic import TrafficFlags
from ridgeline.insight.simulate.adviser import REQUEST_LIMITS, SHARES, TOKEN_BUDGETS
from ridgeline.insight.simulate.fleet_sizing import DEVICES_PER_REPLICA, REPLICAS
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulation import Watch, run
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.traffic.offered import Offered
from ridgeline.insight.traffic.workload_trace import read_trace

_FEW = 6000  # total requests up to which no estimate is made
_SAMPLE = 0.4  # seconds of a sample run for the estimate
_WORTH_SAYING = 5.0  # minimum estimate in seconds to print
_PATIENCE = 30.0  # seconds until the first line if no estimate was printed
_LEVELS = 9  # typical number of rates in a capacity search
_MOST_COUNTED = 10**6  # maximum requests of a trace to count before the runs


class SimulationProgress:
    """The progress display of a command's runs.

    Called with the name of a run, it returns the function that watches that run.
    """

    def __init__(self, show: Callable[[str], None]) -> None:
        """Begin without runs.

        Args:
            show: Prints a line of progress, or drops it if the last one is too recent.
        """
        self._show = show
        self._planned, self._begun = 1, 0
        self._share: Callable[[RunLog], float] = lambda log: 0.0
        self._from = 0.0  # time of the first line of progress

    def expect(self, query: SimulationQuery, traffic: TrafficFlags, runs: int, about: str = "") -> None:
        """Estimate the time of all runs from the beginning of one, and print the estimate if they will take long.

        Args:
            query: The simulation.
            traffic: The traffic options.
            runs: The number of runs.
            about: A word in front of their number, such as `up to`.
        """
        count = request_count(traffic, query.offered())
        until = traffic.until
        self._planned = runs
        self._share = lambda log: _share(log, count, until)
        of = f" of {count:,} requests" if count is not None else f", {(until or 0) / 1e9:,.0f} s of requests"
        seconds = 0.0 if count is not None and count * runs <= _FEW else runs * _seconds(query, self._share)
        self._from = time.monotonic() + (0.0 if seconds >= _WORTH_SAYING or err.is_terminal else _PATIENCE)
        if seconds >= _WORTH_SAYING:
            number = f"{about} {runs:,}".strip()
            say(f"simulating {number} run{'s' * (runs != 1)}{of}: about {rough_time(seconds)}")

    def __call__(self, name: str) -> Watch:
        """Return the function that watches the next run, called `name`, and shows its progress."""
        self._begun += 1
        place = self._begun
        began = time.monotonic()

        def watch(log: RunLog) -> None:
            if time.monotonic() < self._from:
                return
            share = self._share(log)
            at = (log.steps.started[-1] if log.steps.started else 0) / 1e9
            words = f"{name}: run {place:,} of {max(place, self._planned):,}, {share:.0%}, {at:,.1f} s simulated"
            self._show(f"{words}, {len(log.requests):,} requests{self._left(began, share, place)}")

        return watch

    def _left(self, began: float, share: float, place: int) -> str:
        """Return the remaining time of this and all further runs, once enough of this run is done to tell."""
        took = time.monotonic() - began
        if share < 0.02 or took < 1:
            return ""
        rest = max(0, self._planned - place)
        return f", about {rough_time(took / share * (1 - share + rest))} left"


def request_count(traffic: TrafficFlags, offered: Offered) -> int | None:
    """Return the maximum number of requests of a run, or None if only time limits them.

    At most a million requests of a trace are counted.

    Args:
        traffic: The traffic options.
        offered: The requests, which may be consumed.
    """
    if traffic.turns > 1:
        return None if traffic.requests is None else traffic.requests * traffic.turns
    if not traffic.open_loop and traffic.trace is not None:
        rows = sum(1 for _ in islice(read_trace(traffic.trace), _MOST_COUNTED))
        return rows if traffic.requests is None else min(rows, traffic.requests)
    if not traffic.open_loop:
        return traffic.requests
    if traffic.trace is None and traffic.rate is not None:
        by_time = None if traffic.until is None else round(traffic.rate * traffic.until / 1e9)
        return min((each for each in (by_time, traffic.requests) if each is not None), default=None)
    count = 0
    while offered.upcoming is not None and count < _MOST_COUNTED:
        offered.take()
        count += 1
    return count


def run_count(query: SimulationQuery, judged: ObjectiveFlags) -> tuple[int, str]:
    """Return the number of runs of a command, and `up to` or `some` if it depends on their results, otherwise ""."""
    prices = 1 if query.error.is_none else 3
    if judged.capacity:
        return prices * (_LEVELS + 1), "some"
    others = 2 if query.fleet.split is not None else 0
    about = ""
    if judged.advise:
        others += len(TOKEN_BUDGETS) + len(REQUEST_LIMITS) + len(SHARES)
        about = "up to"
    if judged.divide is not None:
        others += sum(
            devices * replicas <= judged.divide for devices, replicas in product(DEVICES_PER_REPLICA, REPLICAS)
        )
        about = "up to"
    return prices + others, about


def _share(log: RunLog, count: int | None, until: int | None) -> float:
    """Return the completed share of a run, by the number of arrived requests and by simulated time."""
    at = log.steps.started[-1] if log.steps.started else 0
    shares = [len(log.requests) / count] if count else []
    shares += [at / until] if until else []
    return min(1.0, max(shares, default=0.0))


class _Enough(Exception):
    """An exception that ends a sample run once it is long enough."""


def _seconds(query: SimulationQuery, share: Callable[[RunLog], float]) -> float:
    """Return an estimate of the seconds of a run, based on its first part."""
    began, seen = time.monotonic(), 1.0

    def watch(log: RunLog) -> None:
        nonlocal seen
        seen = share(log)
        if seen > 0 and time.monotonic() - began > _SAMPLE:
            raise _Enough

    try:
        run(query.machine, query.offered(), 1.0, watch, query.fleet)
    except _Enough:
        return (time.monotonic() - began) / seen
    return time.monotonic() - began


@contextmanager
def simulation_progress() -> Iterator[SimulationProgress]:
    """Yield the progress of a command's runs.

    It is a changing line on stderr, or a line every ten seconds at most if stderr is no terminal.
    """
    with changing_line() as show:
        yield SimulationProgress(show)
