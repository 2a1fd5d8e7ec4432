"""`ridgeline bench serve`: load on any OpenAI-compatible server, and what became of it."""

import asyncio
import json
import math
import os
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import typer

from ridgeline.bench import run as running
from ridgeline.bench.export import findings_json, requests_csv
from ridgeline.bench.findings import Findings
from ridgeline.bench.job import Data, Job, Load, Target
from ridgeline.bench.prompts import source_of
from ridgeline.bench.report import report as report_document
from ridgeline.bench.run import Run
from ridgeline.bench.server import Served, base_of, calibrated_device, measure_wording, steps_by_phase, who_is_there
from ridgeline.bench.sweep import LEAST, Sweep
from ridgeline.bench.sweep import sweep as look_for_knee
from ridgeline.bench.transport import Unanswered
from ridgeline.checkpoint.source import read_config
from ridgeline.cli import bench_options as own
from ridgeline.cli import options
from ridgeline.cli.options import device_named, parse_seconds
from ridgeline.cli.process import FAILED, UNREACHABLE
from ridgeline.cli.terminal import err, one_line, say
from ridgeline.document.html import html
from ridgeline.document.terminal import printable, show
from ridgeline.files import check_apart, check_new, check_writable, write_whole
from ridgeline.host import cores
from ridgeline.roofline.device import Device
from ridgeline.traffic.slo import SLO, parse_slo
from ridgeline.untrusted import ModelRefused

bench = typer.Typer(help="Measure a server under load.")

_REQUESTS, _LEVEL_REQUESTS, _LEVEL_SECONDS = 100, 50, 15.0
_KEYS = ("RIDGELINE_API_KEY", "OPENAI_API_KEY")
_ANSWER = "128"  # tokens
_SEEDS = 1_000_000
Told = Callable[[str], None]


@bench.callback()
def _group() -> None:
    """Measure a server under load."""


