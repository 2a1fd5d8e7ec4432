"""Work: what one step asks of a model, as sums. An op turns it into a Cost.

A step runs rows of several sorts, each a space of its own: tokens of the sequences, the positions whose logits are
wanted, positions of an encoder. Attention is told by reach, which says what keys a query sees.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal

import msgspec
from typing_extensions import override

RowAxis = str
"""What rows are rows of: TOKENS, LOGITS, ENCODER, or a name that a model gives (latents of a denoiser)."""

TOKENS: RowAxis = "tokens"
LOGITS: RowAxis = "logits"
ENCODER: RowAxis = "encoder"
_ADAPTER = "adapter "  # then its number


def adapter_axis(number: int) -> RowAxis:
    """Rows for which an adapter is asked, counted from 1: some of the tokens' rows."""
    return f"{_ADAPTER}{number}"


MAX_VERIFY_TOKENS = 8
"""Most queries of a sequence for which its attention is still bound by reading keys, as in a decode step: the positions
that a speculative step verifies."""


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """Which keys a query sees.

    causal: itself and all before it. window: of these the last `size`. chunked: of these the ones in its own chunk of
    `size` positions (Llama 4). full: all of its sequence. local: of these the ones at most `size` away, on either side
    (ModernBERT). cross: all of the encoder's. recurrent: all before it, through a state; those of the step itself that
    lie within `size` rows in pairs. space: the rows that ask. keys: of cross, the rows that are seen.
    """

    kind: Literal["causal", "window", "chunked", "full", "local", "cross", "recurrent"]
    size: int = 0
    space: RowAxis = TOKENS
    keys: RowAxis = ENCODER

    def __post_init__(self) -> None:
        sized = self.kind in ("window", "chunked", "local", "recurrent")
        assert (self.size > 0) == sized, f"{self} has a size that its kind does not"

    @property
    def both_ways(self) -> bool:
        """Whether a position sees later ones, so that a sequence runs in one step and keeps nothing."""
        return self.kind in ("full", "local")

    @override
    def __str__(self) -> str:
        return f"{self.kind} {self.size}" if self.size else self.kind


CAUSAL = AttentionPattern("causal")
FULL = AttentionPattern("full")
ENCODER_FULL = AttentionPattern("full", space=ENCODER)
CROSS = AttentionPattern("cross")
RECURRENT = AttentionPattern("recurrent", 64)
"""Of all recurrent layers, in chunks as long as kernels at hand have them (flash-linear-attention, Mamba's halved)."""


def windowed(size: int | None) -> AttentionPattern:
    """The reach of a sliding window; None for no window."""
    return CAUSAL if size is None else AttentionPattern("window", size)


