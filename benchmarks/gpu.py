"""The engine on a card, beside its roofs, its price and transformers: `make bench-gpu`, the card alone meanwhile.

Shapes of Llama-3.1-8B and Qwen3-0.6B with random weights in bf16, made on the card. Every figure of ours is a step of
the engine, scheduler and sampler included, greedy: the median of several. What is expected of it is the price after
`ridgeline calibrate --device cuda`, whose trials have neither shape. Roofs are probed before each model. Transformers
runs the same shape right after, with SDPA and a static cache, op by op, its logits left on the card.

Each row has --seconds: where one takes longer, or a step fails, that is said, and the next begins.
--write puts the tables into gpu.md, --out the figures into a JSON file, both after every row. --priced FILE measures
nothing: it prices the steps of such a file again, as the card is calibrated now. Where torch sees no card it says so.
"""

import argparse
import gc
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gpu_page import PAGE, Report, Roofs, Row, heard
from gpu_steps import BATCHES, PROMPTS, NotMeasured, Step, Steps, rows_of
from gpu_transformers import theirs
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.models.building import build_to_run
from ridgeline.core.ops.work import Work
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import load_engine
from ridgeline.insight.calibrate.calibration_file import Uncalibrated
from ridgeline.insight.calibrate.local_device import this_accelerator
from ridgeline.insight.calibrate.roofs import peaks, products, streams
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.price.device import Device
from ridgeline.price.price import Price

MODELS = ("llama-3.1-8b", "qwen3-0.6b")
_SHARE = 0.6  # of the card's memory: KV memory for every row, and nothing is ever short
_LIMIT = 60.0  # seconds of a row: the longest took a tenth of it


def roofs(timer: Timer) -> Roofs:
    """Probed now, in about a second."""
    (stream,) = streams(timer, 0.3, (4 << 30,))
    return Roofs(stream.copy, stream.read, peaks(products(timer, 0.6))["bf16"])


def row_of(found: Sequence[Step], step: str, name: str, price: Price, device: Device | None) -> Row:
    """The median of steps that were measured. Raises NotMeasured where those are too few."""
    if len(found) < 3:
        raise NotMeasured(f"{len(found)} steps are too few")
    work, seconds = found[len(found) // 2][0], [each for _, each in found]
    median = statistics.median(seconds)
    blank = Row(name, step, work.tokens, median, spread(seconds) / median, None, None, 0.0, 0.0, work)
    return priced(blank, price, device)


def priced(row: Row, price: Price, device: Device | None) -> Row:
    """A row with what its step costs and, where the card is calibrated, what is expected of it."""
    cost = price.step(row.work)
    expected = None if device is None else price.price_step(device, row.work)
    return replace(
        row,
        expected=None if expected is None else expected.expected,
        host=None if expected is None else expected.host,
        moved=cost.memory_bytes,
        flops=sum(cost.flops.values()),
    )


def spread(seconds: list[float]) -> float:
    """Between the quartiles."""
    low, _, high = statistics.quantiles(seconds, n=4)
    return high - low


def freed() -> None:
    """Give back what a model that is gone had on the card."""
    gc.collect()
    torch.cuda.empty_cache()


def ours(name: str, device: Device | None, limit: float, report: Report) -> None:
    """Every row of a model, by the engine. limit: seconds of each."""
    works: list[Work] = []
    limits = Limits(tokens=2 * PROMPTS[-1], requests=BATCHES[-1])
    settings = EngineSettings(
        device="cuda", memory_share=_SHARE, prefix_cache=False, limits=limits, context=2 * PROMPTS[-1]
    )
    loaded = load_engine(name, settings, dummy_weights=True, on_step=lambda record: works.append(record.work))
    report.say(f"{name}: {loaded.layout.describe(loaded.engine.traits.context)}")
    steps = Steps(loaded, works, limit)
    for step, measure in rows_of(steps):
        steps.begin()
        try:
            report.add(row_of(measure(), step, name, loaded.price, device))
        except NotMeasured as why:
            report.say(f"{name}: {step}: not measured: {why}")
    report.say(f"{name}: memory was short {torch.cuda.memory_stats()['num_alloc_retries']} times")


def beside(name: str, report: Report) -> None:
    """Transformers, where it runs."""
    try:
        for step, seconds in theirs(name):
            report.set_theirs(name, step, seconds)
    except Exception as error:  # another library's: our rows are not to be lost by it
        report.say(f"transformers did not run {name}: {type(error).__name__}: {error}")


def run(models: list[str], compare: bool, limit: float, report: Report) -> None:
    """Every row of these models, each model's before transformers'."""
    timer = Timer(torch.device("cuda"), 1)
    device = calibrated()
    for name in models:
        report.roofs[name] = roofs(timer)
        freed()
        ours(name, device, limit, report)
        freed()
        if compare:
            beside(name, report)
            freed()


def calibrated() -> Device | None:
    """The card as it is calibrated; None, and a line, where it is not."""
    try:
        return this_accelerator()
    except Uncalibrated as error:
        print(error)
        return None


def priced_again(path: Path, report: Report) -> None:
    """The rows of a file, priced as the card is calibrated now."""
    figures, device = json.loads(path.read_text(encoding="utf-8")), calibrated()
    report.roofs = {name: Roofs(**roof) for name, roof in figures["roofs"].items()}
    prices = {name: Price(build_to_run(open_source(name).config)) for name in report.roofs}
    for told in figures["rows"]:
        report.add(priced(Row(**(told | {"work": heard(told["work"])})), prices[told["model"]], device))


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--alone", action="store_true", help="without transformers")
    parser.add_argument("--seconds", type=float, default=_LIMIT, help="of a row at most, %(default)g where left out")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--out", type=Path, help="figures as JSON")
    parser.add_argument("--priced", type=Path, help="such a file, to be priced again")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("torch sees no CUDA device here: nothing was measured")
        return
    report = Report(asked.write, asked.out)
    if asked.priced is None:
        run(asked.models, not asked.alone, asked.seconds, report)
    else:
        priced_again(asked.priced, report)
    print(report.page())


if __name__ == "__main__":
    main()