@bench.command()
def serve(
    url: own.Url,
    rate: own.Rate = None,
    concurrency: own.Concurrency = None,
    sweep: own.Sweep = False,
    arrival: own.Arrival = "poisson",
    burstiness: own.Burstiness = 1.0,
    speed: own.Speed = 1.0,
    max_concurrency: own.MaxConcurrency = None,
    requests: own.Requests = None,
    duration: own.Duration = None,
    warmup: own.Warmup = 2,
    max_errors: own.MaxErrors = 0.1,
    processes: own.Processes = None,
    seed: own.Seed = None,
    input: own.Input = "512",
    output: own.Output = None,
    prefix: own.Prefix = 0,
    prefixes: own.Prefixes = 1,
    turns: own.Turns = 1,
    think: own.Think = None,
    prompts: own.Prompts = None,
    trace: own.Trace = None,
    token_ids: own.TokenIds = None,
    model: own.Model = None,
    endpoint: own.Endpoint = "completions",
    api_key: own.ApiKey = None,
    ignore_eos: own.IgnoreEos = None,
    extra_body: own.ExtraBody = None,
    timeout: own.Timeout = "600s",
    predict: own.Predict = None,
    predict_on: own.PredictOn = None,
    slo: own.Slo = None,
    csv: own.Csv = None,
    report: own.Report = None,
    force: own.Force = False,
    as_json: options.Json = False,
) -> None:
    """Send requests to a server and say what it did with them.

    TTFT: from the moment at which a request was intended to be sent to its first content. TPOT: time per token after
    that. ITL: gaps between tokens, those of all requests together. E2E: to the last content. Goodput: requests a second
    that keep to every --slo. A percentile takes ten samples beyond it. What failed or was rejected is in no average and
    stands beside it. Where the load generator itself is late by more than 5 % of the median TTFT, it gives no latency
    of the server. All definitions are in the output.
    """
    files = {name: path for name, path in (("--csv", csv), ("--report", report)) if path is not None}
    check_apart(files)
    for path in files.values():
        check_writable(path)
        if not force:
            check_new(path)
    seed = secrets.randbelow(_SEEDS) if seed is None else seed
    key = api_key or next((os.environ[name] for name in _KEYS if os.environ.get(name)), None)
    target = Target(
        base_of(url),
        model or "",
        endpoint,
        {"Authorization": f"Bearer {key}"} if key else {},
        more=_object(extra_body),
        timeout=parse_seconds(timeout, "--timeout"),
    )
    data = Data(
        "trace" if trace is not None else "file" if prompts is not None else "random",
        str(trace or prompts or ""),
        input,
        output if output is not None or prompts is not None else _ANSWER,
        prefix,
        prefixes,
        turns,
        0.0 if think is None else parse_seconds(think, "--think"),
        token_ids,
        seed=seed,
    )
    load = Load(
        concurrency if sweep or trace or rate is not None else 1 if concurrency is None else concurrency,
        "trace" if trace is not None and rate is None and not sweep else arrival,
        1.0 if rate is None else rate,
        burstiness,
        speed,
        max_concurrency,
        requests if requests is not None or duration is not None or sweep else _REQUESTS,
        None if duration is None else parse_seconds(duration, "--duration"),
        max_errors,
        stop_overloaded=sweep,
        seed=seed,
    )
    asked = _Asked(
        Job(target, data, load),
        model,
        None if slo is None else parse_slo(slo),
        processes,
        warmup,
        ignore_eos,
        sweep,
        rate,
        predict,
        predict_on,
    )
    _check(asked, both=prompts is not None and trace is not None)
    try:
        with _progress() as told:
            found = asyncio.run(_measure(asked, told))
            found = _predicted(asked, found, told)
    except Unanswered as error:
        print(f"ridgeline: {one_line(error.reason)}", file=sys.stderr)
        raise typer.Exit(UNREACHABLE) from None
    if csv is not None:
        write_whole(csv, requests_csv(found))
    if report is not None:
        write_whole(report, html(report_document(found, drawn=True)))
        say(f"report written to {report}")
    if as_json:
        print(json.dumps(findings_json(found)))
    else:
        show(report_document(found, drawn=False))
    if not found.run.summary.answered or (found.sweep is not None and found.sweep.undecided):
        raise typer.Exit(FAILED)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the command line asks for. rate: where a sweep begins, None to find that out."""

    job: Job
    model: str | None
    slo: SLO | None
    processes: int | None
    warmup: int
    ignore_eos: bool | None
    sweep: bool
    rate: float | None
    predict: str | None
    predict_on: str | None


def _check(asked: _Asked, *, both: bool) -> None:
    """Refuse, before anybody is asked anything, what goes together with nothing. Raises ValueError."""
    data, load, endpoint = asked.job.data, asked.job.load, asked.job.target.endpoint
    if both:
        raise ValueError("--prompts and --trace both say what is asked; give one")
    if load.users is not None and (asked.rate is not None or asked.sweep):
        raise ValueError("--concurrency is a closed loop, --rate and --sweep are open ones; give one")
    if load.users is not None and load.most_under_way is not None:
        raise ValueError("--max-concurrency is for an open loop; --concurrency alone says how many are under way")
    for name, value, least in (
        ("--concurrency", load.users, 1),
        ("--max-concurrency", load.most_under_way, 1),
        ("--requests", load.requests, 1),
        ("--processes", asked.processes, 1),
        ("--warmup", asked.warmup, 0),
        ("--prefix", data.prefix, 0),
        ("--prefixes", data.prefixes, 1),
        ("--turns", data.turns, 1),
        ("--token-ids", data.vocabulary, 1),
    ):
        if value is not None and value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
    for name, number in (("--rate", load.rate), ("--burstiness", load.burstiness), ("--speed", load.speed)):
        if not (math.isfinite(number) and number > 0):
            raise ValueError(f"{name} is {number}; it must be a number above 0")
    if not 0 <= load.most_failed <= 1:
        raise ValueError(f"--max-errors is {load.most_failed}; it must be a share from 0 to 1")
    if asked.sweep and load.requests is not None and load.requests < LEAST:
        raise ValueError(f"--requests is {load.requests}; a rate of a sweep is judged from {LEAST} at least")
    if data.vocabulary is not None and (endpoint == "chat" or data.turns > 1 or data.kind == "file"):
        raise ValueError("--token-ids is for completions of one turn without --prompts: only they take ids")
    if data.turns > 1 and data.kind != "random":
        raise ValueError("--turns is for random words; a file or a trace has one question each")
    if data.prefix and data.kind != "random":
        raise ValueError("--prefix is for random words; a trace names its own prefixes, a file has its own prompts")
    source_of(data).check(asked.job.target)


def _object(text: str | None) -> dict[str, object]:
    """Raises ValueError for what is no JSON object."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        raise ValueError('--extra-body is no JSON object; write one like {"top_k": 1}') from None


@contextmanager
def _progress() -> Iterator[Told]:
    """How far it is, on stderr: a line that changes where that is a terminal, else only what is new."""
    if not err.is_terminal:
        yield lambda text: None
        return
    with err.status("") as status:
        yield lambda text: status.update(printable(text))


# -- measuring --------------------------------------------------------------------------------------------------------