@dataclass(frozen=True, slots=True)
class StepSegment:
    """The part of one sequence that a step runs: its last `q_len` positions of `kv_len`.

    encoded: positions of the encoder that the sequence looks at. encodes: whether this step runs them. inputs: as how
    many, of equal length.
    """

    q_len: int
    kv_len: int
    encoded: int = 0
    encodes: bool = False
    inputs: int = 1

    def __post_init__(self) -> None:
        assert 0 < self.q_len <= self.kv_len, f"{self} runs positions that the sequence does not have"

    def attention(self, reach: AttentionPattern) -> "AttentionSum":
        """What attention of this reach has to do for it in one layer."""
        if reach.space == ENCODER:
            rows = self.encoded if self.encodes else 0
            return AttentionSum(self.inputs if rows else 0, rows, rows * rows // self.inputs, rows, rows)
        if reach.kind == "cross":
            written = self.encoded if self.encodes else 0
            return AttentionSum(1, self.q_len, self.q_len * self.encoded, self.encoded, written)
        written = 1 if reach.kind == "recurrent" else self.q_len
        return AttentionSum(1, self.q_len, self.pairs(reach), self.keys(reach), written)

    def pairs(self, reach: AttentionPattern = CAUSAL) -> int:
        """Query-key pairs among its own positions that the reach leaves, per head."""
        start, end, size = self.kv_len - self.q_len, self.kv_len, reach.size
        match reach.kind:
            case "full":
                return self.q_len * self.kv_len
            case "local":
                assert self.q_len == self.kv_len, "a sequence that looks both ways runs whole"
                near = min(size, end - 1)
                return end * (2 * near + 1) - near * (near + 1)
            case "window":
                return (
                    _triangle(min(end, size)) - _triangle(min(start, size)) + size * (max(end, size) - max(start, size))
                )
            case "chunked":
                return _sawtooth(end, size) - _sawtooth(start, size)
            case "recurrent":
                return _sawtooth(self.q_len, size)
            case _:
                return _triangle(end) - _triangle(start)

    def keys(self, reach: AttentionPattern = CAUSAL) -> int:
        """Positions of its own that some query of the segment sees, itself included; a state, which is all zeros before
        the first position, stands for all before.
        """
        start = self.kv_len - self.q_len
        match reach.kind:
            case "window":
                return min(self.kv_len, reach.size + self.q_len - 1)
            case "chunked":
                return self.kv_len - start // reach.size * reach.size
            case "recurrent":
                return int(start > 0)
            case _:
                return self.kv_len


def _triangle(n: int) -> int:
    """1 + 2 + ... + n: the pairs of the first n positions."""
    return n * (n + 1) // 2


def _sawtooth(n: int, size: int) -> int:
    """The pairs of the first n positions where each sees only its own chunk."""
    return n // size * _triangle(size) + _triangle(n % size)


class AttentionSum(msgspec.Struct, frozen=True, gc=False):
    """Attention in one layer, summed over sequences.

    sequences: how many ask. queries: their rows. pairs: of a query and a key that it sees, per head. keys: positions
    whose keys and values are read, once a sequence. written: positions whose keys and values are new. Of a recurrence,
    keys are states that are read, and written those that are written.
    """

    sequences: int = 0
    queries: int = 0
    pairs: int = 0
    keys: int = 0
    written: int = 0

    @classmethod
    def of(cls, parts: Sequence["AttentionSum"]) -> "AttentionSum":
        """The sum of several: of all at once, as a simulator asks for thousands of steps."""
        if len(parts) <= 1:
            return parts[0] if parts else _NOTHING
        return cls(
            sum([part.sequences for part in parts]),
            sum([part.queries for part in parts]),
            sum([part.pairs for part in parts]),
            sum([part.keys for part in parts]),
            sum([part.written for part in parts]),
        )

    def __add__(self, other: "AttentionSum") -> "AttentionSum":
        return AttentionSum(
            self.sequences + other.sequences,
            self.queries + other.queries,
            self.pairs + other.pairs,
            self.keys + other.keys,
            self.written + other.written,
        )

    def __mul__(self, count: int) -> "AttentionSum":
        return AttentionSum(
            self.sequences * count, self.queries * count, self.pairs * count, self.keys * count, self.written * count
        )


_NOTHING = AttentionSum()


class AttentionWork(msgspec.Struct, frozen=True, gc=False):
    """Attention of one reach, by how many queries a sequence has: one, a few (2 to FEW), or many. Each class is served
    by a kernel of its own.
    """

    one: AttentionSum = _NOTHING
    few: AttentionSum = _NOTHING
    many: AttentionSum = _NOTHING

    @classmethod
    def of(cls, each: Iterable[AttentionSum]) -> "AttentionWork":
        """The sum over single sequences."""
        classes: tuple[list[AttentionSum], ...] = ([], [], [])
        for one in each:
            if one.queries or one.written:
                classes[0 if one.queries <= 1 else 1 if one.queries <= MAX_VERIFY_TOKENS else 2].append(one)
        return cls(*map(AttentionSum.of, classes))

    @property
    def total(self) -> AttentionSum:
        """All classes together."""
        if self.few is _NOTHING and self.many is _NOTHING:  # a decode step, of which a simulator prices thousands
            return self.one
        return self.one + self.few + self.many

    def __add__(self, other: "AttentionWork") -> "AttentionWork":
        return AttentionWork(self.one + other.one, self.few + other.few, self.many + other.many)

    def __mul__(self, count: int) -> "AttentionWork":
        return AttentionWork(self.one * count, self.few * count, self.many * count)


@dataclass(frozen=True, slots=True)
class Work:
    """One step, summed over its sequences.

    rows: by space, how many rows run; a space that is not there has none. sequences: how many sequences they belong to.
    attention: by the reaches of the model's layers.
    """

    rows: Mapping[RowAxis, int]
    sequences: int
    attention: Mapping[AttentionPattern, AttentionWork] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Positions of sequences that run through the layers."""
        return self.rows.get(TOKENS, 0)

    @property
    def logit_rows(self) -> int:
        """Positions whose logits are wanted."""
        return self.rows.get(LOGITS, 0)

    @property
    def decodes(self) -> bool:
        """Whether each sequence runs one position, of which a token is sampled, and no encoder runs."""
        return self.tokens == self.logit_rows == self.sequences and not self.rows.get(ENCODER)

    @property
    def is_verify(self) -> bool:
        """Whether a token is sampled of every position that runs, one or several of each sequence, and no encoder
        runs.
        """
        return self.tokens == self.logit_rows and not self.rows.get(ENCODER)

    @property
    def adapted(self) -> bool:
        """Whether an adapter is asked for some of its rows."""
        return any(space.startswith(_ADAPTER) for space in self.rows)

    @property
    def shape(self) -> tuple[tuple[RowAxis, int], ...]:
        """All that ops which do not read the context depend on."""
        return tuple(self.rows.items())

    @classmethod
    def of(
        cls,
        segments: Iterable[StepSegment],
        reaches: Iterable[AttentionPattern] = (CAUSAL,),
        logit_rows: int | None = None,
    ) -> "Work":
        """The work of `segments` in a model whose layers have these `reaches`; by default one logit row a segment."""
        segments = list(segments)
        attention = {reach: AttentionWork.of(s.attention(reach) for s in segments) for reach in set(reaches)}
        rows = {TOKENS: sum(s.q_len for s in segments), LOGITS: len(segments) if logit_rows is None else logit_rows}
        encoder = sum(s.encoded for s in segments if s.encodes)
        return cls(rows | ({ENCODER: encoder} if encoder else {}), len(segments), attention)

    @classmethod
    def whole(cls, lengths: Mapping[RowAxis, Sequence[int]]) -> "Work":
        """Sequences that run whole, whose positions all see each other, such as a denoiser's: by space, the rows of
        each.
        """
        attention = {
            AttentionPattern("full", space=space): AttentionWork.of(AttentionSum(1, n, n * n, n, n) for n in each)
            for space, each in lengths.items()
        }
        return cls({space: sum(each) for space, each in lengths.items()}, max(map(len, lengths.values())), attention)

    @classmethod
    def decode(
        cls, contexts: Sequence[int], reaches: Iterable[AttentionPattern] = (CAUSAL,), encoded: Sequence[int] = ()
    ) -> "Work":
        """One new position in each of several sequences; `contexts`: the positions each has, the new one included.
        encoded: the encoder's positions that each looks at.

        Equal to `of` one segment each, without making them: a simulator asks this for every step.
        """
        count = len(contexts)
        attention = {}
        for reach in set(reaches):
            if reach.space == ENCODER:
                attention[reach] = AttentionWork()
                continue
            if reach.kind == "recurrent":
                known = sum(context > 1 for context in contexts)
                attention[reach] = AttentionWork(AttentionSum(count, count, count, known, count))
                continue
            seen = sum(encoded) if reach.kind == "cross" else _decode_keys(contexts, reach)
            attention[reach] = AttentionWork(
                AttentionSum(count, count, seen, seen, 0 if reach.kind == "cross" else count)
            )
        return cls({TOKENS: count, LOGITS: count}, count, attention)

    def __add__(self, other: "Work") -> "Work":
        assert self.attention.keys() == other.attention.keys(), "works of different models cannot be added"
        attention = {reach: self.attention[reach] + other.attention[reach] for reach in self.attention}
        rows = {space: self.rows.get(space, 0) + other.rows.get(space, 0) for space in {**self.rows, **other.rows}}
        return Work(rows, self.sequences + other.sequences, attention)

    def __mul__(self, count: int) -> "Work":
        """The work of `count` steps like this one in one."""
        rows = {space: rows * count for space, rows in self.rows.items()}
        return Work(
            rows, self.sequences * count, {reach: attention * count for reach, attention in self.attention.items()}
        )


def _decode_keys(contexts: Sequence[int], reach: AttentionPattern) -> int:
    """Keys that the last position of each of these contexts sees."""
    if reach.kind == "window":
        return sum(map(min, contexts, repeat(reach.size)))
    if reach.kind == "chunked":
        return sum((context - 1) % reach.size + 1 for context in contexts)
    return sum(contexts)
