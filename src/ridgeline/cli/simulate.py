"""`ridgeline simulate` simulates traffic on a model that does not run.

The engine's own scheduler decides each step, and a clock advances by the step's predicted time.
"""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import typer

from ridgeline.cli import options
from ridgeline.cli.console import say
from ridgeline.cli.emit import with_engine
from ridgeline.cli.emit_simulation import check_simulate_emit, emitted_simulation, launch_of_simulation
from ridgeline.cli.engine_flags import step_limits
from ridgeline.cli.flags import with_flags
from ridgeline.cli.options import device_named
from ridgeline.cli.plan_options import MoneyFlags, SetupFlags, with_price
from ridgeline.cli.process_setup import FAILED
from ridgeline.cli.simulate_fleet import FleetFlags
from ridgeline.cli.simulate_options import LimitFlags, ObjectiveFlags, SimulationOutputFlags
from ridgeline.cli.simulate_progress import SimulationProgress, run_count, simulation_progress
from ridgeline.cli.simulate_traffic import TrafficFlags
from ridgeline.cli.simulate_worker import AdviceWorker, Trial
from ridgeline.core.checkpoint.embedding_config import read_embedding
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models import family_of
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.adviser import SHARES, advise, evaluate_log, trial
from ridgeline.insight.simulate.capacity import capacity
from ridgeline.insight.simulate.colocated import run_colocated
from ridgeline.insight.simulate.fleet_sizing import MAX_DEVICES, check_comparable, search_fleet_size
from ridgeline.insight.simulate.load_law import closed_loop_throughput, saturation_rate
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.serving_overhead import parse_api_server_overhead
from ridgeline.insight.simulate.simulation import Watch, run
from ridgeline.insight.simulate.simulation_export import findings_json
from ridgeline.insight.simulate.simulation_findings import SimulationFindings
from ridgeline.insight.simulate.simulation_findings import simulate as simulated
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics, measure
from ridgeline.insight.simulate.simulation_query import SimulationQuery
from ridgeline.insight.simulate.simulation_report import document
from ridgeline.insight.simulate.slo_classes import check_classes
from ridgeline.insight.traffic.offered import sizes_and_classes
from ridgeline.price.plan.deployment_plan import check_devices
from ridgeline.price.plan.scenario import ModelCache
from ridgeline.util.document.html import html
from ridgeline.util.document.terminal_renderer import show
from ridgeline.util.files import check_outputs, write_whole
from ridgeline.util.host import cores
from ridgeline.util.json_data import json_data

_LONG = 3.0  # seconds of the runs at three prices from which a second process is worth its imports
_BELOW_WALL = 0.7  # share of the saturation rate at which a capacity search begins


@with_flags
def simulate(
    model: options.ConfigName,
    setup: SetupFlags,
    fleet: FleetFlags,
    limits: LimitFlags,
    traffic: TrafficFlags,
    money: MoneyFlags,
    judged: ObjectiveFlags,
    output: SimulationOutputFlags,
) -> None:
    """Simulate traffic to a model on any device: latency, limits and cost under load.

    The engine's own scheduler decides each step, and a clock advances by the step's predicted time. TTFT: from a
    request's arrival to its first token. TPOT: time per token after that. ITL: the gaps between tokens, over all
    requests. Every figure has an interval for the known error of the predictions; latencies, rates, shares and dollars
    also one for the random draw of requests.
    """
    _check_pairs(setup, fleet, limits, judged)
    _check_money(money, fleet)
    check_simulate_emit(fleet, judged, output)
    setup = with_engine(setup, output.emit)
    traffic = _checked(traffic, judged)
    required = judged.requirements()
    check_outputs({"--out": output.out, "--report": output.report}, overwrite=output.force)
    question = _SimulationQuery(model, setup, fleet, limits, traffic, money, judged)
    query, on = question.query()
    named = [each.case.device.name for each in (query.machine, *query.fleet.others)]
    if money.prices is not None and (unknown := money.unknown(named)):
        say(unknown)
    if judged.divide is not None:
        check_comparable(query)
    launch = None if output.emit is None else launch_of_simulation(query, limits, output.emit, model)
    with simulation_progress() as progress:
        runs = run_count(query, judged)
        if not judged.capacity:
            progress.expect(query, traffic, *runs)
        started = time.monotonic()
        found = _at_capacity(query, traffic, progress, runs) if judged.capacity else _found(query, traffic, progress)
        took = time.monotonic() - started
        found = _compared(found, question, on, progress, long=took > _LONG)
    command = "" if output.emit is None or launch is None else emitted_simulation(found, launch, output.emit)
    _write(found, output, command)
    failed = [why for each in required if (why := each.failed(found))]
    for why in failed:
        say(why)
    if failed or found.verdict == "nothing answered":
        raise typer.Exit(FAILED)


