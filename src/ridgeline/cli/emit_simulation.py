"""`--emit` of `ridgeline simulate`, which prints the launch command of the configuration that was simulated."""

import math
from collections.abc import Mapping
from dataclasses import replace

from ridgeline.cli.emit import loaded_from
from ridgeline.cli.simulate_fleet import FleetFlags
from ridgeline.cli.simulate_options import LimitFlags, ObjectiveFlags, SimulationOutputFlags
from ridgeline.core.checkpoint.source import catalogue_name, open_source
from ridgeline.core.models.common.recipes import read_recipe
from ridgeline.insight.simulate.simulation_findings import SimulationFindings
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.price.launch import LaunchConfig, launch_text
from ridgeline.util.document.humanize import say_seconds, three_digits


def check_simulate_emit(fleet: FleetFlags, judged: ObjectiveFlags, output: SimulationOutputFlags) -> None:
    """Raise ValueError if --emit of `simulate` is combined with options for which there is no single command."""
    if output.emit is None:
        return
    if output.as_json:
        raise ValueError("--emit prints a command and nothing else; leave out --json, or write the result with --out")
    several: Mapping[str, object] = {
        "--split": fleet.split,
        "--also": fleet.also,
        "--scale": fleet.autoscaling.scale,
        "--advise": judged.advise,
        "--divide": judged.divide,
    }
    given = [name for name, value in several.items() if value]
    if given:
        raise ValueError(
            f"--emit writes the command of equal replicas with the given settings; leave out {' and '.join(given)}"
        )


def launch_of_simulation(query: SimulationQuery, limits: LimitFlags, target: str, model: str) -> LaunchConfig:
    """Return the configuration of a simulation, without its result, so that a refusal comes before the run.

    Args:
        query: The query of the simulation.
        limits: The options for the engine's scheduler and memory.
        target: The value of --emit.
        model: The model as the user named it.

    Raises:
        ValueError: If the engine cannot run what is to be simulated.
    """
    machine = query.machine
    kept = machine.case.price.weights_on(machine.case.device) + machine.layout.nbytes
    default = LimitFlags().page_size
    config = LaunchConfig(
        query.model,
        loaded_from(model),
        read_recipe(open_source(catalogue_name(model) or model).config).name,
        machine.case,
        min(machine.context, machine.layout.tokens),
        machine.limits.requests,
        machine.limits.tokens,
        kept / machine.case.device.memory,
        query.fleet.size,
        "",
        machine.limits.chunk,
        machine.prefix_cache,
        limits.pages,
        None if limits.page_size == default else limits.page_size,
    )
    launch_text(target, config)
    return config


def emitted_simulation(found: SimulationFindings, config: LaunchConfig, target: str) -> str:
    """Return the launch command of a configuration, with the result of its simulation."""
    return launch_text(target, replace(config, result=_result(found)))


def _result(found: SimulationFindings) -> str:
    """Return the traffic and the outcome of a simulation in one line."""
    latencies = [
        f"{title} p95 {say_seconds(interval.mid)}"
        for title in ("TTFT", "TPOT")
        if found.has_latencies and (interval := found.latency(title, 95)) is not None and math.isfinite(interval.mid)
    ]
    rate = found.capacity.rate.mid if found.capacity is not None else None
    most = [] if rate is None else [f"at most {three_digits(rate)} requests/s within the targets"]
    return f"simulated with {found.query.traffic}: {', '.join([found.verdict, *latencies, *most])}"
