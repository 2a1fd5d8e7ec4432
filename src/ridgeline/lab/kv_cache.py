"""Generation with and without a KV cache.

To choose the next token a model needs the keys and values of every token before it. Without a cache it computes them
all again, each time: 1 + 2 + ... + N = N(N+1)/2 positions for N tokens. With one it keeps them and computes a single
position a token: N.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ridgeline.document.charts import Chart, Series
from ridgeline.document.page import Bullets, Document, Paragraph, Row, Table, columns
from ridgeline.models.model import Model
from ridgeline.ops.attend import attend_segment
from ridgeline.ops.attention import Attention, Uncached
from ridgeline.ops.kv import Kept, KVSpec
from ridgeline.ops.latent import LatentAttention
from ridgeline.ops.recurrence import Recurrence
from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.price import Price


class KVCache:
    """The cache: for each layer the keys and values of all positions so far, or its state. That is all that it is."""

    def __init__(self, specs: Sequence[Kept], most: int) -> None:
        keeping = {layer: spec for layer, spec in enumerate(specs) if isinstance(spec, KVSpec)}
        self.keys = {n: torch.zeros(spec.heads, most, spec.k_dim, dtype=spec.dtype) for n, spec in keeping.items()}
        self.values = {n: torch.zeros(spec.heads, most, spec.v_dim, dtype=spec.dtype) for n, spec in keeping.items()}
        self.states: dict[int, Tensor] = {}
        self.length = 0  # positions that every layer has

    def attend(self, op: Attention, q_THD: Tensor, k_TKD: Tensor | None, v_TKD: Tensor | None) -> Tensor:
        """Keep what is new and attend to all that is kept (T rows, H heads, K kv heads, D head dim)."""
        assert k_TKD is not None
        assert v_TKD is not None, "a cache of keys and values"
        end, layer = self.length + len(k_TKD), op.layer
        self.keys[layer][:, self.length : end] = k_TKD.transpose(0, 1)
        self.values[layer][:, self.length : end] = v_TKD.transpose(0, 1)
        return attend_segment(op, q_THD, self.keys[layer][:, :end], self.values[layer][:, :end])

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """The same of a latent for all heads, which stands for keys and values."""
        end, layer = self.length + len(kept_T1E), op.layer
        self.keys[layer][:, self.length : end] = kept_T1E.transpose(0, 1)
        return op.over_segment(q_THD, self.keys[layer][:, :end], 0, expanded=False)

    def recur(self, op: Recurrence, inputs: tuple[Tensor, ...]) -> Tensor:
        """Move a state on, which is all zeros before the first position."""
        state_1N = self.states.get(op.layer, torch.zeros(1, op.spec.numbers, dtype=op.spec.dtype))
        out_1TW, self.states[op.layer] = op.advance(state_1N, *(x[None] for x in inputs))
        return out_1TW[0]


@dataclass(slots=True)
class Run:
    """A generation: the tokens, and after each the positions that ran and the seconds that passed so far."""

    tokens: list[int]
    positions: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    begin: float = field(default_factory=time.perf_counter)

    def take(self, token: int, ran: int) -> None:
        """Another token, for which so many positions ran."""
        self.tokens.append(token)
        self.positions.append(ran + (self.positions[-1] if self.positions else 0))
        self.seconds.append(time.perf_counter() - self.begin)


@torch.inference_mode()
def without_cache(model: Model, first: int, count: int) -> Run:
    """`count` tokens after `first`, each the likeliest; every position runs again for each of them."""
    run = Run([first])
    for length in range(1, count + 1):
        nothing_kept = Uncached([Segment(length, length)])
        last = torch.tensor([length - 1])
        logits_1V = model(torch.tensor(run.tokens), torch.arange(length), nothing_kept, last)
        run.take(int(logits_1V.argmax()), ran=length)
    return run


@torch.inference_mode()
def with_cache(model: Model, first: int, count: int) -> Run:
    """The same, with the keys and values kept: one position a token."""
    run, kept = Run([first]), KVCache(model.kv_specs, count)
    for position in range(count):
        logits_1V = model(torch.tensor(run.tokens[-1:]), torch.tensor([position]), kept, torch.tensor([0]))
        kept.length += 1
        run.take(int(logits_1V.argmax()), ran=1)
    return run


@dataclass(frozen=True, slots=True)
class Comparison:
    """Both ways. flops: of each way, by the price that the engine puts on it. kept_bytes: of one token."""

    without: Run
    kept: Run
    flops_without: float
    flops_kept: float
    kept_bytes: float

    @property
    def same(self) -> int:
        """How many tokens, from the first on, are the same both ways."""
        pairs = zip(self.without.tokens[1:], self.kept.tokens[1:], strict=True)
        return next((n for n, (a, b) in enumerate(pairs) if a != b), len(self.kept.positions))


def compare(model: Model, first: int, count: int) -> Comparison:
    """The experiment: generate both ways, count and time."""
    with_cache(model, first, 2)  # what a first call costs is no part of it
    kept, without = with_cache(model, first, count), without_cache(model, first, count)
    price, lengths = Price(model), range(1, count + 1)
    return Comparison(
        without,
        kept,
        sum(price.step(Work.of([Segment(n, n)], model.reaches)).total_flops for n in lengths),
        sum(price.step(Work.of([Segment(1, n)], model.reaches)).total_flops for n in lengths),
        sum(spec.bytes_per_token for spec in model.kv_specs),
    )


# -- what it says -----------------------------------------------------------------------------------------------------

_HEAD = ("tokens", "positions without", "with", "ratio", "seconds without", "with", "ratio")


def document(both: Comparison) -> Document:
    """Positions and seconds at some lengths, and the curves of the seconds."""
    without, kept = both.without, both.kept
    count = len(kept.positions)
    shown = [n for n in (8 << i for i in range(20)) if n < count] + [count]
    curves = (
        Series("without a cache", tuple(enumerate(without.seconds, 1))),
        Series("with a cache", tuple(enumerate(kept.seconds, 1))),
    )
    return Document(
        "Generation with and without a KV cache",
        (
            Bullets(_words(both, count)),
            Table(columns(*_HEAD, words=()), tuple(_row(n, without, kept) for n in shown)),
            Chart("Seconds until the n-th token", "tokens", "seconds", curves, log_x=True, log_y=True),
            Paragraph(f"the experiment in code: {__file__}", "dim"),
        ),
        "How much work does it save to keep keys and values?",
    )


def as_json(both: Comparison) -> dict[str, object]:
    """The figures of both ways."""
    return {
        "tokens": len(both.kept.positions),
        "same_tokens": both.same,
        "bytes_per_token": both.kept_bytes,
        "without": _data(both.without, both.flops_without),
        "with": _data(both.kept, both.flops_kept),
    }


def _row(n: int, without: Run, kept: Run) -> Row:
    cells = [f"{n:,}"]
    for a, b, digits in (
        (without.positions[n - 1], kept.positions[n - 1], ",d"),
        (without.seconds[n - 1], kept.seconds[n - 1], ".3f"),
    ):
        cells += [format(a, digits), format(b, digits), f"{a / b:.4g}"]
    return Row(tuple(cells))


def _words(both: Comparison, count: int) -> tuple[str, ...]:
    without, kept = both.without, both.kept
    fewer, faster = without.positions[-1] / kept.positions[-1], without.seconds[-1] / kept.seconds[-1]
    ratio = both.flops_without / both.flops_kept
    same = f"All {count:,} tokens are the same both ways."
    if both.same < count:
        same = (
            f"The first {both.same:,} tokens are the same both ways. Then two candidates were nearly equal, and a row "
            "among many is rounded otherwise than a lone one; after that the texts go on from different words."
        )
    return (
        f"Without a cache {count:,} tokens took N(N+1)/2 = {without.positions[-1]:,} positions, with one "
        f"N = {kept.positions[-1]:,}: {fewer:.4g} times fewer. The texts' 1,000 tokens would make it 500 times.",
        f"In seconds it is {faster:.1f} times, not {fewer:.4g}: a step of many positions reads the weights once and "
        "pays once for what every step costs, so that each of its positions is cheaper than a lone one.",
        f"In arithmetic it is {ratio:.4g} times: {both.flops_without / 1e9:.3g} GFLOP against "
        f"{both.flops_kept / 1e9:.3g}. Every position still attends to all before it, with a cache or without.",
        f"What it costs is memory: {both.kept_bytes:,.0f} bytes for each token that is kept, "
        f"{both.kept_bytes * count / 1e6:.3g} MB here. `lab memory` says how many users that leaves room for.",
        same,
    )


def _data(run: Run, flops: float) -> dict[str, object]:
    return {"token_ids": run.tokens[1:], "positions": run.positions, "seconds": run.seconds, "flops": flops}