def _check_pairs(setup: SetupFlags, fleet: FleetFlags, limits: LimitFlags, judged: ObjectiveFlags) -> None:
    """Raise ValueError for replica and memory options that contradict each other or the requested analysis."""
    fleet.check_router(other_counts=judged.divide is not None)
    for name, given in (("--advise", judged.advise), ("--divide", judged.divide)):
        if given and (fleet.split or fleet.autoscaling.scale or fleet.also):
            raise ValueError(
                f"{name} needs equal replicas that run prefill and decode; leave out --split, --scale and --also"
            )
    for name, others in (("--also", fleet.also), ("--divide", judged.divide)):
        if others is not None and limits.pages is not None:
            raise ValueError(f"--pages is for the devices of one server, but {name} adds others; leave one of them out")
    if limits.pages is not None and setup.memory_utilization != SetupFlags().memory_utilization:
        raise ValueError("--memory-utilization and --pages both set the number of pages; leave one of them out")


def _check_money(money: MoneyFlags, fleet: FleetFlags) -> None:
    """Raise ValueError for price options that would apply to no device."""
    if money.price is not None and fleet.also is None:
        for name in ("seller", "prices"):
            if getattr(money, name) is not None:
                raise ValueError(f"--price replaces the prices of sellers; leave out --{name}")


def _checked(traffic: TrafficFlags, judged: ObjectiveFlags) -> TrafficFlags:
    """Return the traffic adapted to the requested analysis.

    Raises:
        ValueError: If options cannot be combined.
    """
    if judged.capacity:
        traffic = traffic.of_capacity()
        if not judged.slo:
            raise ValueError("--capacity needs latency targets; give --slo, like ttft=1s,tpot=50ms")
    for name, given in (("--advise", judged.advise), ("--divide", judged.divide is not None)):
        for lacks, cure in (
            (not judged.slo, "give --slo, like ttft=1s,tpot=50ms"),
            (judged.capacity, "leave out --capacity, which changes the rate"),
            (
                not traffic.open_loop,
                "give --rate or --trace in place of --users, whose requests depend on the responses",
            ),
            (traffic.turns > 1, "leave out --turns, whose requests depend on the responses"),
        ):
            if given and lacks:
                raise ValueError(f"{name} compares the number of good requests among the same requests: {cure}")
    if judged.divide is not None and not 1 <= judged.divide <= MAX_DEVICES:
        raise ValueError(f"--divide is {judged.divide}; it must be from 1 to {MAX_DEVICES}")
    return traffic


_On = Callable[[int, Limits, float], Machine]
"""A function that returns a replica on a number of devices, with scheduler limits and a share of their memory."""


@dataclass(frozen=True)
class _SimulationQuery:
    """The options of `ridgeline simulate`, as plain values that can be sent to another process."""

    model: str
    setup: SetupFlags
    fleet: FleetFlags
    limits: LimitFlags
    traffic: TrafficFlags
    money: MoneyFlags
    judged: ObjectiveFlags

    def query(self) -> tuple[SimulationQuery, _On]:
        """Return the simulation query, and a function that builds its simulated replica with other settings.

        Raises:
            ValueError: If an option is invalid.
        """
        setup, limits, traffic = self.setup, self.limits, self.traffic
        made = traffic.offered()
        if setup.device is None:
            raise ValueError("--device is missing; `ridgeline plan --list` shows all devices")
        source = setup.source(self.model)
        check_continues(source)
        device = with_price(device_named(setup.device).with_calibration_slowdown(), self.money)  # the run lasts minutes
        put = setup.setup(device)
        check_devices(put)
        models = ModelCache(source.config)
        case = models.scenario(put)
        limits.check_context(case, source.config)
        error = self.judged.price_error(case)
        given_limits = step_limits(setup.max_batch_tokens, limits.max_requests, limits.chunk)
        dealt = self.fleet.fleet(
            case,
            lambda other: limits.machine(other, given_limits),
            lambda device: models.scenario(
                setup.setup(with_price(device.with_calibration_slowdown(), self.money.of_others))
            ),
            traffic.seed,
        )
        if limits.front is not None:
            dealt = replace(dealt, api_server=parse_api_server_overhead(limits.front))
        query = SimulationQuery(
            source.title,
            limits.machine(case, given_limits),
            traffic.in_words(),
            traffic.open_loop,
            made,
            self.judged.objectives(),
            error,
            traffic.seed,
            dealt,
            traffic.rated,
        )

        def on(devices: int, given_limits: Limits, memory: float) -> Machine:
            other = replace(setup, devices=devices, memory_utilization=memory).setup(device)
            check_devices(other)
            return limits.machine(models.scenario(other), given_limits)

        return query, on

    def trial(self) -> Trial:
        """Return a function that tries other settings of the query, in whichever process this runs."""
        query, on = self.query()
        return partial(trial, query, lambda *other: on(self.setup.device_count, *other))


