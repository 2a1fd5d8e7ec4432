"""Generation with and without a KV cache.

To choose the next token, a model needs the keys and values of every earlier token. Without a cache it computes all of
them again for each token: 1 + 2 + ... + N = N(N+1)/2 positions for N tokens. With a cache it stores them and computes
one position per token: N.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from statistics import median

import torch

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.learn.lab.simple_kv_cache import KVCache
from ridgeline.price.price import Price
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import Bullets, Document, DocumentTable, Paragraph, TableRow, columns

REPEATS, ENOUGH = 5, 30.0
"""The maximum number of timed runs with and without a cache, and the seconds after which no further run starts.

The medians of the runs are reported.
"""


@dataclass(slots=True)
class GenerationRun:
    """A timed generation: its tokens, with the positions computed up to each and the seconds that each took."""

    tokens: list[int]
    """The token ids of a generation: the single prompt token, then the generated ones."""
    positions: list[int] = field(default_factory=list)
    """The total number of positions computed up to each token."""
    took: list[float] = field(default_factory=list)
    """The seconds that each generated token took."""
    since: float = field(default_factory=time.perf_counter)
    """The time at which the latest token was ready, by `time.perf_counter`."""

    def take(self, token: int, ran: int) -> None:
        """Append a token for which `ran` positions were computed."""
        self.tokens.append(token)
        self.positions.append(ran + (self.positions[-1] if self.positions else 0))
        now = time.perf_counter()
        self.took.append(now - self.since)
        self.since = now

    @property
    def seconds(self) -> list[float]:
        """The seconds from the start to each token."""
        return list(accumulate(self.took))


@torch.inference_mode()
def without_cache(model: Model, first: int, count: int) -> GenerationRun:
    """Generate `count` tokens after `first` greedily, computing every position again for each token."""
    run = GenerationRun([first])
    for length in range(1, count + 1):
        nothing_kept = Uncached([StepSegment(length, length)])
        last = torch.tensor([length - 1])
        logits_1V = model(torch.tensor(run.tokens), torch.arange(length), nothing_kept, last)
        run.take(int(logits_1V.argmax()), ran=length)
    return run


@torch.inference_mode()
def with_cache(model: Model, first: int, count: int) -> GenerationRun:
    """Generate `count` tokens after `first` greedily with a KV cache, computing one position per token."""
    run, kept = GenerationRun([first]), KVCache(model.kv_specs, count)
    for position in range(count):
        logits_1V = model(torch.tensor(run.tokens[-1:]), torch.tensor([position]), kept, torch.tensor([0]))
        kept.length += 1
        run.take(int(logits_1V.argmax()), ran=1)
    return run


@dataclass(frozen=True, slots=True)
class CacheComparison:
    """A comparison of generation with and without a cache, in medians over `repeats` runs."""

    without: GenerationRun
    """The run that generated without a KV cache."""
    kept: GenerationRun
    """The run that generated with a KV cache."""
    flops: tuple[float, float]
    """The FLOPs of generating without and with a KV cache, as the engine's cost model counts them."""
    headless: tuple[float, float]
    """The FLOPs of generating without and with a KV cache, those of the head excluded."""
    kept_bytes: float
    """The KV cache bytes per token."""
    repeats: int = 1
    """The number of timed runs behind the medians."""

    @property
    def same(self) -> int:
        """The number of leading tokens that are equal with and without a KV cache."""
        pairs = zip(self.without.tokens[1:], self.kept.tokens[1:], strict=True)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), len(self.kept.positions))


def compare(model: Model, first: int, count: int) -> CacheComparison:
    """Run the experiment: generate with and without a KV cache in turn, and count and time both after a warm-up."""
    with_cache(model, first, min(count, 2))
    without_cache(model, first, min(count, 2))
    begin, runs = time.perf_counter(), list[tuple[GenerationRun, GenerationRun]]()
    while len(runs) < REPEATS and (not runs or time.perf_counter() - begin < ENOUGH):
        runs.append((without_cache(model, first, count), with_cache(model, first, count)))
    without, kept = (_usual(of) for of in zip(*runs, strict=True))
    price, lengths = Price(model), range(1, count + 1)
    whole, new = (_flops(price, [StepSegment(n if anew else 1, n) for n in lengths]) for anew in (True, False))
    kept_bytes = sum(spec.bytes_per_token for spec in model.kv_specs)
    return CacheComparison(without, kept, (whole[0], new[0]), (whole[1], new[1]), kept_bytes, len(runs))


def _usual(runs: Sequence[GenerationRun]) -> GenerationRun:
    """Return one of several equal runs with the median seconds of each token."""
    return replace(runs[0], took=list(map(median, zip(*(run.took for run in runs), strict=True))))


def _flops(price: Price, segments: Sequence[StepSegment]) -> tuple[float, float]:
    """Return the FLOPs of one step per segment, and those without the head, which runs once per token in both ways."""
    works = [Work.of([segment], price.reaches) for segment in segments]
    heads = [priced for priced in price.ops if priced.op.kind == "head"]
    total = sum(price.step(work).total_flops for work in works)
    return total, total - sum(one.cost(work).total_flops * one.count for one in heads for work in works)


