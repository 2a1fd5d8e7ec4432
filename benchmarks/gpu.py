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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import date
from pathlib import Path
from typing import Any

import torch

from ridgeline.calibrate.file import Uncalibrated
from ridgeline.calibrate.roofs import peaks, products, streams
from ridgeline.calibrate.this import this_accelerator
from ridgeline.calibrate.timer import Timer
from ridgeline.checkpoint.source import open_source
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import EngineSettings, Loaded, load_engine
from ridgeline.models.building import build_to_run
from ridgeline.ops.work import AttentionSum, AttentionWork, Reach, Work
from ridgeline.roofline.device import Device
from ridgeline.roofline.price import Price

MODELS = ("llama-3.1-8b", "qwen3-0.6b")
BATCHES, CONTEXT = (1, 4, 16, 64, 256), 512
PROMPTS = (128, 512, 2048, 8192)
MIXED = (32, 1024)  # sequences that decode, and the prompt that comes
STEPS, REPEATS = 24, 5
_SHARE = 0.6  # of the card's memory: KV memory for every row, and nothing is ever short
_CALLS = 7  # of transformers, the first two to get ready
_LIMIT = 60.0  # seconds of a row: the longest took a tenth of it
PAGE = Path(__file__).with_name("gpu.md")


@dataclass(frozen=True, slots=True)
class Row:
    """A step of a model. seconds: measured, the median. spread: between the quartiles, over the median. expected: its
    price; None where the card is not calibrated. host: the part of that which no op has. moved: bytes of weights, keys
    and values. flops: of the step. work: what it asked. theirs: transformers' seconds, None where it was not run."""

    model: str
    step: str
    tokens: int
    seconds: float
    spread: float
    expected: float | None
    host: float | None
    moved: float
    flops: float
    work: Work
    theirs: float | None = None


@dataclass(frozen=True, slots=True)
class Roofs:
    """What the card does now: bytes a second, read plus written, of a copy; of reading; FLOP/s in bf16."""

    copy: float
    read: float
    bf16: float


def roofs(timer: Timer) -> Roofs:
    """Probed now, in about a second."""
    (stream,) = streams(timer, 0.3, (4 << 30,))
    return Roofs(stream.copy, stream.read, peaks(products(timer, 0.6))["bf16"])


Step = tuple[Work, float]
"""What a step asked, and its seconds."""


class NotMeasured(Exception):
    """A row whose steps failed, or took longer than it may."""


