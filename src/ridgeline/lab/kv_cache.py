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

from ridgeline.models.model import Model
from ridgeline.ops.attention import Uncached, attend_causal
from ridgeline.ops.kv import KVSpec
from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.price import Price


class KVCache:
    """The cache: for each layer the keys and values of all positions so far. That is all that it is."""

    def __init__(self, specs: Sequence[KVSpec], most: int) -> None:
        self.keys = [torch.zeros(spec.heads, most, spec.k_dim, dtype=spec.dtype) for spec in specs]
        self.values = [torch.zeros(spec.heads, most, spec.v_dim, dtype=spec.dtype) for spec in specs]
        self.length = 0  # positions that every layer has

    def attend(self, layer: int, q_THD: Tensor, k_TKD: Tensor, v_TKD: Tensor, window: int | None) -> Tensor:
        """Keep what is new and attend to all that is kept (T rows, H heads, K kv heads, D head dim)."""
        end = self.length + len(k_TKD)
        self.keys[layer][:, self.length : end] = k_TKD.transpose(0, 1)
        self.values[layer][:, self.length : end] = v_TKD.transpose(0, 1)
        return attend_causal(q_THD, self.keys[layer][:, :end], self.values[layer][:, :end], window)


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
        sum(price.step(Work.of([Segment(n, n)], model.windows)).total_flops for n in lengths),
        sum(price.step(Work.of([Segment(1, n)], model.windows)).total_flops for n in lengths),
        sum(spec.bytes_per_token for spec in model.kv_specs),
    )
