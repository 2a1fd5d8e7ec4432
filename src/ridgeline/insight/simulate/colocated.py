"""A baseline for disaggregated prefill: the same GPUs with every replica doing both prefill and decode.

Disaggregation keeps prompts from delaying decode steps. A smaller token budget has the same effect on colocated
replicas, without a link. So the baseline runs the same requests twice: with the given token budget per step, and with a
quarter, but at least 64 tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulation import Watch, run
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_query import SimulationQuery

_LEAST = 64  # the smallest token budget per step that is worth trying


@dataclass(frozen=True, slots=True)
class Colocated:
    """The simulated result of replicas that do both prefill and decode, under one token budget per step."""

    limits: Limits
    metrics: SimulationMetrics


def run_colocated(
    query: SimulationQuery, rebuilt: Callable[[Limits], Machine], progress: Callable[[str], Watch] | None = None
) -> tuple[Colocated, ...]:
    """Simulate a fleet without its prefill/decode split, with the full token budget and with a quarter (at least 64).

    Args:
        query: The simulation query, whose fleet has a split.
        rebuilt: Builds the machine with other limits.
        progress: Returns the watcher of a run, given the run's name.

    Returns:
        One result per token budget; only one if the full budget is at most 64 tokens.
    """
    fleet, limits = replace(query.fleet, split=None), query.machine.limits
    found = []
    quarter = max(_LEAST, limits.tokens // 4)
    for tokens in (limits.tokens, quarter) if quarter < limits.tokens else (limits.tokens,):
        own = replace(limits, tokens=tokens)
        machine = query.machine if own == limits else rebuilt(own)
        watch = None if progress is None else progress(f"colocated, {tokens:,} tokens per step")
        log = run(machine, query.offered(), 1.0, watch, fleet)
        found.append(Colocated(own, measure(log, query.slo, open_loop=query.open_loop)))
    return tuple(found)