class Steps:
    """Requests of a loaded model, and the steps that they take."""

    def __init__(self, loaded: Loaded, works: list[Work], limit: float) -> None:
        """works: where each step's is put. limit: seconds of a row."""
        self.engine, self._works, self._limit = loaded.engine, works, limit
        self.begin()

    def begin(self) -> None:
        """A row begins, without requests of the one before."""
        for request in list(self.engine.requests.values()):
            self.engine.abort(request.group)
        self._end = time.perf_counter() + self._limit

    def add(self, length: int, tokens: int) -> None:
        """A prompt of so many tokens, and how many it is to be answered with."""
        params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=tokens)
        self.engine.add([(position * 7 + 1) % self.engine.vocabulary for position in range(length)], params)

    def run(self) -> Iterator[Step]:
        """Steps until nothing is left to do. Raises NotMeasured."""
        engine, before = self.engine, self.engine.stats.preemptions
        while engine.has_work:
            start = time.perf_counter()
            events = engine.step()
            seconds = time.perf_counter() - start
            failed = [event.error for event in events if event.error is not None]
            if failed:
                raise NotMeasured(f"a request failed: {failed[0]}")
            if engine.stats.preemptions > before:  # memory is never short here: the engine has said what failed
                raise NotMeasured("a step failed")
            yield self._works[-1], seconds
            if time.perf_counter() > self._end:
                stats = engine.stats
                raise NotMeasured(
                    f"{self._limit:g} s were not enough: {stats.running} requests running, {stats.waiting} waiting, "
                    f"the last step of {self._works[-1].tokens} tokens took {seconds:.3f} s"
                )

    def decode(self, batch: int) -> list[Step]:
        """Of so many sequences, each CONTEXT long in the middle of them. The first capture graphs."""
        for _ in range(batch):
            self.add(CONTEXT - STEPS // 2, STEPS)
        return [each for each in self.run() if each[0].decodes and each[0].sequences == batch][3:]

    def prefill(self, length: int) -> list[Step]:
        """Of a prompt alone. The first compiles kernels."""
        found: list[Step] = []
        for _ in range(REPEATS + 1):
            self.add(length, 1)
            found += [each for each in self.run() if each[0].tokens == length]
        return found[1:]

    def mixed(self, running: int, prompt: int) -> list[Step]:
        """Of sequences that decode while a prompt comes."""
        for _ in range(running):
            self.add(CONTEXT - REPEATS, 3 * REPEATS)
        found: list[Step] = []
        for each in self.run():
            if each[0].tokens == running + prompt:
                found.append(each)
            if each[0].sequences >= running and len(found) <= REPEATS:
                self.add(prompt, 1)
        return found[1:]


def rows_of(steps: Steps) -> Iterator[tuple[str, Callable[[], list[Step]]]]:
    """The rows of a model: decode alone, prefill alone, and both in one step; each with what takes its steps."""
    for batch in BATCHES:
        yield f"decode {batch} x 1 of {CONTEXT}", lambda batch=batch: steps.decode(batch)  # type: ignore[misc]
    for length in PROMPTS:
        yield f"prefill {length}", lambda length=length: steps.prefill(length)  # type: ignore[misc]
    running, prompt = MIXED
    yield f"mixed: decode {running} of {CONTEXT}, prefill {prompt}", lambda: steps.mixed(running, prompt)


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
    expected = None if device is None else price.on(device, row.work)
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


class Transformers:
    """The same shape in transformers, op by op, with SDPA and a static cache."""

    def __init__(self, name: str) -> None:
        from transformers import AutoConfig, AutoModelForCausalLM

        values = dict(open_source(name).config.values)
        self.config = AutoConfig.for_model(values.pop("model_type"), **values)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(self.config, dtype=torch.bfloat16, attn_implementation="sdpa")
        model = model.to_empty(device="cuda").eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        for module in model.modules():  # what was computed on meta is nothing
            if hasattr(module, "inv_freq") and hasattr(module, "rope_init_fn"):
                module.inv_freq, _ = module.rope_init_fn(self.config, torch.device("cuda"))
        self.model = model

    @torch.inference_mode()
    def seconds(self, batch: int, queries: int, past: int) -> float:
        """Of a forward: `queries` positions of each sequence after `past` others, and after those of the calls before;
        where there are no others, each call begins anew."""
        from transformers import StaticCache

        cache = StaticCache(config=self.config, max_cache_len=past + queries * (_CALLS if past else 1))
        ids = torch.randint(0, self.config.vocab_size, (batch, max(past, queries)), device="cuda")

        def call(count: int) -> None:
            self.model(ids[:, :count], past_key_values=cache, use_cache=True, logits_to_keep=1)

        if past:
            call(past)
        return timed(lambda: call(queries), (lambda: None) if past else cache.reset)


def timed(call: Callable[[], object], before: Callable[[], object]) -> float:
    """Median seconds of a call that the card is waited for, without what is done before each."""
    seconds = []
    for _ in range(_CALLS):
        before()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[2:])


def theirs(name: str) -> Iterator[tuple[str, float]]:
    """Transformers' seconds by our names of the steps, of those that say the most."""
    model = Transformers(name)
    for batch in (1, 16, 64):
        yield f"decode {batch} x 1 of {CONTEXT}", model.seconds(batch, 1, CONTEXT - 1)
    for length in (512, 2048):
        yield f"prefill {length}", model.seconds(1, length, 0)


def tables(rows: list[Row], around: dict[str, Roofs], title: str, command: str) -> str:
    """The page: roofs, then a line for each step."""
    lines = [f"# On a card: {title}", "", f"{date.today()}, torch {torch.__version__}; `{command}`.", ""]
    heads = "step|ms|spread|expected ms|off|GB/s of weights and KV|of copy|TFLOP/s|of bf16|transformers ms"
    for name, roof in around.items():
        lines += [
            f"## {name}",
            "",
            f"Probed beside: copy {roof.copy / 1e12:.2f} TB/s (read plus written), read {roof.read / 1e12:.2f} TB/s, "
            f"bf16 {roof.bf16 / 1e12:.0f} TFLOP/s.",
            "",
            f"|{heads}|",
            "|---|" + "---:|" * heads.count("|"),
        ]
        for row in rows:
            if row.model == name:
                lines.append("|" + "|".join(_cells(row, roof)) + "|")
        lines.append("")
    priced = [row for row in rows if row.expected is not None]
    if priced:
        near = sum(abs(row.expected / row.seconds - 1) <= 0.1 for row in priced if row.expected)
        lines += [f"Predicted within 10 %: {near} of {len(priced)}.", ""]
    return "\n".join(lines)


