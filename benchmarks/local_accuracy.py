"""How well a calibrated machine predicts itself: prefill and decode of three models, expected beside measured.

    ridgeline calibrate
    python benchmarks/local_accuracy.py [--stories FOLDER] [--repeats 15] [--rounds 15] [--only NAME ...] [--write]
        [--json]

Every figure is a median of runs through the engine, scheduler and sampler included, among probes. --write puts the
table into benchmarks/local_accuracy.md; it has the method in words.
"""

import argparse
import json
import math
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch

from ridgeline import __version__
from ridgeline.backends.model_loader import load_model
from ridgeline.backends.timed_backend import TimedBackend
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import Work
from ridgeline.engine.engine_builder import run_requests
from ridgeline.engine.runner import Runner
from ridgeline.insight.calibrate.calibration import Calibration
from ridgeline.insight.calibrate.calibration_file import load
from ridgeline.insight.calibrate.overhead import COLD
from ridgeline.insight.calibrate.probe import PaceProbe, mean_pace
from ridgeline.insight.calibrate.roofs import beyond_caches, stated_caches
from ridgeline.insight.calibrate.steps import Stopwatch
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.device import Device
from ridgeline.price.op_time import compute_seconds, memory_seconds, op_seconds
from ridgeline.price.price import Price, traced_calls
from ridgeline.price.slowdown import Slowdown
from ridgeline.util.host import threads_for

ROOT = Path(__file__).resolve().parents[1]
REPORT = ROOT / "benchmarks" / "local_accuracy.md"
TARGET = 0.10
REPEATS, ROUNDS = 15, 15
METHOD = """\
This page says how far predicted and measured step times are apart on one calibrated CPU. Every figure is the median of
{repeats} runs through the engine, including the scheduler and the sampler. A probe before and after each two runs says
how many times slower the machine was than undisturbed (`pace`). The time of a run is divided by the pace; `raw` is the
time before that.

Other work on the machine's cores can halve its speed from second to second, and a probe measures this only roughly. So
the rows take turns, {rounds} times, and each row sees the same minutes. Of {runs} runs, a figure uses the {repeats}
whose probes are nearest to the undisturbed pace; `off` is the farthest of these. With one thread, a time is CPU time;
with several, it is wall time. A decode step is the median of a run's {decodes} steps after the first {cold}, which find
less in the caches. The engine records the step if it can. The last column says where the error is: the expected time of
a kernel class minus the time of its ops, the largest first.

No constant is fitted to these rows: the trials of the calibration have other shapes. But ten choices of the calibration
were made while looking at these rows:

1. A further call within an op costs a part of a launch.
2. The rest of a step is measured without timers on its ops.
3. That rest grows with the bytes that a step moves.
4. A recorded step is timed after the Python of a step, which leaves the caches in the same state as in an engine.
5. Products of many rows include the instructions that add up the lanes of their sums.
6. Steps with prompts are timed after decode steps, and have a constant of their own.
7. Products of two or three rows are a class of their own.
8. A query of our attention counts as 48 keys more.
9. The lower quartile of all measurements counts.
10. The time between ops comes from decode steps from the seventh after a prompt on."""
PAIR = 2  # runs between two probes
TOKENS = 16  # decode steps of a run, one less
UNCHANGED = Slowdown(1.0, 1.0, 1.0)


@dataclass(frozen=True)
class Subject:
    """A model and the prompts (one length each) that it is given side by side."""

    name: str
    model: str
    dummy: bool
    traffic: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Run:
    """A run's steps, the prefill first, with their seconds. pace: the machine's, over the undisturbed one."""

    steps: list[tuple[Work, float]]
    pace: Slowdown

    @property
    def off(self) -> float:
        """How far from the undisturbed pace it was, as a share."""
        return max(abs(math.log(part)) for part in (self.pace.launch, self.pace.compute, self.pace.memory))


