"""The size of a step, as sums over its sequences, from which ops compute their cost.

A step has rows on several axes: tokens of the sequences, positions whose logits are needed, positions of an encoder.
Queries, query-key pairs and keys are summed separately for each attention pattern, which defines the keys that a query
sees.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Literal

import msgspec
from typing_extensions import override

from ridgeline.util.json_data import json_name

RowAxis = str
"""The kind of rows that a step has: TOKENS, LOGITS, ENCODER, or a kind that a model defines (a denoiser's latents)."""

TOKENS: RowAxis = "tokens"
LOGITS: RowAxis = "logits"
ENCODER: RowAxis = "encoder"
_ADAPTER = "adapter "
"""The prefix of the name of a LoRA adapter's kind of rows, followed by the adapter's number."""


def adapter_axis(number: int) -> RowAxis:
    """Return the kind of rows (row axis) of the tokens that use a LoRA adapter; `number` counts adapters from 1."""
    return f"{_ADAPTER}{number}"


MAX_VERIFY_TOKENS = 8
"""The most queries per sequence for which attention is still bound by reading keys, as in a decode step.

A speculative step verifies at most this many positions per sequence with such a kernel.
"""


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """The keys that a query sees: the kind of an attention mask and its size.

    The kinds:
    - causal: the query's own position and all before it.
    - window: the last `size` of the causal positions (sliding window).
    - chunked: the causal positions in the query's own chunk of `size` positions (Llama 4).
    - full: all positions of the sequence.
    - local: the positions at most `size` away, on either side (ModernBERT).
    - cross: all positions of the encoder.
    - recurrent: all positions before, through a state; within a step, the rows of one chunk of `size` also meet in
      pairs.
    """

    kind: Literal["causal", "window", "chunked", "full", "local", "cross", "recurrent"]
    size: int = 0
    """The size of an attention window or chunk in positions; 0 for kinds without one."""
    query_axis: RowAxis = field(default=TOKENS, metadata=json_name("space"))
    """The kind of rows (tokens, encoder positions, ...) that the queries of an attention pattern are."""
    key_axis: RowAxis = field(default=ENCODER, metadata=json_name("keys"))
    """The kind of rows (tokens, encoder positions, ...) that the keys of cross-attention are."""

    def __post_init__(self) -> None:
        sized = self.kind in ("window", "chunked", "local", "recurrent")
        assert (self.size > 0) == sized, f"{self}: the size does not fit the kind"

    @property
    def is_bidirectional(self) -> bool:
        """Whether attention is bidirectional: a sequence then runs whole in one step and caches nothing."""
        return self.kind in ("full", "local")

    @override
    def __str__(self) -> str:
        return f"{self.kind} {self.size}" if self.size else self.kind


CAUSAL = AttentionPattern("causal")
FULL = AttentionPattern("full")
ENCODER_FULL = AttentionPattern("full", query_axis=ENCODER)
CROSS = AttentionPattern("cross")
RECURRENT = AttentionPattern("recurrent", 64)
"""The attention pattern of all recurrent layers, whose chunk length is that of common kernels.

It is flash-linear-attention's chunk, and half of Mamba's.
"""


def sliding_window(size: int | None) -> AttentionPattern:
    """Return the pattern of sliding-window attention, or of causal attention if `size` is None."""
    return CAUSAL if size is None else AttentionPattern("window", size)


@dataclass(frozen=True, slots=True)
class StepSegment:  # also in step_formulas.js
    """The part of one sequence that a step runs: the last `q_len` of its `kv_len` positions."""

    q_len: int
    """The number of a sequence's positions that a step runs."""
    kv_len: int
    """The length of a sequence in positions, those of this step included."""
    encoder_len: int = 0
    """The number of encoder positions that the sequence attends to."""
    runs_encoder: bool = False
    """Whether the encoder runs the sequence's encoder positions in this step."""
    encoder_inputs: int = 1
    """The number of separate encoder inputs, such as images, that share the encoder positions equally."""

    def __post_init__(self) -> None:
        assert 0 < self.q_len <= self.kv_len, f"{self} runs more positions than the sequence has"

    def attention(self, reach: AttentionPattern) -> "AttentionSum":  # also in step_formulas.js
        """Return the queries, query-key pairs and keys of one attention pattern in one layer for this sequence."""
        if reach.query_axis == ENCODER:
            rows = self.encoder_len if self.runs_encoder else 0
            return AttentionSum(
                self.encoder_inputs if rows else 0, rows, rows * rows // self.encoder_inputs, rows, rows
            )
        if reach.kind == "cross":
            written = self.encoder_len if self.runs_encoder else 0
            return AttentionSum(1, self.q_len, self.q_len * self.encoder_len, self.encoder_len, written)
        written = 1 if reach.kind == "recurrent" else self.q_len
        return AttentionSum(1, self.q_len, self.pairs(reach), self.keys(reach), written)

    def pairs(self, reach: AttentionPattern = CAUSAL) -> int:  # also in step_formulas.js
        """Return the number of query-key pairs per head that a pattern leaves among the sequence's own positions."""
        start, end, size = self.kv_len - self.q_len, self.kv_len, reach.size
        match reach.kind:
            case "full":
                return self.q_len * self.kv_len
            case "local":
                assert self.q_len == self.kv_len, "a sequence with bidirectional attention must run as a whole"
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

    def keys(self, reach: AttentionPattern = CAUSAL) -> int:  # also in step_formulas.js
        """Return the number of the sequence's own positions that at least one query of the segment sees.

        For a recurrent pattern it is the number of states read: 1, or 0 at the first position, because the state is all
        zeros before it.
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


def _triangle(n: int) -> int:  # also in step_formulas.js
    """Return 1 + 2 + ... + n: the causal query-key pairs of the first n positions."""
    return n * (n + 1) // 2


def _sawtooth(n: int, size: int) -> int:  # also in step_formulas.js
    """Return the causal pairs of the first n positions if each sees only its own chunk of `size` positions."""
    return n // size * _triangle(size) + _triangle(n % size)


class AttentionSum(msgspec.Struct, frozen=True, gc=False):  # also in step_formulas.js
    """The attention of one layer in a step, summed over sequences.

    For a recurrence, `keys` counts the states read and `written` those written.
    """

    sequences: int = 0
    """The number of sequences with queries."""
    queries: int = 0
    """The number of queries in one layer of a step."""
    pairs: int = 0
    """The number of query-key pairs per head that an attention mask leaves in a step."""
    keys: int = 0
    """The number of positions whose keys and values a step reads, each once per sequence."""
    written: int = 0
    """The number of positions whose keys and values a step writes."""

    @classmethod
    def of(cls, parts: Sequence["AttentionSum"]) -> "AttentionSum":  # also in step_formulas.js
        """Return the sum of several attention sums, in one pass because simulators need thousands."""
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

    def __mul__(self, count: int) -> "AttentionSum":  # also in step_formulas.js
        return AttentionSum(
            self.sequences * count, self.queries * count, self.pairs * count, self.keys * count, self.written * count
        )


_NOTHING = AttentionSum()


class AttentionWork(msgspec.Struct, frozen=True, gc=False):  # also in step_formulas.js
    """The attention of one pattern in a step, divided into classes by the number of queries per sequence.

    Each class runs in a kernel of its own.
    """

    one: AttentionSum = _NOTHING
    """The attention of the sequences that have one query in a step: decode."""
    few: AttentionSum = _NOTHING
    """The attention of the sequences that have 2 to MAX_VERIFY_TOKENS queries: speculative verification."""
    many: AttentionSum = _NOTHING
    """The attention of the sequences that have more queries in a step: prefill."""

    @classmethod
    def of(cls, each: Iterable[AttentionSum]) -> "AttentionWork":  # also in step_formulas.js
        """Return the attention of single sequences, summed for each class of query length."""
        one: list[AttentionSum] = []
        few: list[AttentionSum] = []
        many: list[AttentionSum] = []
        for sums in each:
            if sums.queries > MAX_VERIFY_TOKENS:
                many.append(sums)
            elif sums.queries > 1:
                few.append(sums)
            elif sums.queries or sums.written:
                one.append(sums)
        return cls(AttentionSum.of(one), AttentionSum.of(few), AttentionSum.of(many))

    @property
    def total(self) -> AttentionSum:
        """The attention of all sequences of a step, whatever their number of queries."""
        if self.few is _NOTHING and self.many is _NOTHING:  # a decode step: simulators price thousands
            return self.one
        return self.one + self.few + self.many

    def __add__(self, other: "AttentionWork") -> "AttentionWork":
        return AttentionWork(self.one + other.one, self.few + other.few, self.many + other.many)

    def __mul__(self, count: int) -> "AttentionWork":  # also in step_formulas.js
        return AttentionWork(self.one * count, self.few * count, self.many * count)


@dataclass(frozen=True, slots=True)
class Work:
    """The size of one step, summed over its sequences."""

    rows: Mapping[RowAxis, int]
    """The number of a step's rows of each kind (tokens, logits, encoder, ...); a missing kind has none."""
    sequences: int
    """The number of sequences in a step."""
    attention: Mapping[AttentionPattern, AttentionWork] = field(default_factory=dict)
    """The attention of a step in one layer, by attention pattern of the model."""

    @property
    def tokens(self) -> int:  # also in step_formulas.js
        """The number of token positions that a step runs through the layers."""
        return self.rows.get(TOKENS, 0)

    @property
    def logit_rows(self) -> int:  # also in step_formulas.js
        """The number of a step's positions whose logits are needed."""
        return self.rows.get(LOGITS, 0)

    @property
    def is_decode(self) -> bool:  # also in step_formulas.js
        """Whether a step only decodes: one position per sequence, each of them sampled, and no encoder."""
        return self.tokens == self.logit_rows == self.sequences and not self.rows.get(ENCODER)

    @property
    def is_verify(self) -> bool:  # also in step_formulas.js
        """Whether a step samples at every position that it runs, one or several per sequence, without encoder."""
        return self.tokens == self.logit_rows and not self.rows.get(ENCODER)

    @property
    def prompts(self) -> int:
        """The number of sequences that run several positions in a step, such as those of a prompt."""
        # Each pattern counts the same sequences.
        return max((each.few.sequences + each.many.sequences for each in self.attention.values()), default=0)

    @property
    def has_adapters(self) -> bool:
        """Whether some rows of a step use a LoRA adapter."""
        return any(space.startswith(_ADAPTER) for space in self.rows)

    @property
    def shape(self) -> tuple[tuple[RowAxis, int], ...]:
        """The number of a step's rows of each kind: all that the cost of ops without attention depends on."""
        return tuple(self.rows.items())

    @classmethod
    def of(
        cls,
        segments: Iterable[StepSegment],
        reaches: Iterable[AttentionPattern] = (CAUSAL,),
        logit_rows: int | None = None,
    ) -> "Work":
        """Return the size of a step (rows and attention) that runs these parts of sequences.

        Args:
            segments: The part of each sequence that runs.
            reaches: The attention patterns of the model's layers.
            logit_rows: The number of positions whose logits are needed; by default one per segment.
        """
        segments = list(segments)
        attention = {reach: AttentionWork.of(s.attention(reach) for s in segments) for reach in set(reaches)}
        rows = {TOKENS: sum(s.q_len for s in segments), LOGITS: len(segments) if logit_rows is None else logit_rows}
        encoder = sum(s.encoder_len for s in segments if s.runs_encoder)
        return cls(rows | ({ENCODER: encoder} if encoder else {}), len(segments), attention)

    @classmethod
    def whole(cls, lengths: Mapping[RowAxis, Sequence[int]]) -> "Work":
        """Return the size of a step over whole sequences whose positions all see each other, as in a denoiser.

        Args:
            lengths: The length of each sequence, by row axis.
        """
        attention = {
            AttentionPattern("full", query_axis=space): AttentionWork.of(AttentionSum(1, n, n * n, n, n) for n in each)
            for space, each in lengths.items()
        }
        return cls({space: sum(each) for space, each in lengths.items()}, max(map(len, lengths.values())), attention)

    @classmethod
    def decode(
        cls, contexts: Sequence[int], reaches: Iterable[AttentionPattern] = (CAUSAL,), encoded: Sequence[int] = ()
    ) -> "Work":
        """Return the size of a decode step (rows and attention): one new position in each of several sequences.

        The result equals that of `of` with one segment per sequence. It is computed without creating the segments
        because a simulator needs it for every step.

        Args:
            contexts: The number of positions of each sequence, the new one included.
            reaches: The attention patterns of the model's layers.
            encoded: The number of encoder positions that each sequence attends to.
        """
        count = len(contexts)
        attention = {}
        for reach in set(reaches):
            if reach.query_axis == ENCODER:
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
        """Return the size of one step that does the work of `count` equal steps."""
        rows = {space: rows * count for space, rows in self.rows.items()}
        return Work(
            rows, self.sequences * count, {reach: attention * count for reach, attention in self.attention.items()}
        )


def _decode_keys(contexts: Sequence[int], reach: AttentionPattern) -> int:
    """Return the number of keys that the last position of each sequence sees, summed over the sequences."""
    if reach.kind == "window":
        return sum(map(min, contexts, repeat(reach.size)))
    if reach.kind == "chunked":
        return sum((context - 1) % reach.size + 1 for context in contexts)
    return sum(contexts)