def _cells(row: Row, roof: Roofs) -> list[str]:
    bandwidth, rate = row.moved / row.seconds, row.flops / row.seconds
    expected = ["", ""] if row.expected is None else [
        f"{row.expected * 1e3:.3f}", f"{row.expected / row.seconds - 1:+.1%}"
    ]  # fmt: skip
    return [
        row.step, f"{row.seconds * 1e3:.3f}", f"{row.spread:.1%}", *expected, f"{bandwidth / 1e9:.0f}",
        f"{bandwidth / roof.copy:.1%}", f"{rate / 1e12:.1f}", f"{rate / roof.bf16:.1%}",
        "" if row.theirs is None else f"{row.theirs * 1e3:.3f}",
    ]  # fmt: skip


def freed() -> None:
    """Give back what a model that is gone had on the card."""
    gc.collect()
    torch.cuda.empty_cache()


class Report:
    """What was measured so far, on the screen and in files."""

    def __init__(self, page: bool, out: Path | None) -> None:
        """page: whether gpu.md is written. out: the figures as JSON."""
        self.rows: list[Row] = []
        self.roofs: dict[str, Roofs] = {}
        self._page, self._out, self._began = page, out, time.perf_counter()

    def say(self, text: str) -> None:
        """A line, with the seconds since the beginning."""
        print(f"{time.perf_counter() - self._began:5.0f} s  {text}", flush=True)

    def add(self, row: Row) -> None:
        """Say a row, and keep it in the files."""
        told = "" if row.expected is None else f", expected {row.expected * 1e3:.3f}"
        self.say(f"{row.model}: {row.step}: {row.seconds * 1e3:.3f} ms{told}")
        self.rows.append(row)
        self.write()

    def set_theirs(self, name: str, step: str, seconds: float) -> None:
        """Transformers' seconds of a step that has a row."""
        self.say(f"{name}: {step}: transformers {seconds * 1e3:.3f} ms")
        same = (name, step)
        self.rows = [replace(row, theirs=seconds) if (row.model, row.step) == same else row for row in self.rows]
        self.write()

    def page(self) -> str:
        """The tables."""
        return tables(self.rows, self.roofs, torch.cuda.get_device_name(), "make bench-gpu")

    def write(self) -> None:
        """Both files, as far as they are wanted."""
        if self._page:
            PAGE.write_text(self.page(), encoding="utf-8")
        if self._out is not None:
            figures: dict[str, Any] = {
                "card": torch.cuda.get_device_name(),
                "roofs": {name: asdict(roof) for name, roof in self.roofs.items()},
                "rows": [
                    {each.name: getattr(row, each.name) for each in fields(row)} | {"work": _told(row.work)}
                    for row in self.rows
                ],
            }
            self._out.write_text(json.dumps(figures, indent=1), encoding="utf-8")


def _told(work: Work) -> dict[str, Any]:
    """What a step asked as JSON has it."""
    attention = [[asdict(reach), asdict(own)] for reach, own in work.attention.items()]
    return {"rows": dict(work.rows), "sequences": work.sequences, "attention": attention}


def _heard(told: dict[str, Any]) -> Work:
    """The opposite."""
    attention = {
        Reach(**reach): AttentionWork(**{name: AttentionSum(**each) for name, each in own.items()})
        for reach, own in told["attention"]
    }
    return Work(told["rows"], told["sequences"], attention)


def ours(name: str, device: Device | None, limit: float, report: Report) -> None:
    """Every row of a model, by the engine. limit: seconds of each."""
    works: list[Work] = []
    limits = Limits(tokens=2 * PROMPTS[-1], requests=BATCHES[-1])
    settings = EngineSettings(
        device="cuda", memory_share=_SHARE, prefix_cache=False, limits=limits, context=2 * PROMPTS[-1]
    )
    loaded = load_engine(name, settings, dummy_weights=True, on_step=lambda record: works.append(record.work))
    report.say(f"{name}: {loaded.layout.describe(loaded.engine.context)}")
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
        report.add(priced(Row(**(told | {"work": _heard(told["work"])})), prices[told["model"]], device))


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