@dataclass(frozen=True)
class Row:
    """Seconds of a step. measured: at the pace of the calibration; raw: as they were, `slowdown` times more. low, high:
    quartiles of the runs, at the pace too. off: how far the farthest of them was from the undisturbed pace. parts:
    predicted minus measured by kernel class, the largest first."""

    model: str
    threads: int
    step: str
    predicted: float
    measured: float
    raw: float
    slowdown: float
    low: float
    high: float
    off: float
    parts: tuple[tuple[str, float], ...]

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1


def subjects(stories: str) -> tuple[Subject, ...]:
    """The three models that the project is judged on."""
    small = ((32,), (128,), (256,), (64,) * 4)
    return (
        Subject("tales", "tales", False, small),
        Subject("stories260K", stories, False, small),
        Subject("qwen3-0.6b, random", "qwen3-0.6b", True, ((32,), (128,))),
    )


class Bench:
    """One machine state: its calibration, a clock and a probe."""

    def __init__(self, threads: int, repeats: int) -> None:
        self.calibration: Calibration = load(threads)
        self.device: Device = self.calibration.device()
        self.timer = Timer(torch.device("cpu"), threads)
        self.probe, self.repeats = PaceProbe(self.timer, beyond_caches(stated_caches(threads))), repeats

    def rows(self, name: str, model: Model, prompts: Sequence[int], runs: Sequence[Run]) -> list[Row]:
        """Prefill and decode with these prompts, from the runs nearest to the undisturbed pace."""
        chosen = sorted(runs, key=lambda run: run.off)[: self.repeats]
        price, (parts, pace) = Price(model), self._parts(model, prompts)
        label = f"{len(prompts)} x {prompts[0]}"
        prefill = [run.steps[0][1] for run in chosen]
        decode = [statistics.median(seconds for _, seconds in run.steps[1 + COLD :]) for run in chosen]
        steps, rows = chosen[0].steps, list[Row]()
        middle = (1 + COLD + len(steps)) // 2
        for step, work, raw in (("prefill", steps[0][0], prefill), ("decode", steps[middle][0], decode)):
            predicted, *_ = self._predict(price, work, UNCHANGED)
            slow = [self._predict(price, work, run.pace)[1] for run in chosen]
            times = sorted(seconds / slowdown for seconds, slowdown in zip(raw, slow, strict=True))
            ranked = self._ranked(price, work, parts[step], pace, statistics.median(times))
            rows.append(
                Row(
                    name, self.timer.threads, f"{step} {label}", predicted, statistics.median(times),
                    statistics.median(raw), statistics.median(slow), times[len(times) // 4],
                    times[-1 - len(times) // 4], max(run.off for run in chosen), ranked,
                )
            )  # fmt: skip
        return rows

    def pair(self, model: Model, prompts: Sequence[int]) -> list[Run]:
        """Two runs between two probes. The one before them does not count: a probe leaves the caches empty."""
        torch.set_num_threads(self.timer.threads)
        before = self.probe()
        _, *pair = [list(run_requests(model, prompts, TOKENS, self.timer.now)) for _ in range(1 + PAIR)]
        pace = mean_pace([before, self.probe()]).over(self.calibration.pace)
        return [Run(steps, pace) for steps in pair]

    def _ranked(
        self, price: Price, work: Work, took: dict[str, float], pace: Slowdown, median: float
    ) -> tuple[tuple[str, float], ...]:
        """Predicted minus measured seconds of the kernel classes, the three largest first. took: at `pace`."""
        _, slowdown, classes = self._predict(price, work, pace)
        ops = {kernel: seconds / slowdown for kernel, seconds in took.items()}
        ops["between ops"] = median - sum(ops.values())
        parts = {kernel: classes.get(kernel, 0.0) - seconds for kernel, seconds in ops.items()}
        return tuple(sorted(parts.items(), key=lambda item: -abs(item[1])))[:3]

    def _predict(self, price: Price, work: Work, pace: Slowdown) -> tuple[float, float, dict[str, float]]:
        """Expected seconds, how many times longer they take at this pace, and the seconds by kernel class."""
        step = price.price_step(self.device, work)
        classes = {"between ops": step.host}
        slowed = step.host * pace.launch
        backend, recorded = price.backend_on(self.device), price.recorded(self.device, work)
        for priced in price.ops:
            for kernel in priced.launches(work, backend):
                time = op_seconds(kernel.cost, (kernel,), self.device, step.working_set, recorded=recorded)
                seconds = time.expected
                compute = compute_seconds(kernel.cost, self.device)
                memory = memory_seconds(kernel.cost, self.device, step.working_set)
                slowed += priced.count * seconds * pace.factor_for(seconds, compute, memory)
                classes[kernel.name] = classes.get(kernel.name, 0.0) + priced.count * seconds
        return step.expected, slowed / step.expected, classes

    def _parts(self, model: Model, prompts: Sequence[int]) -> tuple[dict[str, dict[str, float]], Slowdown]:
        """What the ops of each kernel class took in the prefill and in a decode step, and the machine's pace then."""
        watch, price = Stopwatch(model, self.timer), Price(model)
        runner, backend = partial(Runner, backend=TimedBackend(watch)), price.backend_on(self.device)
        space_of = {op: space for _, op, space in traced_calls(model)}
        found: dict[str, dict[str, list[float]]] = {"prefill": {}, "decode": {}}
        torch.set_num_threads(self.timer.threads)
        before = self.probe()
        with watch.on():
            for _ in range(3):
                watch.clear()
                for index, (work, _) in enumerate(run_requests(model, prompts, TOKENS, self.timer.now, runner)):
                    if 1 <= index <= COLD:
                        watch.clear()
                        continue
                    into = found["prefill" if index == 0 else "decode"]
                    once: dict[str, float] = {}
                    for (op, part), times in watch.seconds.items():
                        kernels = backend.launches(op, work, space_of[op])
                        kernel = next(kernel.name for kernel in kernels if kernel.method == part)
                        once[kernel] = once.get(kernel, 0.0) + sum(times) - len(times) * watch.inside
                    for kernel, total in once.items():
                        into.setdefault(kernel, []).append(total)
                    watch.clear()
        pace = mean_pace([before, self.probe()]).over(self.calibration.pace)
        took = {step: {k: statistics.median(v) for k, v in classes.items()} for step, classes in found.items()}
        return took, pace


def measure(chosen: Sequence[Subject], repeats: int, rounds: int, threads: int | None) -> list[Row]:
    """All rows, in turn; a model runs with the threads that `ridgeline run` gives it."""
    trials: list[tuple[Bench, Subject, Model, tuple[int, ...], list[Run]]] = []
    for subject in chosen:
        model = load_model(subject.model, dummy_weights=subject.dummy)
        bench = Bench(threads_for(sum(parameter.nbytes for parameter in model.parameters()), threads), repeats)
        trials += [(bench, subject, model, prompts, []) for prompts in subject.traffic]
    for number in range(rounds):
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
        for bench, _, model, prompts, runs in trials:
            runs.extend(bench.pair(model, prompts))
    rows: list[Row] = []
    for bench, subject, model, prompts, runs in trials:
        for row in bench.rows(subject.name, model, prompts, runs):
            rows.append(row)
            print(line(row), file=sys.stderr, flush=True)
    return rows


def line(row: Row) -> str:
    """One row as text."""
    return (
        f"{row.model:20} {row.threads} thr  {row.step:18} predicted {row.predicted * 1e3:9.3f} ms  measured "
        f"{row.measured * 1e3:9.3f} [{row.low * 1e3:.3f} .. {row.high * 1e3:.3f}]  {row.error:+6.1%}   "
        f"(raw {row.raw * 1e3:.3f}, pace x{row.slowdown:.2f}, off {row.off:.0%})"
    )


def report(rows: Sequence[Row], repeats: int, rounds: int, command: str) -> str:
    """The page."""
    calibrations = {row.threads: load(row.threads) for row in rows}
    errors = [abs(row.error) for row in rows]
    facts = [
        "# How accurate are predictions on one CPU?",
        "",
        f"Made by `{command}` after `ridgeline calibrate`; do not edit.",
        "",
        f"{next(iter(calibrations.values())).title}; ridgeline {__version__}, torch {torch.__version__}; load average "
        f"{os.getloadavg()[0]:.1f}. Calibrated " + "; ".join(
            f"{c.made} UTC with {c.threads} thread{'s' if c.threads > 1 else ''}: memory {c.bandwidth / 1e9:.1f} GB/s, "
            + ", ".join(f"{n} {p / 1e9:.0f} GFLOP/s" for n, p in c.products.items())
            for c in calibrations.values()
        ) + ".",
        "",
        METHOD.format(
            repeats=repeats, rounds=rounds, runs=PAIR * rounds, decodes=TOKENS - 1 - COLD, cold=COLD
        ),
        "",
        f"Median absolute error {statistics.median(errors):.1%}; {sum(e <= TARGET for e in errors)} of {len(errors)} "
        f"rows within {TARGET:.0%}.",
        "",
        "| model | threads | step | predicted ms | measured ms | quartiles | error | raw ms | pace | off | "
        "where the error is, ms |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in rows:
        parts = ", ".join(f"{kernel} {seconds * 1e3:+.2f}" for kernel, seconds in row.parts)
        error = f"{row.error:+.1%}" if abs(row.error) <= TARGET else f"**{row.error:+.1%}**"
        facts.append(
            f"| {row.model} | {row.threads} | {row.step} | {row.predicted * 1e3:.3f} | {row.measured * 1e3:.3f} | "
            f"{row.low * 1e3:.3f} - {row.high * 1e3:.3f} | {error} | {row.raw * 1e3:.3f} | x{row.slowdown:.2f} | "
            f"{row.off:.0%} | {parts} |"
        )
    return "\n".join(facts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stories", help="the folder of stories260K; models/stories260K of RIDGELINE_DATA by default")
    parser.add_argument("--repeats", type=int, default=REPEATS, help="runs that a figure is the median of")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="in which each row has two runs")
    parser.add_argument("--threads", type=int, default=None, help="instead of those that `ridgeline run` would use")
    parser.add_argument("--only", nargs="+", default=[], help="models by the beginning of their names")
    parser.add_argument("--write", action="store_true", help=f"write {REPORT.relative_to(ROOT)}")
    parser.add_argument("--json", action="store_true", help="one JSON object a row on stdout")
    args = parser.parse_args()
    stories = args.stories or _stories_of(os.environ.get("RIDGELINE_DATA"))
    if stories is None:
        parser.error("give --stories, the folder of stories260K, or name the folder of real data by RIDGELINE_DATA")
    if not 0 < args.repeats <= PAIR * args.rounds:
        parser.error(f"--repeats is {args.repeats}; {args.rounds} rounds have {PAIR * args.rounds} runs")
    chosen = [s for s in subjects(stories) if not args.only or s.name.startswith(tuple(args.only))]
    if not chosen:
        names = ", ".join(s.name for s in subjects(stories))
        parser.error(f"--only {' '.join(args.only)} is the beginning of no model's name: {names}")
    rows = measure(chosen, args.repeats, args.rounds, args.threads)
    errors = [abs(row.error) for row in rows]
    print(f"median absolute error {statistics.median(errors):.1%}, worst {max(errors):.1%}", file=sys.stderr)
    if args.write:
        text = report(rows, args.repeats, args.rounds, "python benchmarks/local_accuracy.py --write")
        REPORT.write_text(text, encoding="utf-8")
    if args.json:
        for row in rows:
            print(json.dumps(asdict(row) | {"error": row.error}))


def _stories_of(data: str | None) -> str | None:
    return str(Path(data, "models", "stories260K")) if data else None


if __name__ == "__main__":
    main()
