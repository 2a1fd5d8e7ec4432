"""`ridgeline bench serve` sends load to any OpenAI-compatible server and reports its performance."""

import asyncio
import math
import secrets
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import typer

from ridgeline.cli.bench_serve_options import BenchOutputFlags, DataFlags, LoadFlags, TargetFlags, Url
from ridgeline.cli.console import changing_line, one_line, print_json, say
from ridgeline.cli.flags import with_flags
from ridgeline.cli.options import device_named
from ridgeline.cli.process_setup import FAILED, UNREACHABLE
from ridgeline.core.checkpoint.source import read_config
from ridgeline.insight.bench import bench_run as running
from ridgeline.insight.bench.bench_export import findings_json, requests_csv
from ridgeline.insight.bench.bench_findings import BenchFindings
from ridgeline.insight.bench.bench_report import report
from ridgeline.insight.bench.bench_run import BenchRun
from ridgeline.insight.bench.job import LoadJob, LoadPattern
from ridgeline.insight.bench.prediction import predict
from ridgeline.insight.bench.prompt_sources import open_prompts
from ridgeline.insight.bench.server_probe import (
    calibrated_device,
    fetch_server_info,
    measure_tokens_per_word,
    steps_by_phase,
)
from ridgeline.insight.bench.sweep import MIN_REQUESTS, Sweep
from ridgeline.insight.bench.sweep import sweep as look_for_knee
from ridgeline.insight.bench.transport import NoResponse
from ridgeline.insight.traffic.slo import SLO
from ridgeline.price.device import Device
from ridgeline.util.document.html import html
from ridgeline.util.document.terminal_renderer import show
from ridgeline.util.files import check_outputs, write_whole
from ridgeline.util.host import cores
from ridgeline.util.untrusted import ModelRefused

_LEVEL_REQUESTS, _LEVEL_SECONDS = 50, 15.0  # minimum duration of a rate of a sweep: both must be reached
_SEEDS = 1_000_000
_NEXT_LEVEL = 7919  # added to the seed at each rate of a sweep
_NAME_A_DEVICE = "name a device: --predict-on this probes this machine while the server runs."
_UNCALIBRATED = (
    "The load is not predicted, because the server's device is not calibrated here. Run `ridgeline calibrate` and "
    f"start the server again, or {_NAME_A_DEVICE}"
)
ShowProgress = Callable[[str], None]


@with_flags
def serve(url: Url, load: LoadFlags, data: DataFlags, target: TargetFlags, output: BenchOutputFlags) -> None:
    """Load-test a server, and report latency, throughput and goodput.

    TTFT: from the time at which a request was scheduled to its first content. TPOT: time per token after that. ITL: the
    gaps between tokens, over all requests. E2E: to the last content. Goodput: requests per second that meet every
    --slo. A percentile is printed only with ten samples beyond it. Failed and rejected requests are in no average and
    are counted separately. If the load generator itself is late by more than 5 % of the median TTFT, it reports no
    latencies. All definitions are in the output.
    """
    check_outputs({"--csv": output.csv, "--report": output.report}, overwrite=output.force)
    options_given = _BenchServeOptions.of(url, load, data, target, output)
    try:
        with changing_line(otherwise=lambda text: None) as on_progress:
            found = asyncio.run(_measure(options_given, on_progress))
            found = _predicted(options_given, found, on_progress)
    except NoResponse as error:
        print(f"ridgeline: {one_line(error.reason)}", file=sys.stderr)
        raise typer.Exit(UNREACHABLE) from None
    _write(found, output)
    if not found.run.summary.answered or (found.sweep is not None and found.sweep.undecided):
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class _BenchServeOptions:
    """The job and the objectives that the command line describes."""

    job: LoadJob
    slo: SLO | None
    load: LoadFlags
    data: DataFlags
    target: TargetFlags

    @classmethod
    def of(
        cls, url: str, load: LoadFlags, data: DataFlags, target: TargetFlags, output: BenchOutputFlags
    ) -> "_BenchServeOptions":
        """Return the options, before any request is sent.

        Raises:
            ValueError: If options cannot be combined or a file cannot be read.
        """
        seed = secrets.randbelow(_SEEDS) if load.seed is None else load.seed
        job = LoadJob(
            target.target(url),
            data.data(seed, chat=target.endpoint == "chat"),
            load.load(seed, traced=data.trace is not None),
        )
        open_prompts(job.data).check(job.target)
        return cls(job, output.objectives(), load, data, target)


def _write(found: BenchFindings, output: BenchOutputFlags) -> None:
    """Write the benchmark's findings to files and to standard output."""
    if output.csv is not None:
        write_whole(output.csv, requests_csv(found))
    if output.report is not None:
        write_whole(output.report, html(report(found, with_charts=True)))
        say(f"report written to {output.report}")
    if output.as_json:
        print_json(findings_json(found))
    else:
        show(report(found, with_charts=False))


# -- measuring --------------------------------------------------------------------------------------------------------


