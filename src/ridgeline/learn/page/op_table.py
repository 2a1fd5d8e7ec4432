"""The cost of an op as data for the page: linear functions for its FLOPs and bytes, found by evaluating it.

`op_probe.py` finds them. A case is a range of arguments (rows, or sums over a step's sequences) in which the op's list
of kernels stays the same, and its figures are linear in the arguments and in the features that the op states. The table
is compared with the op at random steps; an op that differs there is refused by name.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from ridgeline.core.ops.work import AttentionPattern
from ridgeline.learn.page.linear_functions import Values, at
from ridgeline.learn.page.op_probe import Cases, Key, OpProbe, Points, Record
from ridgeline.price.priced_op import PricedOp

_SAME = 1e-12  # maximum relative difference between the table and the op


class LinePool:
    """A pool of the linear functions of a model's ops, in which equal ones are stored once."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self._places: dict[tuple[Any, ...], int] = {}

    def place(self, record: Record) -> int:
        """Add a record of an op's linear functions to the pool, unless an equal one is there, and return its index.

        A record has a linear function for each figure, such as FLOPs or bytes. Functions that are zero are left out.
        """
        kept = {name: list(map(_plain, line)) for name, line in sorted(record.items()) if line}
        key = tuple((name, tuple(line)) for name, line in kept.items())
        if key not in self._places:
            self._places[key] = len(self.records)
            self.records.append(kept)
        return self._places[key]


def _plain(number: float) -> float:
    """Return a number as JSON writes it in the fewest characters."""
    return int(number) if number.is_integer() else number


def op_table(
    priced: PricedOp, reaches: Sequence[AttentionPattern], pool: LinePool, *, gathers: bool = False
) -> dict[str, Any]:
    """Return the page's data for an op, and add its linear functions to `pool`.

    `cost`, and each of `kernels` and `native` (omitted if equal to `kernels`), has `of`, the index of its functions by
    class and case, and `once`, the index of the figures that count once even if several classes have them.

    Args:
        priced: Op, as if one rank alone had rows.
        reaches: Attention patterns of the model.
        pool: Pool of linear functions.
        gathers: Whether the op also receives the rows of other ranks.

    Raises:
        ValueError: If the op's figures are not on such functions; the message has its path.
    """
    probe = OpProbe(priced)
    cases = probe.cases()
    shared = _shared(probe, cases)
    table: dict[str, Any] = {
        "kind": priced.op.kind,
        "path": priced.path,
        "count": priced.count,
        "space": priced.space,
        "shape": priced.op.extra_repr(),
    }
    if probe.reach is None:
        table |= probe.row_features() | ({"gathers": True} if gathers else {})
    else:
        table |= {"reach": list(reaches).index(probe.reach), "switches": probe.switches}
    entries = {of: _entries(of, cases, shared, pool) for of in ("cost", "kernels", "native")}
    table["cost"] = {name: entries["cost"][0][name] for name in ("of", "once") if name in entries["cost"][0]}
    table["kernels"] = entries["kernels"]
    if entries["native"] != entries["kernels"]:
        table["native"] = entries["native"]
    for trial in probe.trials(cases):
        _check(probe, table, pool, trial)
    return table


def _entries(of: str, cases: Cases, shared: "_Shared", pool: LinePool) -> list[dict[str, Any]]:
    """Return the table's entries for an op's cost (as one kernel), or for its kernels in PyTorch or on our CPU backend.

    Each kernel has one entry, with its linear functions by class and case. `of` is `cost`, `kernels` or `native`.
    """
    entries: dict[tuple[Key, str], dict[str, Any]] = {}
    for name, each in cases.items():
        for number, case in each.items():
            for key, line in zip(case.figures.keys_of(of), case.lines[of], strict=True):
                first = shared.first.get((of, key, name), name)
                entry = entries.setdefault((key, first), _written(key) | {"of": {}})
                entry["of"].setdefault(name, {})[str(number)] = pool.place(line)
                if (of, key) in shared.once and first != name:
                    entry["once"] = pool.place(shared.once[of, key])
    return list(entries.values())


def _written(key: Key) -> dict[str, Any]:
    """Return a kernel's name, formats and number of sharers as table fields, without default values."""
    name, number_format, stored, sharers, _ = key
    values = {"name": name, "format": number_format, "stored": stored}
    return {field: value for field, value in values.items() if value} | ({"sharers": sharers} if sharers != 1 else {})