# -- the report -------------------------------------------------------------------------------------------------------

_HEAD = ("tokens", "positions without cache", "with", "ratio", "seconds without cache", "with", "ratio")


def document(both: CacheComparison, moved: float) -> Document:
    """Return the document that compares positions and seconds with and without a KV cache.

    `moved` is the result of `changed` for `tales`.
    """
    without, kept = both.without, both.kept
    count = len(kept.positions)
    shown = [n for n in (8 << i for i in range(20)) if n < count] + [count]
    step = kept.seconds[-1] / count  # unit of seconds, so that both measures begin at one
    curves = (
        Series("seconds without a cache", tuple((n, took / step) for n, took in enumerate(without.seconds, 1))),
        Series("seconds with a cache", tuple((n, took / step) for n, took in enumerate(kept.seconds, 1))),
        Series("N(N+1)/2 positions", tuple(enumerate(map(float, without.positions), 1)), "dashed"),
        Series("N positions", tuple(enumerate(map(float, kept.positions), 1)), "dashed"),
    )
    title = "Work until the N-th token, in multiples of one step with the cache"
    return Document(
        "Generation with and without a KV cache",
        (
            Bullets(_words(both, count, moved)),
            DocumentTable(columns(*_HEAD, words=()), tuple(_row(n, without, kept) for n in shown)),
            Chart(title, "tokens", "positions, or steps", curves, log_x=True, log_y=True),
            Paragraph(f"source code of the experiment: {__file__}", "dim"),
        ),
        "How much work does a KV cache save?",
    )


def as_json(both: CacheComparison, moved: float) -> dict[str, object]:
    """Return the figures of generation with and without a KV cache as JSON data.

    `moved` is the result of `changed` for `tales`.
    """
    return {
        "tokens": len(both.kept.positions),
        "same_tokens": both.same,
        "bytes_per_token": both.kept_bytes,
        "runs": both.repeats,
        "keys_and_values_moved": moved,
        "without": _data(both.without, both.flops[0], both.headless[0]),
        "with": _data(both.kept, both.flops[1], both.headless[1]),
    }


def _row(n: int, without: GenerationRun, kept: GenerationRun) -> TableRow:
    cells = [f"{n:,}"]
    for a, b, digits in (
        (without.positions[n - 1], kept.positions[n - 1], ",d"),
        (without.seconds[n - 1], kept.seconds[n - 1], ".3f"),
    ):
        cells += [format(a, digits), format(b, digits), f"{a / b:.4g}"]
    return TableRow(tuple(cells))


def _words(both: CacheComparison, count: int, moved: float) -> tuple[str, ...]:
    without, kept = both.without, both.kept
    fewer, faster = without.positions[-1] / kept.positions[-1], without.seconds[-1] / kept.seconds[-1]
    (anew, new), (bare_anew, bare_new) = both.flops, both.headless
    same = f"All {count:,} tokens are the same with and without a cache."
    if both.same < count:
        same = (
            f"The first {both.same:,} tokens are the same with and without a cache. Then two candidates had nearly "
            "equal logits, and rounding differs between a step of many rows and a step of one; after that the texts "
            "continue from different words."
        )
    still = f"except for rounding, which is {moved:.0e} of the largest value" if moved else "to the last bit"
    timed = "one run" if both.repeats == 1 else f"medians of {both.repeats} runs"
    return (
        f"Without a cache, {count:,} tokens took N(N+1)/2 = {without.positions[-1]:,} positions; with a cache they "
        f"took N = {kept.positions[-1]:,}, which is {fewer:.4g} times fewer. The textbooks' example of 1,000 tokens "
        "gives 500 times.",
        f"The FLOPs differ by a factor of {anew / new:.4g}: {anew / 1e9:.3g} GFLOP against {new / 1e9:.3g}. The head "
        "runs once per token in both cases, for the last position only; without the head the factor is "
        f"{bare_anew / bare_new:.4g}. The rest of the difference is attention, because a single position also attends "
        "to all earlier ones.",
        f"The seconds differ by a factor of {faster:.1f} ({timed}), because a step reads the weights once and launches "
        "its kernels once, whether it has many positions or one.",
        f"The cache costs memory: {both.kept_bytes:,.0f} bytes per token, {both.kept_bytes * count / 1e6:.3g} MB here. "
        "`lab memory` shows how many users fit.",
        same,
        "In fp32, the first half of a text has the same keys and values whether or not the second half follows "
        f"({still}, in `tales`). They never change, so they can be cached.",
    )


def _data(run: GenerationRun, flops: float, headless: float) -> dict[str, object]:
    counted = {"flops": flops, "flops_without_head": headless}
    return {"token_ids": run.tokens[1:], "positions": run.positions, "seconds": run.seconds, **counted}
