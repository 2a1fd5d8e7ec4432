"""`ridgeline plan` predicts fit, users, speed, limits and cost of a model on a device without reading weights."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ridgeline.cli.class_status import class_status
from ridgeline.cli.console import counting_bar, print_json, say
from ridgeline.cli.emit import check_plan_emit, emitted_plan, refuse_emit, with_engine
from ridgeline.cli.examples import EXAMPLES
from ridgeline.cli.flags import given_flags, with_flags
from ridgeline.cli.plan_embedding import plan_embedding
from ridgeline.cli.plan_list import list_document, list_json
from ridgeline.cli.plan_options import MoneyFlags, PlanFlags, add_adapters_of, listed_options, sections_of
from ridgeline.core.checkpoint.embedding_config import read_embedding
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models import family_of
from ridgeline.price.device import Device
from ridgeline.price.devices import catalogue_devices
from ridgeline.price.hourly_prices import with_prices
from ridgeline.price.plan import DeploymentPlan, make_plan
from ridgeline.price.plan.comparison import DeviceComparison, compare
from ridgeline.price.plan.comparison_csv import comparison_csv
from ridgeline.price.plan.comparison_document import compare_document
from ridgeline.price.plan.plan_document import SECTIONS, needs_simulation, plan_document, short_document
from ridgeline.price.plan.plan_export import comparison_json, plan_json
from ridgeline.price.plan.plan_report import report_document
from ridgeline.price.plan.scenario import AddAdapters, ModelCache
from ridgeline.util.document.html import html
from ridgeline.util.document.terminal_renderer import show
from ridgeline.util.json_data import json_object, json_select

if TYPE_CHECKING:
    from ridgeline.insight.simulate.tail_latency import TailEstimate


@with_flags
def plan(flags: PlanFlags) -> None:
    """Predict memory, latency, users and cost of a model on a device, without running it.

    Every time is given three times: as floor, bound and expected value. TTFT is the time to first token, ITL one decode
    step, and TPOT the mean time per output token after the first, including the prefills of other users. Decode is
    priced at the mean context, input + output / 2. For a diffusion pipeline the plan has seconds and dollars per image
    or video, stage by stage.
    """
    check_plan_emit(flags)
    flags = replace(flags, setup=with_engine(flags.setup, flags.shown.emit))
    setup, shown, model = flags.setup, flags.shown, flags.model
    flags.check_short()
    flags.check_files()
    if shown.listed:
        known = list_json()
        print_json(known) if flags.as_json else show(list_document(known))
        return
    devices = flags.compared_devices()
    if devices is not None and flags.workload.requests is not None and flags.workload.within is None:
        raise ValueError(
            "--requests simulates the run on one device, but a comparison has many; leave out --requests, or --compare "
            "and --compare-devices, or give --within for a batch job"
        )
    if model is None or (setup.device is None and devices is None):
        missing = "MODEL" if model is None else "--device"
        raise ValueError(
            f"{missing} is missing; for example: {EXAMPLES['plan']}; `ridgeline plan --list` shows all names"
        )
    source = setup.source(model)
    if source.pipeline:
        _refuse_text_options(source.title, flags)
        from ridgeline.cli.plan_diffusion import plan_diffusion  # not imported for a language model

        plan_diffusion(source, flags)
        return
    if names := given_flags(flags.diffusion):
        raise ValueError(
            f"{source.title} generates no images: {listed_options(names)} for diffusion pipelines; leave out "
            f"{' and '.join(names)}"
        )
    embedding = read_embedding(source)
    with class_status(source.config):
        generates = embedding is None and family_of(source.config).generates
    if not generates:
        _refuse_text_options(source.title, flags)
        plan_embedding(source, embedding, flags)
        return
    _plan_text(source, flags, devices)


def _plan_text(source: ModelSource, flags: PlanFlags, devices: tuple[Device, ...] | None) -> None:
    """Print the plan of a model that generates text, or its comparison on several devices, and write the files.

    Args:
        source: The model.
        flags: The options.
        devices: The devices to compare; None without a comparison.
    """
    shown, files = flags.shown, flags.files
    sections = sections_of(shown, SECTIONS)
    add_adapters = add_adapters_of(source, flags.lora)
    made = None if flags.setup.device is None else _plan(source, flags, add_adapters)
    tail: TailEstimate | None = None
    if made is not None and _can_simulate(made) and _needs_simulation(flags, sections, compares=devices is not None):
        made, tail = _simulated(made)
    compared = None if devices is None else _compare(source, flags, devices, add_adapters)
    _say_unknown(flags.money, made, compared)
    if shown.emit is not None:
        assert made is not None
        assert flags.model is not None
        print(emitted_plan(made, shown.emit, flags.model), end="")
        return
    files.write(report=lambda: html(report_document(made, compared)), csv=lambda: _csv(compared))
    if files.prints_csv:
        return
    if flags.as_json:
        print_json(_json(made, tail, compared))
    elif compared is not None:
        show(compare_document(compared))
    else:
        assert made is not None
        with class_status(source.config):  # it may price other formats
            document = short_document(made) if shown.short else plan_document(made, sections)
        show(document)


def _csv(compared: DeviceComparison | None) -> str:
    assert compared is not None, "--csv is refused without a comparison"
    return comparison_csv(compared)


def _refuse_text_options(title: str, flags: PlanFlags) -> None:
    """Raise ValueError for options whose output exists only for models that generate text."""
    given = [*["--short"] * flags.shown.short, *given_flags(flags.files)]
    if given:
        raise ValueError(f"{given[0]} is for models that generate text, but {title} does not; leave it out")
    refuse_emit(title, flags.shown)


def _needs_simulation(flags: PlanFlags, sections: tuple[str, ...] | None, *, compares: bool) -> bool:
    """Return whether the simulation of the demand has a place in the output.

    Args:
        flags: The options.
        sections: The sections to print; None for the summary.
        compares: Whether a comparison is printed instead of the plan.
    """
    if flags.as_json or flags.files.report is not None or flags.shown.emit is not None:
        return True
    return not compares and needs_simulation(sections)


def _can_simulate(made: DeploymentPlan) -> bool:
    """Return whether a plan has a demand that can be served and simulated, which a batch job is not.

    Some models and deployments cannot be simulated either.

    Raises:
        ValueError: If --requests is given but cannot be simulated.
    """
    if made.demand.within is not None:
        return False
    if made.case.model.has_cross_attention or made.case.ranks > 1:
        if made.demand.requests is not None:
            what = "--enable-dp-attention" if made.case.ranks > 1 else f"{made.name}, an encoder-decoder"
            raise ValueError(f"--requests is simulated, which is not supported for {what}; leave it out")
        return False
    return bool(made.demand) and made.fleet is not None


def _simulated(made: DeploymentPlan) -> "tuple[DeploymentPlan, TailEstimate]":
    """Return a plan whose demand is simulated, and the latencies of a replica."""
    assert made.fleet is not None, "the demand cannot be served"
    from ridgeline.insight.simulate.demand_simulation import simulate_demand  # imports the engine

    found = simulate_demand(made.serving, made.demand, made.fleet)
    return made.with_queue(found.queue), found.tail


def _plan(source: ModelSource, flags: PlanFlags, add_adapters: AddAdapters | None) -> DeploymentPlan:
    setup, workload, device = flags.setup, flags.workload, flags.device
    requested, others = workload.workload(setup.max_batch_tokens), _others(device, flags.money)
    config, stated = source.config, source.index_total_bytes
    batches = workload.batches()
    with class_status(config):
        return make_plan(
            source.title, config, setup.setup(device), requested, others, workload.demand(), stated,
            batches if len(batches) > 1 else (), add_adapters,
        )  # fmt: skip


def _others(device: Device, money: MoneyFlags) -> tuple[Device, ...]:
    """Return the catalogue's devices at the prices of the seller that the device's own price is from, if any."""
    sellers = [each for each in money.sellers() if device.price is not None and each.title == device.price.seller]
    return with_prices(catalogue_devices(), sellers[0] if sellers else None)


def _compare(
    source: ModelSource, flags: PlanFlags, devices: tuple[Device, ...], add_adapters: AddAdapters | None
) -> DeviceComparison:
    setup, workload = flags.setup, flags.workload
    quoted, unpriced = flags.quoted_devices(devices)
    requested, wanted = setup.setup(devices[0]), workload.workload(setup.max_batch_tokens)
    models = ModelCache(source.config, add_adapters)
    with counting_bar("devices compared", len(quoted)) as on_progress:
        return compare(
            source.title, models, requested, wanted, quoted, workload.demand(), unpriced, setup.compared_counts,
            on_progress,
        )  # fmt: skip


def _say_unknown(money: MoneyFlags, made: DeploymentPlan | None, compared: DeviceComparison | None) -> None:
    """Report prices of the user's file that belong to no known device."""
    device_names = [] if made is None else [made.case.device.name]
    device_names += [] if compared is None else [offer.device.name for offer in compared.offers]
    if money.prices is not None and (unknown := money.unknown(device_names)):
        say(unknown)


def _json(
    made: DeploymentPlan | None, tail: "TailEstimate | None", compared: DeviceComparison | None
) -> dict[str, Any]:
    if made is not None:
        queue = None
        if tail is not None and made.queue is not None:
            queue = json_object(tail) | json_select(made.queue, "missed", "even_arrivals=even")
        return plan_json(made, compared) | {"queue": queue}
    assert compared is not None
    return comparison_json(compared)