@dataclass(frozen=True, slots=True)
class _Shared:
    """The kernels and figures of an op that several classes of query length share.

    They are keyed by list (`cost`, `kernels` of the reference backend, or `native` of our CPU backend), and by kernel.
    """

    first: dict[tuple[str, Key, str], str]
    """The first of the classes of query length that run a kernel together, by list, kernel and class."""
    once: dict[tuple[str, Key], Record]
    """The figures of a kernel that count once even if several classes of query length run it, by list and kernel."""


def _shared(probe: OpProbe, cases: Cases) -> _Shared:
    """Return the kernels and figures that classes of query length share, found by evaluating pairs of classes."""
    shared = _Shared({}, {})
    for one, other in combinations(cases, 2):
        a, b = (next(iter(cases[name].values())) for name in (one, other))
        both = probe.figures({one: a.point, other: b.point})
        for of in ("cost", "kernels", "native"):
            for key in a.figures.keys_of(of):
                if key not in b.figures.keys_of(of) or (*key[:4], 1) in both.keys_of(of):
                    continue
                shared.first[of, key, other] = shared.first.get((of, key, one), one)
                once = _less(a.figures.values_of(of, key), b.figures.values_of(of, key), both.values_of(of, key))
                shared.once[of, key] = {name: [value] for name, value in once.items() if value}
    shared_once = {place: record for place, record in shared.once.items() if record}
    return _Shared(shared.first, shared_once)


def _less(some: Values, others: Values, both: Values) -> dict[str, float]:
    """Return by how much the sum of two classes' figures exceeds the figures of both together."""
    names = {**some, **others}
    return {name: some.get(name, 0.0) + others.get(name, 0.0) - both.get(name, 0.0) for name in names}


# -- holding it against the op ----------------------------------------------------------------------------------------


def _check(probe: OpProbe, table: Mapping[str, Any], pool: LinePool, tried: Points) -> None:
    """Raise ValueError if an op's table gives other figures than the op itself for a step."""
    figures = probe.figures(tried)
    places = [(name, probe.case_of(name, point), probe.arguments(name, point)) for name, point in tried.items()]
    lists = {"cost": [table["cost"]], "kernels": table["kernels"], "native": table.get("native", table["kernels"])}
    for of, entries in lists.items():
        uses = Counter[tuple[Any, ...]]()
        for entry in entries:
            if any(str(case) in entry["of"].get(name, {}) for name, case, _ in places):
                key = _key_of(entry)
                key = (*key[:4], uses[key[:4]])
                uses[key[:4]] += 1
                if key not in figures.keys_of(of) or not _alike(_sum(entry, places, pool), figures.values_of(of, key)):
                    raise _refused(probe, tried)
        if sum(uses.values()) != len(figures.keys_of(of)):
            raise _refused(probe, tried)


def _sum(entry: Mapping[str, Any], places: Sequence[tuple[str, int, Sequence[float]]], pool: LinePool) -> Values:
    """Return the figures of a table entry in a step, summed as the page does."""
    total: dict[str, float] = {}
    present = 0
    for name, case, arguments in places:
        place = entry["of"].get(name, {}).get(str(case))
        if place is not None:
            present += 1
            for figure, line in pool.records[place].items():
                total[figure] = total.get(figure, 0.0) + at(line, arguments)
    if present > 1 and "once" in entry:
        for figure, line in pool.records[entry["once"]].items():
            total[figure] -= (present - 1) * line[0]
    return total


def _alike(some: Values, others: Values) -> bool:
    figures = ((some.get(name, 0.0), others.get(name, 0.0)) for name in {**some, **others})
    return all(abs(a - b) <= _SAME * max(abs(a), abs(b), 1.0) for a, b in figures)  # figures are counts


def _key_of(entry: Mapping[str, Any]) -> Key:
    return entry.get("name", ""), entry.get("format", ""), entry.get("stored", ""), entry.get("sharers", 1), 0


def _refused(probe: OpProbe, case: Points) -> ValueError:
    op = probe.priced
    return ValueError(
        f"{op.path} ({type(op.op).__name__}) has a cost that is not linear at {dict(case)}; state in its `features` "
        "what the cost depends on"
    )