def _found(query: SimulationQuery, traffic: TrafficFlags, progress: Callable[[str], Watch]) -> SimulationFindings:
    users = _users_each(query, traffic)
    loop = (lambda metrics: _loop_law(query, metrics, users)) if users else None
    return simulated(query, progress, loop)


def _compared(
    found: SimulationFindings, question: _SimulationQuery, on: _On, progress: Callable[[str], Watch], *, long: bool
) -> SimulationFindings:
    """Return the findings with the requested comparisons added.

    These are the same devices without a split, better settings, and other numbers of devices per replica.

    Args:
        found: The findings so far.
        question: The options of the command.
        on: Builds a replica with other settings.
        progress: Watches each run.
        long: Whether the runs take so long that a second process is worth starting.
    """
    query, judged = found.query, question.judged
    devices, memory = question.setup.device_count, question.setup.memory_utilization
    if query.fleet.split is not None:
        found = replace(found, colocated=run_colocated(query, lambda other: on(devices, other, memory), progress))
    if not judged.advise and judged.divide is None:
        return found
    own = best = evaluate_log(query, query.machine, found.log)
    if judged.advise:
        shares = SHARES if question.limits.pages is None else ()  # --pages fixes the memory
        # A probe in another process would measure other figures.
        apart = long and cores() > 1 and query.machine.case.device.basis != "probe"
        second = AdviceWorker.start(question.trial) if apart else None
        advised = advise(query, lambda *other: on(devices, *other), progress, shares, second, own)
        best, found = advised.best if advised.is_significant else own, replace(found, advised=advised)
    if judged.divide is not None:
        setting = best.limits, best.memory
        better = replace(query, machine=on(devices, *setting))
        division = search_fleet_size(better, judged.divide, lambda count: on(count, *setting), progress, best)
        found = replace(found, division=division)
    return found


def _users_each(query: SimulationQuery, traffic: TrafficFlags) -> int:
    """Return the users per replica if the closed-loop law applies, otherwise 0.

    It applies if the users divide evenly among the replicas, all have a slot, and each sends single requests without
    thinking in between.
    """
    users, replicas = traffic.users or 0, query.fleet.size
    known = (
        traffic.think is None
        and traffic.turns == 1
        and users % replicas == 0
        and users // replicas <= query.machine.limits.requests
    )
    return users // replicas if known else 0


def _loop_law(query: SimulationQuery, metrics: SimulationMetrics, users: int) -> float:
    """Return the throughput of all replicas by the closed-loop law, with `users` users each."""
    machine, replicas = query.machine, query.fleet.replicas
    return replicas * closed_loop_throughput(machine, users, *metrics.sizes)


def _at_capacity(
    query: SimulationQuery, traffic: TrafficFlags, progress: SimulationProgress, runs: tuple[int, str]
) -> SimulationFindings:
    """Return the findings at the highest rate that meets the objectives, or at the lowest rate tried if none does."""
    machine, open_loop = query.machine, query.open_loop

    def at(rate: float, factor: float) -> SimulationMetrics:
        log = run(machine, traffic.at(rate).offered()(), factor, progress(f"{rate:.3g} requests/s"), query.fleet)
        return measure(log, query.slo, open_loop=open_loop)

    given, made, classes = sizes_and_classes(query.offered())
    check_classes(query.slo, classes)
    start = _BELOW_WALL * query.fleet.size * saturation_rate(machine, given, made) / traffic.turns
    first = traffic.at(start)
    progress.expect(replace(query, offered=first.offered()), first, *runs)
    found = capacity(at, start, (query.error.low, query.error.high))
    shown = traffic.at(found.rate.mid or found.levels[0].rate)
    there = replace(query, offered=shown.offered(), traffic=shown.in_words())
    return replace(_found(there, shown, progress), capacity=found)


def check_continues(source: ModelSource) -> None:
    """Raise ValueError for a model that does not continue text."""
    if source.pipeline:
        raise ValueError(
            f"{source.title} is a diffusion pipeline, which runs one request after the other; use ridgeline plan"
        )
    if read_embedding(source) is not None or not family_of(source.config).generates:
        raise ValueError(f"{source.title} does not generate text; use ridgeline plan")


def _write(found: SimulationFindings, output: SimulationOutputFlags, command: str) -> None:
    """Write the simulation's findings to files, and to standard output them or the command of --emit."""
    if output.out is not None or output.as_json:
        text = json.dumps(json_data(findings_json(found)))
        if output.out is not None:
            write_whole(output.out, f"{text}\n")
            say(f"result written to {output.out}")
        if output.as_json:
            print(text)
    if output.report is not None:
        write_whole(output.report, html(document(found, with_charts=True)))
        say(f"report written to {output.report}")
    if command:
        print(command, end="")
    elif not output.as_json:
        show(document(found))
