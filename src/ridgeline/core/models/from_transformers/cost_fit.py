"""The linear functions through traces of a release's code at several sizes, as ops for a price.

A trace has one sequence. Its size gives the values of the terms of a linear function: 1, the rows of tokens and of
logits, and two terms of an attention pattern. Those are the pairs of a query and a key and the keys. For a recurrence
they are the pairs of positions in a chunk, and whether there is a state before the first position. As many traces as
terms fix the function, and all others must agree with it.

Two terms are found in the traces of recurrences and left out of the price. Some releases join the states of all chunks
in one product, whose work grows with the square of the chunks; kernels pass the state from chunk to chunk. And releases
copy all rows to join them to the state of a convolution, if there is one; kernels read it where it is.

No constant says how much may be left out, because a small model has other shares than a large one. The terms themselves
do. Of one chunk, the product joins one state to another, so that most of the chunk's work is elsewhere; the square of
attention exceeds that work by far. And a copy moves bytes, no more than the convolution that reads its result. At the
real sizes of Mamba 2, Nemotron-H, Falcon-H1, Zamba 2, Qwen3-Next and OLMo Hybrid, the product is at most 0.3 % of the
FLOPs of the traced prompts outside our ops, and copies are at most 7 % of the bytes of activations of a later chunk.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Literal

from msgspec import structs

from ridgeline.core.models.from_transformers.aten_fusion import FusedKernel, KernelClass
from ridgeline.core.models.from_transformers.aten_table import OTHER, PRODUCT
from ridgeline.core.ops.cost import NO_COST, Cost
from ridgeline.core.ops.traced_work import TracedAttention, TracedCode, TracedWork
from ridgeline.core.ops.work import LOGITS, RECURRENT, TOKENS, AttentionPattern, RowAxis

_SAME = 1e-6  # the largest relative difference between a trace and the function through others
_NEAR = 0.01  # the same for the activation bytes of a whole module with a recurrence
_LEFT_OUT_SHARE = 0.5  # the largest share that a price leaves out of one chunk's work, or of bytes
_WEIGHTS, _ACTIVATIONS, _LAUNCHES = "weights", "activations", "launches"

Figures = Mapping[str, float]
"""The figures of a kernel class in one trace: FLOPs by format, bytes of weights and activations, and launches."""
_Table = Mapping[KernelClass, Figures]
Row = Sequence[Fraction]


Basis = Literal["rows", "attention", "joined", "recurrence", "chunks", "texts"]
"""The terms in which the cost of some code may be linear."""
_OF_STATES = ("recurrence", "chunks")
_ATTEND = ("attention", "joined")
_LEFT_OUT: Mapping[Basis, int] = MappingProxyType({"joined": 1, "chunks": 2})
"""The terms, the last of a basis, that a price leaves out; the last of them are the copies of rows."""
_TOKEN = 1
"""The place of the rows of tokens among the terms."""


class NotLinear(ValueError):
    """The refusal of code whose work is no linear function of the size of a step."""


@dataclass(frozen=True, slots=True)
class TraceSize:
    """The size of one traced forward pass of a single sequence."""

    tokens: int
    """The positions that the pass runs."""
    keys: int
    """The positions of the sequence, those of the pass included."""
    logits: int
    """The positions whose logits the pass returns."""

    @property
    def is_decode(self) -> bool:
        """Whether the pass runs one position after others; many releases run other code for it."""
        return self.tokens == 1 < self.keys

    def terms(self, basis: "Basis") -> tuple[int, ...]:
        """Return the values of the terms in which costs may be linear."""
        own = (1, self.tokens, self.logits)
        match basis:
            case "rows":
                return own
            case "attention":  # the code of a release computes masked pairs too
                return (*own, self.tokens * self.keys, self.keys)
            case "joined":  # attention next to a convolution, whose rows the release joins to a state
                return (*self.terms("attention"), self.tokens * int(self.keys > self.tokens))
            case "texts":  # each is whole, so its keys are its tokens
                return (*own, self.tokens * self.keys)
            case "recurrence":  # several rows are whole chunks of the class, which stand for whole chunks of the price
                pairs = 1 if self.tokens == 1 else self.tokens * (RECURRENT.size + 1) // 2
                return (*own, pairs, int(self.keys > self.tokens))
            case "chunks":  # those of a recurrence whose chunks meet in pairs, and which joins rows to a state
                several = 0 if self.tokens == 1 else self.tokens
                return (*self.terms("recurrence"), several**2, several * int(self.keys > self.tokens))


@dataclass(frozen=True, slots=True)
class FittedKernel:
    """The cost of a kernel class as a linear function of the size of a step."""

    path: str
    """The path of the module whose code the kernel runs."""
    code: TracedCode
    calls: int
    """The number of calls in a step; a loop over positions counts as one."""
    basis: Basis
    """The terms in which the cost is linear."""
    fixed: Cost
    token: Cost
    logit: Cost
    pair: Cost = NO_COST
    key: Cost = NO_COST

    def ops(self, pattern: AttentionPattern | None) -> Iterator[tuple[RowAxis, TracedWork]]:
        """Yield the ops for one call of the kernel, each with the rows that it runs over.

        Args:
            pattern: The keys that a query of the module sees; None if it does not attend by itself.
        """
        if self.basis in _OF_STATES or self.pair != NO_COST or self.key != NO_COST:
            if self.basis in _OF_STATES:
                pattern = RECURRENT
            assert pattern is not None, "only code that attends has costs of keys"
            step = Cost(weight_bytes=self.fixed.weight_bytes)
            terms = {"sequence": structs.replace(self.fixed, weight_bytes=0.0), "query": self.token}
            yield TOKENS, TracedAttention(self.code, pattern, step, **terms, pair=self.pair, key=self.key)
        elif self.token != NO_COST or (self.fixed != NO_COST and self.logit == NO_COST):
            yield TOKENS, TracedWork(self.code, self.fixed, self.token)
        if self.logit != NO_COST:
            alone = self.token == self.pair == self.key == NO_COST
            yield LOGITS, TracedWork(self.code, self.fixed if alone else NO_COST, self.logit)


def fit(
    traces: Sequence[tuple[TraceSize, Iterable[FusedKernel]]], dtype: str, bases: Sequence[Basis] = ("rows",)
) -> list[FittedKernel]:
    """Return the kernels of some traced code, each as a linear function through the traces.

    Kernels that differ from trace to trace, such as those of a loop over positions, are added up until they are linear:
    those of one module and category, then those of one module. The bytes of a recurrence's activations may also be
    nearly linear. Its FLOPs and weights may not.

    Args:
        traces: The kernels of each trace, with its size.
        dtype: The name of the number format of the model.
        bases: The terms to try, in this order. Decode steps must agree with the function, if any does; a function of
            attention may ignore them, because many releases copy less in a decode step than in a chunk.

    Raises:
        NotLinear: If the work of some code is not linear.
    """
    sizes = [size for size, _ in traces]
    lines = _lines(sizes, bases)
    tables = [_tabulated(kernels) for _, kernels in traces]
    rest: list[_Table] = list(tables)
    found: dict[KernelClass, FittedKernel] = {}
    for coarser in (_as_it_is, _of_category, _of_module):
        rest = [_added(table, coarser) for table in rest]
        found |= _fits(rest, lines, dtype)
        rest = [{key: figures for key, figures in table.items() if key not in found} for table in rest]
    prompts = [table for size, table in zip(sizes, tables, strict=True) if not size.is_decode]
    found = _without_decodes_of_attention(found, prompts)
    modules = {key[:2] for key in _keys(rest)}
    whole = [_added({key: own for key, own in table.items() if key[:2] in modules}, _of_module) for table in tables]
    near = _fits(whole, [line for line in lines if line.basis in (*_OF_STATES, "joined")], dtype, near=True)
    if wrong := {key[1] for key in _keys(whole) if key not in near}:
        raise NotLinear(f"the work of {', '.join(sorted(wrong))} is not linear in the size of a step")
    return [*(kernel for key, kernel in found.items() if key[:2] not in modules), *near.values()]


def _without_decodes_of_attention(
    found: Mapping[KernelClass, FittedKernel], prompts: Sequence[_Table]
) -> dict[KernelClass, FittedKernel]:
    """Return fitted kernels without those that only decode steps run, in modules whose other kernels attend.

    The kernels of prompts there are functions of the keys, which decode steps have too.
    """
    attending = {key[:2] for key, kernel in found.items() if kernel.basis not in _OF_STATES and kernel.pair != NO_COST}
    run = {widened(key) for table in prompts for key in table for widened in (_as_it_is, _of_category, _of_module)}
    return {key: kernel for key, kernel in found.items() if key in run or key[:2] not in attending}


def _lines(sizes: Sequence[TraceSize], bases: Sequence[Basis]) -> list["_LineThrough"]:
    """Return the functions to try, with decode steps and then, for attention, without."""
    loose = [_LineThrough(sizes, basis, decodes=False) for basis in bases if basis in _ATTEND]
    return [*(_LineThrough(sizes, basis) for basis in bases), *loose]


def _fits(
    tables: Sequence[_Table], lines: Sequence["_LineThrough"], dtype: str, *, near: bool = False
) -> dict[KernelClass, FittedKernel]:
    """Return the kernel classes that the first line which agrees with all traces describes."""
    found: dict[KernelClass, FittedKernel] = {}
    for key in _keys(tables):
        figures = [table.get(key, {}) for table in tables]
        fits = ((line.basis, line.of(figures, near=near)) for line in lines)
        basis, terms = next((fit for fit in fits if fit[1] is not None), (None, None))
        if basis is not None and terms is not None:
            launches = min(each.get(_LAUNCHES, 0.0) for each in figures)
            found[key] = _fitted(key, basis, terms, launches, dtype)
    return found


class _LineThrough:
    """The linear functions through the figures of traces of given sizes."""

    def __init__(self, sizes: Sequence[TraceSize], basis: Basis, *, decodes: bool = True) -> None:
        """Choose the traces that fix a function: the first that do, a decode step before others for a recurrence.

        Args:
            sizes: The sizes of the traces.
            basis: The terms of the function.
            decodes: Whether decode steps must be on the function.
        """
        self.basis: Basis = basis
        own = [index for index, size in enumerate(sizes) if decodes or not size.is_decode]
        self._terms = {index: sizes[index].terms(basis) for index in own}
        first = sorted(own, key=lambda index: sizes[index].is_decode != (basis in _OF_STATES))
        self._fixing = _independent({index: self._terms[index] for index in first})
        self._inverse = _inverse([[Fraction(term) for term in self._terms[index]] for index in self._fixing])

    def of(self, figures: Sequence[Figures], *, near: bool) -> Sequence[Figures] | None:
        """Return the figures per unit of each priced term; None if the traces are not on one linear function.

        Args:
            figures: The figures of each trace.
            near: Whether the bytes of activations may be nearly on it.
        """
        slopes_of: list[dict[str, float]] = [{} for _ in self._inverse]
        for name in dict.fromkeys(name for each in figures for name in each if name != _LAUNCHES):
            values = {index: Fraction(figures[index].get(name, 0.0)) for index in self._terms}
            slopes = self._slopes(values)
            moved = name == _ACTIVATIONS
            if not self._agree(values, slopes, _NEAR if near and moved else _SAME):
                return None
            if not self._leaves_out_little(name, values, slopes):
                return None
            if moved and self.basis in _LEFT_OUT and slopes[-1] < 0:  # it copies rows if there is no state to join
                slopes = [slope + slopes[-1] * (term == _TOKEN) for term, slope in enumerate(slopes)]
            for term, slope in zip(slopes_of, slopes, strict=True):
                if slope:
                    term[name] = float(slope)
        return slopes_of[: len(slopes_of) - _LEFT_OUT.get(self.basis, 0)]

    def _slopes(self, values: Mapping[int, Fraction]) -> Row:
        """Return what a figure grows by with each term, from the traces that fix the function."""
        fixing = [values[index] for index in self._fixing]
        return [sum((a * b for a, b in zip(row, fixing, strict=True)), Fraction(0)) for row in self._inverse]

    def _agree(self, values: Mapping[int, Fraction], slopes: Row, tolerance: float) -> bool:
        """Return whether a figure of all traces is on the function."""
        for index, value in values.items():
            on_line = sum(slope * term for slope, term in zip(slopes, self._terms[index], strict=True))
            if abs(on_line - value) > tolerance * max(values.values()):
                return False
        return True

    def _leaves_out_little(self, name: str, values: Mapping[int, Fraction], slopes: Row) -> bool:
        """Return whether what a price leaves out of a figure is only what kernels do without.

        The square of the chunks is compared in the shortest prompts, which are one chunk; in longer ones its share
        grows without a limit. Copies are compared in all traces, and have no FLOPs.
        """
        if self.basis not in _LEFT_OUT:
            return True
        *squares, copies = range(-_LEFT_OUT[self.basis], 0)
        chunk = min((term for terms in self._terms.values() for place in squares if (term := terms[place])), default=0)
        for index, value in values.items():
            parts = [abs(slope * term) for slope, term in zip(slopes, self._terms[index], strict=True)]
            of_one_chunk = [place for place in squares if self._terms[index][place] == chunk]
            if any(parts[place] > _LEFT_OUT_SHARE * value for place in of_one_chunk):
                return False
            if name != _ACTIVATIONS and parts[copies] > _SAME * value:
                return False
        return True


def _independent(terms: Mapping[int, Sequence[int]]) -> list[int]:
    """Return the indices of the first sizes of which none is a sum of multiples of the others."""
    found: list[int] = []
    reduced: list[tuple[int, list[Fraction]]] = []
    for index, size in terms.items():
        row = [Fraction(term) for term in size]
        for column, other in reduced:
            row = [value - row[column] * by for value, by in zip(row, other, strict=True)]
        first = next((column for column, value in enumerate(row) if value), None)
        if first is not None:
            reduced.append((first, [value / row[first] for value in row]))
            found.append(index)
    assert len(found) == len(next(iter(terms.values()))), "the sizes of the traces do not determine a linear function"
    return found


def _inverse(square: Sequence[Row]) -> list[list[Fraction]]:
    """Return the exact inverse of a matrix, by Gauss-Jordan elimination."""
    count = len(square)
    rows = [[*row, *(Fraction(int(i == j)) for j in range(count))] for i, row in enumerate(square)]
    for column in range(count):
        pivot = next((row for row in rows[column:] if row[column]), None)
        assert pivot is not None, "independent rows have a pivot in each column"
        rows.remove(pivot)
        pivot = [value / pivot[column] for value in pivot]
        rows = [[value - row[column] * by for value, by in zip(row, pivot, strict=True)] for row in rows]
        rows.insert(column, pivot)
    return [row[count:] for row in rows]


def _tabulated(kernels: Iterable[FusedKernel]) -> _Table:
    """Return the figures of each kernel class in a trace."""
    table: dict[KernelClass, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for kernel in kernels:
        for name, flops in kernel.cost.flops.items():
            table[kernel.key][name] += flops
        table[kernel.key][_WEIGHTS] += kernel.cost.weight_bytes
        table[kernel.key][_ACTIVATIONS] += kernel.cost.activation_bytes
        table[kernel.key][_LAUNCHES] += 1
    return table


def _added(table: _Table, coarser: Callable[[KernelClass], KernelClass]) -> _Table:
    """Return the figures of wider kernel classes."""
    wider: dict[KernelClass, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for key, figures in table.items():
        for name, value in figures.items():
            wider[coarser(key)][name] += value
    return wider


def _as_it_is(key: KernelClass) -> KernelClass:
    return key


def _of_category(key: KernelClass) -> KernelClass:
    return *key[:3], ()


def _of_module(key: KernelClass) -> KernelClass:
    return *key[:2], OTHER, ()


def _keys(tables: Iterable[_Table]) -> list[KernelClass]:
    return list(dict.fromkeys(key for table in tables for key in table))


def _fitted(key: KernelClass, basis: Basis, terms: Sequence[Figures], launches: float, dtype: str) -> FittedKernel:
    """Return a kernel class whose figures per unit of each term are known, as one call of each of its launches."""
    path, class_name, category, operations = key
    calls = max(1, round(launches))
    formats = [name for term in terms for name in term if name not in (_WEIGHTS, _ACTIVATIONS)]
    product = next((name for name in formats if name != "fp32"), dtype if category != PRODUCT else "fp32")
    code = TracedCode(class_name, category, operations, product)
    return FittedKernel(path, code, calls, basis, *(_cost(term) * (1 / calls) for term in terms))


def _cost(figures: Figures) -> Cost:
    flops = {name: value for name, value in figures.items() if name not in (_WEIGHTS, _ACTIVATIONS)}
    return Cost(flops, weight_bytes=figures.get(_WEIGHTS, 0.0), activation_bytes=figures.get(_ACTIVATIONS, 0.0))
