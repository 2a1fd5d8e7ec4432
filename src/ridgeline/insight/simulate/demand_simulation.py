"""The replicas that serve a planned demand within the latency targets if queues are simulated.

The formulas of a plan assume evenly spaced arrivals. Their number of replicas is the first that is simulated. If the
simulated means miss a target, more replicas are tried, each with a smaller share of the demand.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline.insight.simulate.tail_latency import TailEstimate, tail_of, with_range
from ridgeline.price.plan.demand import Demand, ReplicaCount, SimulatedQueue, at_slow_end, fleet_of
from ridgeline.price.plan.energy import kwh_per_million
from ridgeline.price.plan.load_estimate import LoadEstimator

MAX_TOKENS = 3_000_000
"""The maximum number of output tokens of a whole run, which takes about half a minute."""

_TRIES = 8  # numbers of replicas to simulate at most
_FIRST_STEP = 8  # the first step adds one eighth of the replicas
_MOST = 64  # the search stops at this multiple of the replicas for even arrivals


@dataclass(frozen=True, slots=True)
class SimulatedDemand:
    """The simulated result of a demand: the replicas, and the latencies of the fullest of them."""

    queue: SimulatedQueue
    tail: TailEstimate


def simulate_demand(serving: LoadEstimator, demand: Demand, even: ReplicaCount) -> SimulatedDemand:
    """Search for the fewest replicas whose simulated means meet the targets.

    At most eight numbers of replicas are tried. If none of them meets the targets, the result is that of the first. For
    a pessimistic demand the search is at the slow end of times, and the simulated result is for expected times.

    Args:
        serving: The replica.
        demand: The load to serve.
        even: The replicas for evenly spaced arrivals, the fewest to try.

    Raises:
        ValueError: If the simulator does not support the model, or if the run is too long.
    """
    _check_length(serving, demand)
    if demand.pessimistic:
        slow_serving, slow_demand = at_slow_end(serving, demand)
        found, slow_tail = _search(slow_serving, slow_demand, fleet_of(slow_serving, slow_demand, even.replicas))
        tail = _settled(serving, demand, fleet_of(serving, demand, found))
        missed = slow_tail.missed(slow_serving.workload)
    else:
        found, tail = _search(serving, demand, even)
        missed = tail.missed(serving.workload)
    fleet = fleet_of(serving, demand, found)
    tail = with_range(tail, serving, demand, fleet)
    queue = SimulatedQueue(
        str(tail),
        missed,
        _with_throughput(serving, demand, fleet, tail),
        even,
        tail.mean("TTFT") or 0.0,
        tail.around_mean("TTFT") or (0.0, 0.0),
        tail.mean("TPOT"),
        tail.around_mean("TPOT"),
        tail.running,
        _tokens_interval(demand, tail),
    )
    return SimulatedDemand(queue, tail)


def _tokens_interval(demand: Demand, tail: TailEstimate) -> tuple[float, float] | None:
    """Return the interval of the tokens per second of all replicas over a whole run at a rate; None for others."""
    slow, fast = tail.range.slow, tail.range.fast
    if demand.requests is None or tail.requests is None or slow is None or fast is None:
        return None
    times = demand.requests / tail.requests
    rates = [each.tokens_per_second * times for each in (slow, tail.metrics, fast)]
    return min(rates), max(rates)


def _search(serving: LoadEstimator, demand: Demand, even: ReplicaCount) -> tuple[int, TailEstimate]:
    """Return the fewest replicas whose simulated means meet the targets, or those for even arrivals; and their tail."""
    tails = dict[int, TailEstimate]()

    def serves(replicas: int) -> bool:
        tails[replicas] = _settled(serving, demand, fleet_of(serving, demand, replicas))
        return tails[replicas].serves(serving.workload)

    most = demand.users if demand.users is not None else _MOST * even.replicas
    found = _fewest(serves, even.replicas, most) or even.replicas
    return found, tails[found]


def _check_length(serving: LoadEstimator, demand: Demand) -> None:
    """Raise ValueError for a whole run that would take minutes to simulate."""
    output = serving.workload.output
    if demand.requests is not None and demand.requests * output > MAX_TOKENS:
        raise ValueError(
            f"--requests {demand.requests} of {output:,} tokens each are {demand.requests * output:,} tokens, but a "
            f"plan simulates at most {MAX_TOKENS:,}; give --requests {MAX_TOKENS // output} or fewer, or leave it out "
            "for the steady state"
        )


def _settled(serving: LoadEstimator, demand: Demand, fleet: ReplicaCount) -> TailEstimate:
    """Return the tail by a short run, or by a long one if the sampling error of the short one leaves a doubt."""
    tail = tail_of(serving, demand, fleet)
    return tail if tail.is_clear(serving.workload) else tail_of(serving, demand, fleet, long=True)


def _fewest(serves: Callable[[int], bool], least: int, most: int) -> int | None:
    """Return the fewest replicas found that serve, by growing steps and then by bisection; None if none was found."""
    good, bad, replicas, step = None, least - 1, least, max(1, least // _FIRST_STEP)
    for _ in range(_TRIES):
        if serves(replicas):
            good = replicas
        else:
            bad = replicas
        if good is None:
            if replicas == most:
                break
            replicas, step = min(most, replicas + step), 2 * step
        elif good - bad == 1:
            break
        else:
            replicas = (good + bad) // 2
    return good


def _with_throughput(serving: LoadEstimator, demand: Demand, fleet: ReplicaCount, tail: TailEstimate) -> ReplicaCount:
    """Return the fleet with the simulated throughput of all replicas, and the dollars and the energy that follow.

    A steady rate is served as it comes. Otherwise the other replicas are as fast as the fullest one.
    """
    if demand.requests is not None and tail.requests is not None:
        times = demand.requests / tail.requests
    elif demand.users is not None:
        times = demand.users / fleet.load.users
    else:
        return fleet
    tokens = tail.metrics.tokens_per_second * times
    return replace(
        fleet,
        requests_per_second=tail.metrics.requests_per_second * times,
        tokens_per_second=tokens,
        dollars_per_million=serving.dollars_per_million(tokens / fleet.replicas) if tokens else None,
        kwh_per_million_tokens=kwh_per_million(serving.case.setup.watts, tokens / fleet.replicas) if tokens else None,
    )
