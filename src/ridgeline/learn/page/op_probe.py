"""A probe of an op's cost: it evaluates the op for chosen steps and finds linear functions that give the same figures.

The arguments are the rows of the op's space or, for an op that reads the context, sums over the sequences of each class
of query length (`AttentionWork`): one query (decode), few (speculative verification), or many (prefill). In each class
the cost is piecewise linear in these arguments and in the features that the op states. A case is one of the pieces. The
number of rows or the op's kernel thresholds decide which case applies.
"""

import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from ridgeline.backends import priced_backend
from ridgeline.core.ops.backend import REFERENCE
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.cost_features import ExpectedExperts, KernelThreshold
from ridgeline.core.ops.op import Launch
from ridgeline.core.ops.work import AttentionSum, AttentionWork, Work
from ridgeline.learn.page.linear_functions import EXACT, Line, Values, straight, trimmed, whole
from ridgeline.price.priced_op import PricedOp

CLASSES = ("one", "few", "many")
ROWS = "rows"
_MOST_ROWS = 1 << 17
_MANY = 64  # 64 n rows use all of n experts: (1 - 1/n)^(64 n) vanishes compared with 1
_TRIALS = 3  # random steps at which the table is verified
_BACKENDS = (REFERENCE, priced_backend("cpu"))
_CANDIDATES = 400  # random points that are searched for each case

Point = tuple[int, ...]
"""The arguments on which an op's cost depends in a step: the number of rows, or sums over sequences if the op attends.

The sums are the numbers of sequences, queries, query-key pairs, keys and written positions (`AttentionSum`), over the
sequences of one class of query length.
"""
Points = Mapping[str, Point]
"""The arguments of an op in one step: a `Point` for each class of query length, or one with the key ROWS.

The classes are "one", "few" and "many" queries per sequence, for an op that reads the context. The cost of any other op
depends only on the number of rows.
"""
Key = tuple[str, str, str, int, int]
"""The identity of a kernel: name, number format, stored format, sharers, and its index among equal ones.

The sharers are the query heads that share a KV head, for attention kernels.
"""
Record = dict[str, Line]
_COST: Key = ("", "", "", 1, 0)


@dataclass(frozen=True, slots=True)
class OpFigures:
    """The FLOPs, bytes and calls of an op in a step: in total, per kernel, and per kernel of our CPU backend."""

    cost: Values
    """The op's cost in a step: FLOPs and bytes by name."""
    kernels: dict[Key, Values]
    """The FLOPs, bytes and calls of each kernel that the op launches in the reference backend."""
    native: dict[Key, Values]
    """The FLOPs, bytes and calls of each kernel that the op launches in our CPU backend."""

    @property
    def keys(self) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
        """The identities of the op's kernels in the reference backend and in the CPU backend."""
        return tuple(self.kernels), tuple(self.native)

    def keys_of(self, of: str) -> tuple[Key, ...]:
        """Return the keys that identify the kernels of an op in one backend, or one empty key for the whole op.

        `of` is `kernels` for the reference backend, `native` for our CPU backend, or `cost` for the whole op.
        """
        return (_COST,) if of == "cost" else tuple(self.kernels if of == "kernels" else self.native)

    def values_of(self, of: str, key: Key) -> Values:
        """Return the FLOPs, bytes and calls of one kernel of an op in one backend, or the figures of the whole op.

        Args:
            of: `kernels` for the reference backend, `native` for our CPU backend, or `cost` for the whole op.
            key: Key of the kernel, ignored for `cost`. The result is empty if the op launches no such kernel.
        """
        return self.cost if of == "cost" else (self.kernels if of == "kernels" else self.native).get(key, {})

    @property
    def flat(self) -> Values:
        """The figures of an op and its kernels as one mapping, keyed by backend or `cost`, kernel index and name."""
        lists = {"kernels": self.kernels, "native": self.native}
        kernels = {
            f"{of} {i} {name}": value
            for of, each in lists.items()
            for i, values in enumerate(each.values())
            for name, value in values.items()
        }
        return {f"cost 0 {name}": value for name, value in self.cost.items()} | kernels


@dataclass(frozen=True, slots=True)
class ProbedCase:
    """One linear piece of an op's cost: linear functions for a range of arguments, and the figures at one point in it.

    In this range the op runs in the same way.
    """

    point: Point
    """The arguments (number of rows, or attention sums) at which the figures were computed."""
    figures: OpFigures
    """The op's FLOPs, bytes and calls at the arguments in `point`."""
    lines: dict[str, list[Record]]
    """The linear functions of this piece, keyed by `cost`, `kernels` and `native`, in the order of the kernels."""


