"""The verdict of a simulation: whether the replicas keep up with the arrivals."""

from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics

WAITING = 0.5  # the share of time that requests wait from which a steady replica is backlogged


def verdict(metrics: SimulationMetrics, *, open_loop: bool) -> str:
    """Return the verdict of a run in a word or two.

    `steady`: the replicas keep up. `backlogged`: they keep up, but requests wait most of the time. `overloaded`: the
    backlog grows without bound. `too short to tell`: for example, fewer than 30 requests. `closed loop` and `nothing
    answered` describe runs that have no such verdict.
    """
    if not metrics.counts["ok"]:
        return "nothing answered"
    if not open_loop:
        return "closed loop"
    if metrics.stationarity is None:
        return "too short to tell"
    if metrics.overloaded:
        return "overloaded"
    return "backlogged" if sum(metrics.steps.held.values()) > WAITING else "steady"