async def _measure(asked: _Asked, told: Told) -> Findings:
    """Look who is there, warm up, send everything. Raises Unanswered where nobody is there, ValueError where no request
    can be answered."""
    job = asked.job
    told(f"asking {job.target.base} for its models")
    served = await who_is_there(job.target.base, job.target.headers, asked.model)
    ignore = asked.ignore_eos
    if ignore is None:
        ignore = served.takes_ignore_eos and job.data.output is not None
    target = msgspec.structs.replace(job.target, model=served.model, ignore_eos=ignore)
    data = job.data
    if data.kind != "file" and data.vocabulary is None:
        told("counting the tokens of two prompts")
        data = msgspec.structs.replace(data, wording=await measure_wording(target))
    job = Job(target, data, job.load)
    if asked.warmup:
        told("warming up")
        await running.warm_up(job, asked.warmup)

    async def measure(job: Job, told: Told, processes: int | None) -> Run:
        return await running.run(
            job, processes, cores(), asked.slo, told, lambda: steps_by_phase(served, target.headers)
        )

    swept = await _sweep(asked, job, told, measure) if asked.sweep else None
    run = await measure(job, told, asked.processes) if swept is None else swept.shown
    if served.ours and served.local and asked.predict_on is None:
        served = replace(served, device=await calibrated_device(served, target.headers))
    return Findings(served, job, run, asked.slo, swept, dict(run.steps))


async def _sweep(asked: _Asked, job: Job, told: Told, run: Callable[[Job, Told, int | None], Awaitable[Run]]) -> Sweep:
    """Rates from a low one up. Each has prompts of its own: none is cached from the one before."""
    start, processes, level = asked.rate, asked.processes, 0
    if start is None:
        told("asking as one user, to begin the sweep below that")
        alone = msgspec.structs.replace(job.load, users=1, requests=3, seconds=None, stop_overloaded=False)
        lone = await run(msgspec.structs.replace(job, load=alone), told, processes)
        took = lone.summary.latencies["E2E"]
        if took is None:
            raise ValueError(f"the server answers no request of this kind: {next(iter(lone.summary.reasons), '')}")
        start = 0.5 / took.mean

    async def measure(rate: float) -> Run:
        nonlocal processes, level
        level += 1
        load = msgspec.structs.replace(job.load, rate=rate, **extent_of_level(job.load, rate))
        data = msgspec.structs.replace(job.data, seed=job.data.seed + level * 7919)
        told(f"{rate:.3g} a second")
        found = await run(Job(job.target, data, load), lambda at: told(f"{rate:.3g} a second: {at}"), processes)
        processes = found.processes if found.processes > 1 else processes
        return found

    return await look_for_knee(start, measure)


def extent_of_level(load: Load, rate: float) -> dict[str, Any]:
    """How long a rate is tried: as asked, but for as many requests as it can be judged from."""
    if load.requests is None and load.seconds is None:
        return {"requests": max(_LEVEL_REQUESTS, math.ceil(rate * _LEVEL_SECONDS))}
    if load.seconds is not None and rate * load.seconds < LEAST:
        return {"requests": LEAST, "seconds": None}
    return {}


def _predicted(asked: _Asked, found: Findings, told: Told) -> Findings:
    """With what the price says: of --predict, else of a local server's own model, where that can be read here. Without
    --predict-on for the machine as it is calibrated: to probe it beside a server that works would measure neither."""
    served, sizes = found.served, found.run.summary.sizes
    given, made = sizes["input"], sizes["output"]
    name = asked.predict or (_own_model(served) if served.ours and served.local else None)
    if name is None or given is None or made is None:
        return found
    told(f"pricing {name}")
    from ridgeline.bench.predict import predict  # what prices is loaded only to price

    device = _calibrated(served.device) if asked.predict_on is None else device_named(asked.predict_on)
    if device is None:
        return replace(found, unpredicted=_UNCALIBRATED)
    try:
        predicted = predict(name, read_config(name), device, round(given.mean), round(made.mean))
    except ModelRefused:
        if asked.predict is not None:
            raise
        return found
    return replace(found, predicted=predicted)


def _calibrated(title: str | None) -> Device | None:
    """The calibration of this machine that has a title; None where there is none."""
    from ridgeline.calibrate.file import Uncalibrated, load_all

    try:
        devices = [calibration.device() for calibration in load_all()]
    except Uncalibrated:
        return None
    return next((device for device in devices if device.title == title), None)


_UNCALIBRATED = (
    "Nothing is predicted of the load: the server's device is not calibrated here. Run `ridgeline calibrate` and start "
    "the server again, or name a device: --predict-on this probes this machine, beside all that runs on it."
)


def _own_model(served: Served) -> str:
    return served.root or served.model