async def _measure(options_given: _BenchServeOptions, on_progress: ShowProgress) -> BenchFindings:
    """Query the server, warm it up and send all requests of the benchmark.

    Raises:
        NoResponse: If the server does not respond.
        ValueError: If the server refuses, does not have the model, or answers no request.
    """
    job = options_given.job
    on_progress(f"reading the models of {job.target.base}")
    served = await fetch_server_info(job.target.base, job.target.headers, options_given.target.model)
    ignore = options_given.target.ignore_eos
    if ignore is None:
        ignore = served.takes_ignore_eos and job.data.output is not None
    target = msgspec.structs.replace(job.target, model=served.model, ignore_eos=ignore)
    data = options_given.data.fitted(job.data, served.context)
    fitted = data != job.data
    if data.kind != "file" and data.vocabulary is None:
        on_progress("counting the tokens of two prompts")
        data = msgspec.structs.replace(data, wording=await measure_tokens_per_word(target))
    job = LoadJob(target, data, job.load)
    if options_given.load.warmup:
        on_progress("warming up")
        await running.warm_up(job, options_given.load.warmup)

    async def measure(job: LoadJob, on_progress: ShowProgress, processes: int | None) -> BenchRun:
        return await running.run(
            job, processes, cores(), options_given.slo, on_progress, lambda: steps_by_phase(served, target.headers)
        )

    swept = await _sweep(options_given, job, on_progress, measure) if options_given.load.sweep else None
    run = await measure(job, on_progress, options_given.load.processes) if swept is None else swept.shown
    if served.is_ridgeline and served.local and options_given.target.predict_on is None:
        served = replace(served, device=await calibrated_device(served, target.headers))
    return BenchFindings(served, job, run, options_given.slo, swept, dict(run.steps), fitted=fitted)


async def _sweep(
    options_given: _BenchServeOptions,
    job: LoadJob,
    on_progress: ShowProgress,
    run: Callable[[LoadJob, ShowProgress, int | None], Awaitable[BenchRun]],
) -> Sweep:
    """Raise the rate until the server saturates.

    Each rate has prompts of its own, so that none is cached from the rate before.
    """
    start, processes, level = options_given.load.rate, options_given.load.processes, 0
    if start is None:
        on_progress("measuring a single user, to start the sweep below that rate")
        alone = msgspec.structs.replace(job.load, users=1, requests=3, seconds=None, stop_overloaded=False)
        lone = await run(msgspec.structs.replace(job, load=alone), on_progress, processes)
        took = lone.summary.latencies["E2E"]
        if took is None:
            raise running.no_answer(job, next(iter(lone.summary.reasons), ""))
        start = 0.5 / took.mean

    async def measure(rate: float) -> BenchRun:
        nonlocal processes, level
        level += 1
        load = msgspec.structs.replace(job.load, rate=rate, **extent_of_level(job.load, rate))
        data = msgspec.structs.replace(job.data, seed=job.data.seed + level * _NEXT_LEVEL)
        on_progress(f"{rate:.4g} requests/s")
        found = await run(
            LoadJob(job.target, data, load), lambda at: on_progress(f"{rate:.4g} requests/s: {at}"), processes
        )
        processes = found.processes if found.processes > 1 else processes
        return found

    return await look_for_knee(start, measure)


def extent_of_level(load: LoadPattern, rate: float) -> dict[str, Any]:
    """Return the changes to a load's limits for one rate of a sweep, so that it has enough requests to judge the rate.

    The result maps `requests` and `seconds` of `LoadPattern` to new values; it is empty if the limits already suffice.
    """
    if load.requests is None and load.seconds is None:
        return {"requests": max(_LEVEL_REQUESTS, math.ceil(rate * _LEVEL_SECONDS))}
    if load.seconds is not None and rate * load.seconds < MIN_REQUESTS:
        return {"requests": MIN_REQUESTS, "seconds": None}
    return {}


def _predicted(options_given: _BenchServeOptions, found: BenchFindings, on_progress: ShowProgress) -> BenchFindings:
    """Return the benchmark's findings with a prediction for the same load added.

    The model is that of --predict, or a local Ridgeline server's own if it can be read here. Without --predict-on, the
    device is this machine only if it is calibrated, because probing it next to a busy server would disturb both
    measurements.
    """
    served, sizes = found.served, found.run.summary.sizes
    given, made = sizes["input"], sizes["output"]
    name = options_given.target.predict or (
        (served.root or served.model) if served.is_ridgeline and served.local else None
    )
    if name is None or given is None or made is None:
        return found
    on_progress(f"predicting the speed of {name}")
    device = (
        _calibrated(served.device)
        if options_given.target.predict_on is None
        else device_named(options_given.target.predict_on)
    )
    if device is None:
        return replace(found, unpredicted=_why_unpredicted(local=served.local))
    try:
        predicted = predict(name, read_config(name), device, round(given.mean), round(made.mean))
    except ModelRefused:
        if options_given.target.predict is not None:
            raise
        return found
    return replace(found, predicted=predicted)


def _why_unpredicted(*, local: bool) -> str:
    """Return why the load is not predicted, and how to change that.

    Args:
        local: Whether the server runs on this machine, so that a stale calibration here is a reason.
    """
    from ridgeline.insight.calibrate.calibration_file import StaleCalibration, Uncalibrated, load_all

    try:
        load_all()
    except StaleCalibration as error:
        if local:
            return f"The load is not predicted: {error}, and start the server again; or {_NAME_A_DEVICE}"
    except Uncalibrated:
        pass
    return _UNCALIBRATED


def _calibrated(title: str | None) -> Device | None:
    """Return the calibrated device of this machine with a given title, or None."""
    from ridgeline.insight.calibrate.calibration_file import Uncalibrated, load_all

    try:
        devices = [calibration.device() for calibration in load_all()]
    except Uncalibrated:
        return None
    return next((device for device in devices if device.title == title), None)
