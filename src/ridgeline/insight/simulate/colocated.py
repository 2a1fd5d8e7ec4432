"""The same cards with prompts and answers together: what prompts and answers apart has to be better than.

Apart, a prompt holds no answer up; so it does where steps run fewer positions, on the same cards and over no link. Both
are simulated with the same requests: at the positions a step that were asked for, and at a quarter of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulation import Watch, run
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_query import SimulationQuery

_LEAST = 64  # positions a step: below it nobody would set


@dataclass(frozen=True, slots=True)
class Colocated:
    """All replicas doing both, with steps of so many positions."""

    limits: Limits
    metrics: SimulationMetrics


def run_colocated(
    asked: SimulationQuery, rebuilt: Callable[[Limits], Machine], progress: Callable[[str], Watch] | None = None
) -> tuple[Colocated, ...]:
    """The cards of a fleet with a split without it; with few positions a step those alone. rebuilt: the machine with
    other limits.
    """
    fleet, limits = replace(asked.fleet, split=None), asked.machine.limits
    found = []
    quarter = max(_LEAST, limits.tokens // 4)
    for tokens in (limits.tokens, quarter) if quarter < limits.tokens else (limits.tokens,):
        own = replace(limits, tokens=tokens)
        machine = asked.machine if own == limits else rebuilt(own)
        watch = None if progress is None else progress(f"together, {tokens:,} positions a step")
        log = run(machine, asked.offered(), 1.0, watch, fleet)
        found.append(Colocated(own, measure(log, asked.slo, open_loop=asked.open_loop)))
    return tuple(found)
