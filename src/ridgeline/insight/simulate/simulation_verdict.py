"""The verdict: whether a replica keeps up with what comes."""

from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics

WAITING = 0.5  # of the time: from which a steady replica is backlogged


def verdict(metrics: SimulationMetrics, *, open_loop: bool) -> str:
    """steady: it keeps up. backlogged: it does, with somebody waiting for a place most of the time. overloaded: it
    falls behind for as long as one looks. too short to tell: of fewer than 30 requests, say.
    """
    if not metrics.counts["ok"]:
        return "nothing answered"
    if not open_loop:
        return "closed loop"
    if metrics.steadiness is None:
        return "too short to tell"
    if metrics.overloaded:
        return "overloaded"
    return "backlogged" if sum(metrics.steps.held.values()) > WAITING else "steady"
