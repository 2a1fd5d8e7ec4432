"""The findings of a simulation, in which every figure has an interval from runs at the bounds of the price's error."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ridgeline.insight.simulate.adviser import Advice
from ridgeline.insight.simulate.capacity import SimulatedCapacity
from ridgeline.insight.simulate.colocated import Colocated
from ridgeline.insight.simulate.fleet_sizing import FleetSizing
from ridgeline.insight.simulate.kv_transfer import prompt_kv_bytes
from ridgeline.insight.simulate.load_law import LoadLaw, load_law
from ridgeline.insight.simulate.run_log import RunLog
from ridgeline.insight.simulate.simulation import Watch, run
from ridgeline.insight.simulate.simulation_metrics import MarginOfError, SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.simulate.simulation_verdict import WAITING, verdict
from ridgeline.insight.simulate.slo_classes import check_classes
from ridgeline.insight.traffic.percentiles import SHOWN, Interval
from ridgeline.util.document.humanize import three_digits

_SHARED = 0.02  # the share of cached prompt tokens from which the load laws do not apply

LATENCIES = ("TTFT", "TPOT", "ITL", "E2E", "queue", "worst gap")


@dataclass(frozen=True, slots=True)
class SimulationFindings:
    """The result of a simulation at the predicted price and at the bounds of its error, under the same traffic."""

    query: SimulationQuery
    log: RunLog
    """The log of the simulation run whose steps take their predicted times, without their error."""
    metrics: SimulationMetrics
    """The metrics of the simulation run whose steps take their predicted times."""
    at_low_price: SimulationMetrics
    """The metrics with step times at the lower end of their interval; the same as `metrics` if they count as exact."""
    at_high_price: SimulationMetrics
    """The metrics with step times at the upper end of their interval; the same as `metrics` if they count as exact."""
    law: LoadLaw | None = None
    """The figures of the load law; None if it does not apply to these requests."""
    capacity: SimulatedCapacity | None = None
    """The capacity, if it was searched for; the runs are then at that rate, or at the lowest rate tried if it is 0."""
    advised: Advice | None = None
    """The outcome of a search for better settings, if there was one."""
    colocated: tuple[Colocated, ...] = ()
    """The results of the same GPUs without a prefill/decode split, if the fleet has one."""
    division: FleetSizing | None = None
    """The outcome of a search for a better fleet size, if there was one."""
    loop: float | None = None
    """Output tokens per second by the law of a closed loop without think time; None if that law does not apply."""

    @property
    def verdict(self) -> str:
        """The verdict in a word or two, such as `steady` or `overloaded`."""
        return verdict(self.metrics, open_loop=self.query.open_loop)

    @property
    def shares(self) -> bool:
        """Whether prefix-cache hits are too frequent for the load laws, in which every prompt is computed."""
        return self.metrics.found >= _SHARED

    @property
    def law_saturation_rate(self) -> float | None:
        """The saturation rate of all replicas in requests per second by the load law; None if there is no law."""
        return None if self.law is None else self.law.saturation_rate * self.query.fleet.replicas

    @property
    def wall(self) -> float | None:
        """The lower of the saturation rates of the replicas and of the API server; None if there is no load law."""
        return None if self.law_saturation_rate is None else min(self.law_saturation_rate, self.metrics.front_wall)

    @property
    def link_saturation_rate(self) -> float:
        """The prompts per second whose KV cache the prefill/decode link can transfer; infinite without a split."""
        split, (given, _) = self.query.fleet.split, self.metrics.sizes
        return math.inf if split is None else split.bandwidth / prompt_kv_bytes(self.query.machine.case, given)

    @property
    def is_front_bound(self) -> bool:
        """Whether the API server is the bottleneck, not the replicas behind it.

        Requests then mostly do not wait at the replicas, and the KV link has a higher saturation rate.
        """
        metrics = self.metrics
        waiting = sum(metrics.steps.held.values()) >= WAITING
        return (
            metrics.overloaded
            and metrics.front_overloaded
            and not waiting
            and metrics.front_wall < self.link_saturation_rate
        )

    @property
    def has_latencies(self) -> bool:
        """Whether latencies are meaningful: requests completed and the run is not overloaded."""
        return self.metrics.counts["ok"] > 0 and not self.metrics.overloaded

    def latency(self, name: str, percent: int) -> Interval | None:
        """Return a latency percentile with an interval for both sampling and price error.

        The upper end is infinite if the replicas are overloaded at the higher price. The result is None if there are
        too few samples or latencies are meaningless.
        """
        return self._widened([each.latency(name, percent) for each in self._runs])

    def mean(self, name: str) -> Interval | None:
        """Return the mean of a latency with the means at both ends of the price, as `latency` does for a percentile."""
        found = (each.latencies[name] for each in self._runs)
        return self._widened([None if each is None else Interval(each.mean, each.mean, each.mean) for each in found])

    @property
    def _runs(self) -> tuple[SimulationMetrics, SimulationMetrics, SimulationMetrics]:
        return self.metrics, self.at_low_price, self.at_high_price

    def _widened(self, of_runs: Sequence[Interval | None]) -> Interval | None:
        """Return a percentile of the three runs as one interval, as `latency` describes."""
        found, cheap, dear = of_runs
        if found is None or cheap is None or not self.has_latencies:
            return None
        if self.at_high_price.overloaded:
            return _both(Interval(min(cheap.mid, found.mid), found.mid, math.inf), found.low, found.high)
        if dear is None:  # too few samples, as the warm-up was longer: there is no upper end
            return None
        low, high = _ends(found.mid, [cheap.mid, dear.mid])
        return _both(Interval(low, found.mid, high), found.low, found.high)

    def figure(self, of: Callable[[SimulationMetrics], float | None]) -> Interval | None:
        """Return a figure of the run with its range over the three runs, or None if it has no such figure."""
        mid = of(self.metrics)
        if mid is None:
            return None
        low, high = _ends(
            mid, [value for value in (of(self.at_low_price), of(self.at_high_price)) if value is not None]
        )
        return Interval(low, mid, high)

    def rate(
        self, of: Callable[[SimulationMetrics], float | None], margin_of: Callable[[MarginOfError], float]
    ) -> Interval | None:
        """Return a rate or its reciprocal, with an interval that includes the sampling error of open-loop requests.

        An overloaded replica works at its own limit, so its rate has no sampling error.
        """
        found, by = self.figure(of), self.metrics.sampling_error
        if found is None or by is None or self.verdict == "overloaded" or math.isinf(found.mid):
            return found
        off = found.mid * margin_of(by)
        return _both(found, found.mid - off, found.mid + off)

    def share(
        self,
        of: Callable[[SimulationMetrics], float | None],
        interval_of: Callable[[SimulationMetrics], tuple[float, float] | None],
    ) -> Interval:
        """Return a share of the requests, with an interval that includes sampling error for open-loop traffic."""
        found, by = self.figure(of), interval_of(self.metrics)
        assert found is not None, "a run with requests has a good share"
        if by is None or self.metrics.sampling_error is None or self.verdict == "overloaded":
            return found
        return _both(found, *by, most=1.0)

    def class_figures(self, name: str) -> dict[str, Interval | None]:
        """Return the share of good requests, the goodput and the latencies of a request class, named as in `FIGURES`.

        A closed-loop run at another price may have no request of the class, because its users send other requests.
        """
        runs, here = [each.classes.get(name) for each in self._runs], self.metrics.classes[name]

        def latency(of: str, percent: int) -> Interval | None:
            return self._widened([None if own is None else own.latency(of, percent) for own in runs])

        def good_share(metrics: SimulationMetrics) -> float | None:
            return None if (own := metrics.classes.get(name)) is None else own.good_share

        def goodput(metrics: SimulationMetrics) -> float | None:
            own = metrics.classes.get(name)
            return None if own is None or own.goodput is None else own.goodput.rate

        return {
            "good_share": self.share(good_share, lambda _: here.drawn),
            "goodput": self.rate(goodput, lambda _: here.good_drawn),
            **{f"{of.lower()}_p{at}": latency(of, at) for of in ("TTFT", "TPOT", "E2E") for at in SHOWN},
        }

    def dollars(
        self, a_second: Callable[[SimulationMetrics], float | None], margin_of: Callable[[MarginOfError], float]
    ) -> Interval | None:
        """Return the dollars per unit of a rate (tokens, requests), with an interval.

        It is infinite if the rate is zero, and None if no price is known or the run has no such rate.
        """
        if self.query.dollars_per_hour is None:
            return None

        def cost(metrics: SimulationMetrics) -> float | None:
            rate, hourly = a_second(metrics), self.query.dollars_of(metrics.replicas)
            assert hourly is not None
            return None if rate is None else hourly / 3600 / rate if rate else math.inf

        return self.rate(cost, margin_of)


def _ends(mid: float, others: Sequence[float]) -> tuple[float, float]:
    return min([mid, *others]), max([mid, *others])


def _both(priced: Interval, low: float, high: float, most: float = math.inf) -> Interval:
    """Return one interval for price error and sampling error: they are independent, so their squares add up."""
    mid = priced.mid
    below, above = math.hypot(mid - priced.low, mid - low), math.hypot(priced.high - mid, high - mid)
    return Interval(max(0.0, mid - below), mid, min(most, mid + above))


def simulate(
    query: SimulationQuery,
    progress: Callable[[str], Watch] | None = None,
    loop: Callable[[SimulationMetrics], float] | None = None,
) -> SimulationFindings:
    """Simulate a query at the predicted step times and at the bounds of their error, with the same traffic in each run.

    Args:
        query: The simulation query.
        progress: Returns the watcher of a run, given the run's name.
        loop: Returns the output tokens per second of a closed loop without think time by its law, given the metrics of
            the run; None for other traffic.

    Raises:
        ValueError: If the objectives name a class that no request of the traffic has, if the requests have too many
            classes, or if the router is unknown.
    """
    watched = (lambda name: None) if progress is None else progress
    judged = partial(measure, slo=query.slo, open_loop=query.open_loop)

    def at(factor: float, name: str) -> RunLog:
        return run(query.machine, query.offered(), factor, watched(name), query.fleet)

    log, error = at(1.0, "with the predicted step times"), query.error
    check_classes(query.slo, log.requests.classes)
    metrics = judged(log)
    cheap = dear = metrics
    if not error.is_none:
        cheap, dear = (
            judged(at(factor, f"with step times x {three_digits(factor)}")) for factor in (error.low, error.high)
        )
    lawful = query.fleet.equal and metrics.output > 0 and metrics.found < _SHARED
    rate = metrics.offered / query.fleet.replicas
    by_rate = load_law(query.machine, rate, *metrics.sizes) if lawful and query.open_loop else None
    by_users = loop(metrics) if loop is not None and lawful and not query.open_loop else None
    return SimulationFindings(query, log, metrics, cheap, dear, by_rate, loop=by_users)


# -- figures by name --------------------------------------------------------------------------------------------------


def _ratio(of: Callable[[SimulationMetrics], float]) -> Callable[["SimulationFindings"], Interval | None]:
    return lambda findings: findings.figure(of)


def _good(metrics: SimulationMetrics) -> float | None:
    return None if metrics.goodput is None else metrics.goodput.rate


def _latency(name: str, percent: int) -> Callable[["SimulationFindings"], Interval | None]:
    return lambda findings: findings.latency(name, percent)


FIGURES: dict[str, Callable[[SimulationFindings], Interval | None]] = {
    **{
        f"{name.lower().replace(' ', '_')}_p{percent}": _latency(name, percent)
        for name in LATENCIES
        for percent in SHOWN
    },
    "goodput": lambda findings: findings.rate(_good, lambda margin: margin.good),
    "good_share": lambda findings: findings.share(
        lambda m: m.good_share, lambda m: None if m.sampling_error is None else m.sampling_error.good_share
    ),
    "requests_per_second": lambda findings: findings.rate(
        lambda m: m.requests_per_second, lambda margin: margin.requests
    ),
    "tokens_per_second": lambda findings: findings.rate(lambda m: m.tokens_per_second, lambda margin: margin.tokens),
    "batch": _ratio(lambda metrics: metrics.steps.batch),
    "busy": _ratio(lambda metrics: metrics.steps.busy),
    "pages": _ratio(lambda metrics: metrics.steps.pages),
    "most_pages": _ratio(lambda metrics: metrics.steps.most_pages),
    "prefix_hits": _ratio(lambda metrics: metrics.found),
    "preemptions": _ratio(lambda metrics: float(metrics.preemptions)),
    "dollars_per_million_tokens": lambda findings: findings.dollars(
        lambda m: m.tokens_per_second / 1e6, lambda margin: margin.tokens
    ),
    "dollars_per_thousand_requests": lambda findings: findings.dollars(
        lambda m: m.requests_per_second / 1e3, lambda margin: margin.requests
    ),
    "dollars_per_thousand_good": lambda findings: findings.dollars(
        lambda m: None if m.goodput is None else m.goodput.rate / 1e3, lambda margin: margin.good
    ),
}
"""The simulation figures with intervals, keyed by the names that `--require` accepts.

They are latencies in seconds, rates per second, shares up to 1, sequences per step, a count of preemptions, and costs
in dollars.
"""