Cases = Mapping[str, Mapping[int, ProbedCase]]
"""The linear pieces of an op's cost, by class of query length (or ROWS) and by the number of the case."""


class OpProbe:
    """A probe that evaluates the cost and the kernels of an op for chosen steps.

    Attributes:
        priced: Op to probe.
        reach: Attention pattern of an op that reads the context; None for an op of rows.
        touched: Experts of the op, if it has any.
        steps: Numbers of rows at which another case begins; empty for an op that reads the context.
    """

    def __init__(self, priced: PricedOp) -> None:
        self.priced, self.op = priced, priced.op
        self.reach = priced.op.attention_pattern
        assert (self.reach is not None) == priced.op.reads_context, (
            f"{priced.path} reads a context but has no attention pattern"
        )
        features = priced.op.features
        self._switches = [feature for feature in features if isinstance(feature, KernelThreshold)]
        self.touched = next((feature for feature in features if isinstance(feature, ExpectedExperts)), None)
        self._random = random.Random(0)
        self.steps = self._steps() if self.reach is None else []

    @property
    def switches(self) -> list[list[int]]:
        """The attention sizes at which the op changes kernels, as lists [queries, pairs, keys, limit] for the page.

        An op runs a class of sequences in another way if a weighted sum of their queries, query-key pairs and keys is
        at most `limit`. The first three numbers are the weights of this sum. See `KernelThreshold`.
        """
        return [[each.queries, each.pairs, each.keys, each.limit] for each in self._switches]

    def row_features(self) -> dict[str, Any]:
        """Return the numbers of rows at which the cases of an op of rows begin, and the counts of its experts, if any.

        The latter are the number of experts of the layer and the number to which each row is routed.
        """
        touched = {} if self.touched is None else {"touched": [self.touched.count, self.touched.active]}
        return {"steps": self.steps} | touched

    def figures(self, case: Points) -> OpFigures:
        """Return the FLOPs, bytes and calls of the probed op in a step, in total and per kernel."""
        work = self._work(case)
        kernels = (_by_key(self.priced.launches(work, backend)) for backend in _BACKENDS)
        return OpFigures(_figures(self.priced.cost(work)), *kernels)

    def arguments(self, name: str, point: Point) -> Sequence[float]:
        """Return the values at which the page evaluates an op's linear functions in a step.

        They are the entries of `point`. For experts they are the number of rows and the expected number of distinct
        experts that these rows use.

        Args:
            name: Class of query length, or ROWS.
            point: Number of rows, or attention sums of the class.
        """
        return (point[0], self.touched.expected_hits(point[0])) if name == ROWS and self.touched else point

    def case_of(self, name: str, point: Point) -> int:
        """Return the number of the linear piece (case) of the op's cost to which some arguments belong.

        Args:
            name: Class of query length, or ROWS.
            point: Number of rows, or attention sums of the class.
        """
        if name == ROWS:
            return sum(point[0] >= step for step in self.steps) - 1
        sums = AttentionSum(*point)
        return sum(each.holds(sums) << i for i, each in enumerate(self._switches))

    def cases(self) -> dict[str, dict[int, ProbedCase]]:
        """Probe an op and return its cost as pieces, each with linear functions for FLOPs, bytes and calls.

        The pieces (cases) are keyed by class of query length (one, few or many queries per sequence) and case number.
        An op that depends only on the number of rows has the single class ROWS.
        """
        names = (ROWS,) if self.reach is None else CLASSES
        return {name: {case: self._case(name, point) for case, point in self._bases(name).items()} for name in names}

    def trials(self, cases: Mapping[str, Mapping[int, ProbedCase]]) -> Iterator[Points]:
        """Yield steps at which to verify an op's linear functions.

        They are each case alone, all classes of query length together, and random steps with some of the classes.
        """
        for name, each in cases.items():
            yield from ({name: case.point} for case in each.values())
        yield {name: next(iter(each.values())).point for name, each in cases.items()}
        for _ in range(_TRIALS):
            names = [name for name in cases if self._random.random() < 0.7] or list(cases)
            drawn = {name: self._draw(name) for name in names}
            yield {name: point for name, point in drawn.items() if self.case_of(name, point) in cases[name]}

    def _case(self, name: str, point: Point) -> ProbedCase:
        figures = self.figures({name: point})
        lines: dict[str, list[Record]] = {"cost": [{}], "kernels": [{} for _ in figures.kernels]}
        lines["native"] = [{} for _ in figures.native]
        for place, line in self._lines(name, point, figures).items():
            of, index, figure = place.split(" ", 2)
            lines[of][int(index)][figure] = line
        return ProbedCase(point, figures, lines)

    def _lines(self, name: str, point: Point, figures: OpFigures) -> dict[str, Line]:
        if name == ROWS:
            return self._row_lines
        case = self.case_of(name, point)

        def values_at(other: Sequence[int]) -> Values | None:
            if min(other) < 0 or self.case_of(name, tuple(other)) != case:
                return None
            there = self.figures({name: tuple(other)})
            return there.flat if there.keys == figures.keys else None

        return straight(values_at, point)

    @cached_property
    def _row_lines(self) -> dict[str, Line]:
        """The linear functions of an op of rows.

        Another number of rows may run other kernels, but with the same functions. With enough rows that all experts are
        used, only the rows change the figures, which gives the slope per row. The figures of a single row then give the
        share per expert.
        """
        touched = self.touched or ExpectedExperts(1, 1)
        many = _MANY * -(-touched.count // touched.active)
        one, some, twice = (self.figures({ROWS: (rows,)}).flat for rows in (1, many, 2 * many))
        lines = {}
        for name, value in some.items():
            slope = whole((twice[name] - value) / many)
            missed = touched.count - touched.expected_hits(1)
            each = whole((value - one.get(name, 0.0) - slope * (many - 1)) / missed) if missed else 0.0
            rest = value - slope * many - each * touched.count
            lines[name] = trimmed([whole(rest) if abs(rest) > EXACT * abs(value) else 0.0, slope, each])
        return lines

    def _bases(self, name: str) -> dict[int, Point]:
        """Return one point in each linear piece (case) of the op's cost for a class of query length, or for ROWS.

        The cases of an op that reads the context are found by a random search.
        """
        if name == ROWS:
            return {case: (step,) for case, step in enumerate(self.steps)}
        found: dict[int, Point] = {}
        for _ in range(_CANDIDATES if self._switches else 1):
            point = self._draw(name)
            found.setdefault(self.case_of(name, point), point)
        return found

    def _draw(self, name: str) -> Point:
        """Return a random point with sizes of all magnitudes, and often 1, at which much differs."""
        count = 1 if name == ROWS else 5
        return tuple(
            1 if self._random.random() < 0.2 else round(2 ** self._random.uniform(1, 18)) for _ in range(count)
        )

    def _steps(self) -> list[int]:
        """Return 1 and the numbers of rows, up to a maximum, at which the op switches to other kernels."""
        steps, names, reached = [1], self._names(1), 1
        while reached < _MOST_ROWS:
            if self._names(2 * reached) == names:
                reached *= 2
                continue
            between = range(reached + 1, 2 * reached)
            reached = between.start + bisect_left(between, True, key=partial(self._differ, names))
            steps.append(reached)
            names = self._names(reached)
        return steps

    def _differ(self, names: Sequence[str], rows: int) -> bool:
        return self._names(rows) != names

    def _names(self, rows: int) -> Sequence[str]:
        work = self._work({ROWS: (rows,)})
        return [kernel.name for backend in _BACKENDS for kernel in self.priced.launches(work, backend)]

    def _work(self, case: Points) -> Work:
        if self.reach is None:
            return Work({self.priced.space: case[ROWS][0]}, 1)
        sums = {name: AttentionSum(*point) for name, point in case.items()}
        rows = sum(each.queries for each in sums.values())
        return Work({self.priced.space: rows}, 1, {self.reach: AttentionWork(**sums)})


def _figures(cost: Cost, calls: float = 1.0) -> Values:
    """Return a cost as nonzero figures by name, plus `again`, the number of calls after the first."""
    figures = {f"flops/{name}": flops for name, flops in cost.flops.items()}
    figures |= {f"communication/{name}": nbytes for name, nbytes in cost.communication.items()}
    figures |= {
        "weights": cost.weight_bytes,
        "read": cost.kv_read_bytes,
        "written": cost.kv_write_bytes,
        "activations": cost.activation_bytes,
        "again": calls - 1,
    }
    return {name: float(value) for name, value in figures.items() if value}


def _by_key(kernels: Sequence[Launch]) -> dict[Key, Values]:
    found: dict[Key, Values] = {}
    for kernel in kernels:
        alike = (kernel.name, kernel.number_format, kernel.weight_format, kernel.query_heads_per_kv_head)
        which = sum(key[:4] == alike for key in found)
        found[(*alike, which)] = _figures(kernel.cost, kernel.calls)
    return found
