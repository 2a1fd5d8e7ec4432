"""`ridgeline calibrate` measures this machine, so that predictions for it match its behaviour."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import torch
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from ridgeline.cli import options
from ridgeline.cli.console import err, print_json, say
from ridgeline.cli.missing_kernels import warn_missing_kernels
from ridgeline.engine.placement import device_named
from ridgeline.insight.calibrate.calibration import Calibration
from ridgeline.insight.calibrate.calibration_file import gpu_kind, load, load_all, save
from ridgeline.insight.calibrate.calibration_run import SECONDS, OnProgress
from ridgeline.insight.calibrate.calibration_run import calibrate as measure
from ridgeline.insight.calibrate.roofs import peaks
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.device import HostTime
from ridgeline.price.host_parts import HostParts
from ridgeline.util.document import terminal_renderer
from ridgeline.util.document.elements import Document, DocumentTable, Facts, Strip, TableRow, columns
from ridgeline.util.host import check_threads, cores

_THREADS = "The number of threads to calibrate; repeatable. By default one, as small models use, and all cores."
_DEVICE = (
    "cpu, or cuda or cuda:N for a GPU that torch sees. `plan --device cuda:N` and runs on that GPU use the result."
)
_SECONDS = "The approximate time for each number of threads; three passes over everything take about 80 s in any case."


def calibrate(
    device: Annotated[str, typer.Option(help=_DEVICE)] = "cpu",
    threads: Annotated[list[int] | None, typer.Option(help=_THREADS)] = None,
    seconds: Annotated[float, typer.Option(help=_SECONDS)] = SECONDS,
    show: Annotated[bool, typer.Option("--show", help="Print the stored calibration and measure nothing.")] = False,
    as_json: options.Json = False,
) -> None:
    """Measure this machine in three minutes, so that predictions for it are accurate.

    Measures bandwidth by working set, matrix products, and every op as it occurs in a model, then fits six constants to
    each class of kernels. `plan --device this`, `trace` and the verdict of `run` use the result. Do not run anything
    else at the same time.
    """
    place = device_named(device)
    _check(place, threads, seconds)
    kind = "cpu" if place.type == "cpu" else gpu_kind(place.index or 0)
    if show:
        found = [load(count) for count in threads] if threads else load_all(kind)
    else:
        if place.type == "cpu":
            warn_missing_kernels()
        else:
            torch.cuda.set_device(place)
        wanted = sorted(set(threads or [1, cores()])) if place.type == "cpu" else [1]
        found = [_measure(place, count, seconds) for count in wanted]
        say(f"written to {save(found, kind)}")
    if as_json:
        print_json({"calibrations": [calibration.as_json() for calibration in found]})
        return
    for calibration in found:
        terminal_renderer.show(document(calibration))


def _check(place: torch.device, threads: list[int] | None, seconds: float) -> None:
    if place.type == "cuda" and threads:
        raise ValueError("--threads is for the CPU; leave it out with --device cuda")
    for count in threads or ():
        check_threads(count, "--threads")
    if not 1 <= seconds <= 3600:
        raise ValueError(f"--seconds is {seconds:g}; it must be from 1 to 3600")


def _measure(device: torch.device, threads: int, seconds: float) -> Calibration:
    torch.set_num_threads(threads)
    with _progress(threads) as report:
        return measure(Timer(device, threads), report, seconds)


@contextmanager
def _progress(threads: int) -> Iterator[OnProgress]:
    """Yield a progress callback that shows a bar on stderr, or prints a line per stage if that is no terminal."""
    name = f"{threads} thread{'s' if threads > 1 else ''}"
    if not sys.stderr.isatty():
        yield lambda what, share: say(f"{name}: {share:4.0%} {what}")
        return
    columns = (TextColumn(name), BarColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=share)


def document(c: Calibration) -> Document:
    """Return the measured peak rates, and the constants of each kernel class with their errors."""
    facts = [("bandwidth", _bandwidths(c)), ("matmul", _products(c))]
    if c.host is not None:
        facts.append(("host time", f"{_between_ops(c.host)} (median error {c.host_error:.1%} of a step)"))
        if c.host.parts is not None:
            facts += _parts(c.host.parts)
    if c.disturbed is not None:
        facts.append(
            (
                "disturbed",
                f"{c.disturbed.description}, on average: ridgeline simulate predicts steps with this slowdown",
            )
        )
    many = "s" if c.threads > 1 else ""
    return Document(
        f"{c.title}: {c.threads} thread{many}, {c.made} UTC, {c.seconds:.0f} s",
        (Facts(tuple(facts)), _curve(c), _classes(c)),
    )


def _bandwidths(c: Calibration) -> str:
    near = "".join(f"{cache.name} {cache.nbytes / 2**20:.3g} MiB {_gb(cache.bandwidth)}, " for cache in c.caches)
    return f"{near}memory {_gb(c.bandwidth)}"


def _products(c: Calibration) -> str:
    roofs = peaks(c.products)
    return ", ".join(
        f"{name} {rate / 1e9:,.0f} GFLOP/s"
        + (f" of the {roofs[name] / 1e9:,.0f} that a kernel could reach" if rate < roofs[name] else "")
        for name, rate in c.products.items()
    )


def _parts(parts: HostParts) -> Iterator[tuple[str, str]]:
    """Yield the constants of each part of the host time that was measured by itself."""
    for name, part in (("scheduler", parts.schedule), ("batch", parts.batch)):
        step, sequence, token, prompts, prompt = (
            1e6 * seconds for seconds in (part.step, part.sequence, part.token, part.prompts, part.prompt)
        )
        each = f"{step:.0f} us per step, {sequence:.1f} per sequence, {token:.2f} per token"
        each += f", {prompts:.0f} if the step has prompts and {prompt:.1f} for each"
        yield name, each + (f", {1e6 * part.asked:.0f} without a recorded graph" if part.asked else "")
    ways = (
        f"{way} {1e6 * own.step:.0f} us per step, {1e6 * own.row:.1f} per row, {1e9 * own.logit:.2f} per 1,000 logits"
        for way, own in parts.sampling.items()
    )
    yield "sampling", "; ".join(ways)


def _between_ops(host: HostTime) -> str:
    step, per_step_launches, op, sequence, token, mib = (
        1e6 * seconds for seconds in (host.step, host.asked, host.op, host.sequence, host.token, host.byte * 2**20)
    )
    each = f"{step:.0f} us per step, {sequence:.0f} per sequence, {token:.2f} per token, {mib:.1f} per MiB moved"
    if host.prompts:
        each += f", {1e6 * host.prompts:.0f} if the step has prompts"
    return f"{each}; a step without a recorded graph takes {per_step_launches:.0f} more, and {op:.1f} per op"


def _curve(c: Calibration) -> DocumentTable:
    """Return a table of the memory bandwidth by working-set size."""
    fastest = max(stream.read for stream in c.streams)
    rows = (
        (f"{s.nbytes / 2**20:g} MiB", f"{s.read / 1e9:.1f}", f"{s.copy / 1e9:.1f}", Strip(0.0, s.read / fastest))
        for s in c.streams
    )
    return DocumentTable(columns("working set", "read GB/s", "copy GB/s", "", words=(0, 3)), tuple(map(TableRow, rows)))


def _classes(c: Calibration) -> DocumentTable:
    """Return a table of the constants of each kernel class and their errors."""
    heads = ("class", "launch us", "rec. us", "of peak", "of GB/s", "blend", "again", "steps", "median", "worst")
    rows = []
    for name, fitted in c.classes.items():
        e = fitted.efficiency
        launches = (f"{e.launch * 1e6:.1f}", "" if e.recorded is None else f"{e.recorded * 1e6:.1f}")
        constants = (*launches, f"{e.compute:.1%}", f"{e.memory:.1%}", f"{e.blend:g}", f"{e.again:g}")
        errors = (str(fitted.observations), f"{fitted.median_error:.1%}", f"{fitted.worst_error:+.0%}")
        rows.append(TableRow((name, *constants, *errors)))
    notes = (
        "rec.: launch time in a recorded step (CUDA graph)",
        "median, worst: error of the predicted compared with the measured time of a step",
    )
    return DocumentTable(columns(*heads), tuple(rows), notes, dense=True)


def _gb(rate: float) -> str:
    return f"{rate / 1e9:.1f} GB/s"
