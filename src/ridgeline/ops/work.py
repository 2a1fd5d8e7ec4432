"""Work: what one step asks of a model, as sums. An op turns it into a Cost."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat


@dataclass(frozen=True, slots=True)
class Segment:
    """The part of one sequence that a step runs: its last `q_len` positions of `kv_len`, causally masked."""

    q_len: int
    kv_len: int

    def __post_init__(self) -> None:
        assert 0 < self.q_len <= self.kv_len, f"{self} runs positions that the sequence does not have"

    def pairs(self, window: int | None = None) -> int:
        """Query-key pairs that the mask leaves, per head: position p sees min(p + 1, window) keys."""
        first, last = self.kv_len - self.q_len + 1, self.kv_len  # keys that the first and the last query would see
        if window is None or last <= window:
            return (first + last) * self.q_len // 2
        if first >= window:
            return window * self.q_len
        growing = window - first
        return (first + window - 1) * growing // 2 + window * (self.q_len - growing)

    def kv_read(self, window: int | None = None) -> int:
        """Cached positions that some query of the segment sees, itself included."""
        return self.kv_len if window is None else min(self.kv_len, window + self.q_len - 1)


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Attention asked of every layer with one window: query-key pairs a head, and KV positions read.

    alone: those of both that belong to sequences with a single query, which another kernel serves: a pair a position.
    """

    pairs: int
    kv_read: int
    alone: int = 0

    def __add__(self, other: "AttentionWork") -> "AttentionWork":
        return AttentionWork(self.pairs + other.pairs, self.kv_read + other.kv_read, self.alone + other.alone)


@dataclass(frozen=True, slots=True)
class Work:
    """One step, summed over its sequences.

    tokens: positions that run through the layers; each also writes its K and V.
    logit_rows: positions whose logits are wanted.
    sequences: how many sequences they belong to.
    attention: by window class (None is full attention) of the model's layers.
    alone: how many of the sequences run a single position.
    """

    tokens: int
    logit_rows: int
    sequences: int
    attention: Mapping[int | None, AttentionWork] = field(default_factory=dict)
    alone: int = 0

    @classmethod
    def of(
        cls, segments: Iterable[Segment], windows: Iterable[int | None] = (None,), logit_rows: int | None = None
    ) -> "Work":
        """The work of `segments` in a model whose layers have these `windows`; by default one logit row a segment."""
        segments = list(segments)
        alone = [s for s in segments if s.q_len == 1]
        attention = {
            w: AttentionWork(
                sum(s.pairs(w) for s in segments),
                sum(s.kv_read(w) for s in segments),
                sum(s.kv_read(w) for s in alone),
            )
            for w in set(windows)
        }
        rows = len(segments) if logit_rows is None else logit_rows
        return cls(sum(s.q_len for s in segments), rows, len(segments), attention, len(alone))

    @classmethod
    def decode(cls, contexts: Sequence[int], windows: Iterable[int | None] = (None,)) -> "Work":
        """One new position in each of several sequences; `contexts`: the positions each has, the new one included.

        Equal to `of` one segment each, without making them: a simulator asks this for every step.
        """
        count = len(contexts)
        attention = {}
        for window in set(windows):
            seen = sum(contexts) if window is None else sum(map(min, contexts, repeat(window)))
            attention[window] = AttentionWork(seen, seen, seen)
        return cls(count, count, count, attention, count)

    def __add__(self, other: "Work") -> "Work":
        assert self.attention.keys() == other.attention.keys(), "works of different models cannot be added"
        attention = {w: self.attention[w] + other.attention[w] for w in self.attention}
        rows, sequences = self.logit_rows + other.logit_rows, self.sequences + other.sequences
        return Work(self.tokens + other.tokens, rows, sequences, attention, self.alone + other.alone)
