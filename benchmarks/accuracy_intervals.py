"""The intervals around predictions: the rows that they come from, how many of them they hold, and the package's file.

`python benchmarks/accuracy.py` writes src/ridgeline/price/error_intervals.toml and a section of the page. Of test rows,
only totals are shown.
"""

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import accuracy_images as images
import accuracy_memory as memory
from accuracy_replay import MEASURED, facts, published_as
from error_interval_fit import ENOUGH_ROWS, ENOUGH_SOURCES, Coverage, Sample, coverage, fit
from published_pricing import case_of, price_row
from published_rows import PublishedRow, read_published
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import DEFAULT_ENGINE, load_engine
from ridgeline.price.error_interval import KINDS, LEVELS, ErrorInterval, Kind, known_of

OUT = Path(__file__).resolve().parents[1] / "src" / "ridgeline" / "price" / "error_intervals.toml"
_HEAD = "# Made by benchmarks/accuracy.py; see price/error_interval.py. Do not edit.\n"


@dataclass(frozen=True, slots=True)
class Judged:
    """The errors of all priced rows, and the rows without a price."""

    test: list[Sample]
    """The errors of test rows, from which the intervals come."""
    development: list[Sample]
    """The errors of development rows of the same kinds."""
    unpriced: list[tuple[PublishedRow, str]]
    """The published rows that could not be priced, with the reason."""
    loads: list[PublishedRow]
    """The test rows under load."""

    @property
    def intervals(self) -> list[ErrorInterval]:
        """The intervals that the package states."""
        return fit(self.test)


def judge() -> Judged:
    """Price all published rows, and add the steps on calibrated machines, memory, images and videos."""
    test, development, unpriced, loads = list(_local()), [], [], []
    for row in read_published():
        try:
            priced = price_row(row)
        except ValueError as error:
            unpriced.append((row, str(error).rpartition(".json: ")[2]))
            continue
        setup = priced.case.setup
        known = known_of(setup.device, setup.engine, priced.case.weights)
        kind: Kind = row.kind  # type: ignore[assignment]
        (test if row.is_test else development).append(
            Sample(kind, known, row.source, priced.factor, least=priced.least)
        )
        loads += [row] * (row.is_test and kind == "load")
    return Judged([*test, *_memory(), *_images()], development, unpriced, loads)


def simulated_coverage(judged: Judged) -> tuple[int, float]:
    """Return how many test rows under load lie within a simulation's interval, and the mean share of a source.

    The steps of the simulations are multiplied by the factors under load, which are made without the row's source.
    """
    held: dict[str, list[bool]] = {}
    for source in dict.fromkeys(row.source for row in judged.loads):
        found = {(each.kind, each.known): each for each in fit([s for s in judged.test if s.source != source])}
        for row in (each for each in judged.loads if each.source == source):
            case = case_of(row)
            known = known_of(case.setup.device, case.setup.engine, case.weights)
            low, high = found["load", known].low, found["load", known].high
            held.setdefault(source, []).append(price_row(row, high).factor <= 1 <= price_row(row, low).factor)
    return sum(map(sum, held.values())), fmean(map(fmean, held.values()))


def _local() -> Iterable[Sample]:
    """Yield the steps of our own engine on calibrated machines, which were looked at during development."""
    with (MEASURED / "local.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            factor = float(line["measured"]) / float(line["predicted"])
            yield Sample(line["kind"], "measured", line["machine"], factor, development=True)  # type: ignore[arg-type]


def _memory() -> Iterable[Sample]:
    """Yield the errors of KV capacities; they were all looked at during development."""
    sources = {line["id"]: line["source"] for line in facts("memory.csv")}
    for row in memory.rows():
        if row.from_the_card:
            engine = load_engine(published_as(row.engine).profile)
            known = known_of(load_device(row.card), engine, "bf16")
            yield Sample("memory", known, sources[row.id], 1 / (1 + row.error), development=True)


def _images() -> Iterable[Sample]:
    """Yield the errors of test rows of images and videos."""
    for row in images.rows(images.TEST):
        known = known_of(load_device(row.card), load_engine(DEFAULT_ENGINE), "bf16")
        least = row.predicted.floor / row.predicted.expected
        yield Sample("image", known, row.source, 1 / (1 + row.error), least=least)


def written(intervals: Iterable[ErrorInterval]) -> str:
    """Return the text of error_intervals.toml."""
    text = _HEAD
    for each in intervals:
        text += f'\n[[interval]]\nkind = "{each.kind}"\nknown = "{each.known}"\nlow = {each.low}\nhigh = {each.high}\n'
        text += f"rows = {each.rows}\nsources = {each.sources}\n"
        text += f'pooled = "{each.pooled}"\n' if each.pooled else ""
        text += "development = true\n" if each.development else ""
    return text


# -- the page ---------------------------------------------------------------------------------------------------------


def interval_section(judged: Judged) -> str:
    """Return the section of the page: coverage first, then errors by kind, then the intervals themselves."""
    held, share = simulated_coverage(judged)
    whole = coverage(judged.test, [each for each in judged.test if not each.development])
    assert whole is not None, "no test row was priced"
    beaten = sum(each.factor < each.least for each in judged.test)
    return f"""## How many measurements do the intervals hold?

**The intervals hold {whole.share:.0%} of the measurements of a source that they were made without** (80 % is meant;
each source weighs the same; {whole.held} of {whole.rows} rows, {whole.sources} sources).

Each time, rate and cost of a prediction has an interval that is meant to hold 80 % of measurements. It comes from the
errors of test rows, by the kind of figure and by how well device, engine and format are known. For this table, each
source was left out in turn, the intervals were made of the others, and its rows were counted. In this section, an error
above zero says that the measured system was slower than predicted. Rows that were seen in development count only where
there are no others. A kind with fewer than {ENOUGH_ROWS} test rows or {ENOUGH_SOURCES} sources does not count by
itself; the last column has the 95 % interval of its coverage.

{_coverage_table(judged, "kind", KINDS)}

{_coverage_table(judged, "known", LEVELS)}

An interval ends at the physical floor, here as in a prediction. {beaten} test rows lie below the floor that follows
from their conditions, and count as not held.

Figures under load consist of prefills and decodes, so their interval has the wider ends of both, and no row under load
enters it. `plan` multiplies its figures by these factors, and `simulate` its steps, each of which ends at its floor.
{held} of the {len(judged.loads)} test rows under load lie within the interval of such a simulation, {share:.0%} with
each source weighing the same.

The intervals, as factors on a predicted time:

{_interval_table(judged.intervals)}

How many test rows of each kind and level lie in the intervals made without their source:

{_crossed_table(judged)}

Leaving out a source can change what is taken together, and with fewer than five sources the rule; so a fold may test
another interval than the one that is shipped.

The development rows, which may be looked at one by one, against the same intervals. No interval was made from them:

{_development_table(judged)}"""


def unpriced_published(judged: Judged) -> str:
    """Return the paragraph of the page on published rows without a prediction."""
    reasons = Counter(reason for _, reason in judged.unpriced)
    lines = "\n".join(f"- {count} rows: {reason}" for reason, count in reasons.most_common())
    return f"{len(judged.unpriced)} of {len(read_published())} published rows are not priced:\n\n{lines}"


def _coverage_table(judged: Judged, field: str, names: dict[str, str]) -> str:
    lines = [
        f"| {field} | test rows | of sources | median error | median absolute | held | by sources | 95 % of that |"
    ]
    lines += ["| --- " * 8 + "|"]
    for name, title in names.items():
        rows = [each for each in judged.test if getattr(each, field) == name]
        rows = [each for each in rows if not each.development] or rows
        found = coverage(judged.test, rows) if rows else None
        lines.append(f"| {name}: {title} | {_cells(rows, found)} |")
    return "\n".join(lines)


def _crossed_table(judged: Judged) -> str:
    lines = [f"| kind | {' | '.join(LEVELS)} |", "| --- " * (len(LEVELS) + 1) + "|"]
    for kind in KINDS:
        cells = []
        for known in LEVELS:
            rows = [each for each in judged.test if (each.kind, each.known) == (kind, known)]
            found = coverage(judged.test, rows) if rows else None
            sources = len({each.source for each in rows})
            cells.append("" if found is None else f"{found.held} of {found.rows}, {sources} sources")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cells(rows: Sequence[Sample], found: Coverage | None) -> str:
    if found is None:
        return " | ".join(["0", "0", "", "", "", "", ""])
    low, high = found.range
    sources = len({each.source for each in rows})
    note = ", seen in development" if any(each.development for each in rows) else ""
    figures = f"{found.median:+.0%} | {found.median_absolute:.0%} | {found.held} of {found.rows} | {found.share:.0%}"
    return f"{len(rows)}{note} | {sources} | {figures} | {low:.0%} to {high:.0%}"


def _interval_table(intervals: Iterable[ErrorInterval]) -> str:
    lines = ["| kind | known | from | to | rows | sources | taken together |", "| --- " * 7 + "|"]
    for each in intervals:
        seen = " (seen in development)" * each.development
        lines.append(
            f"| {each.kind} | {each.known} | x {each.low:.2f} | x {each.high:.2f} | {each.rows}{seen} | "
            f"{each.sources} | {each.pooled} |"
        )
    return "\n".join(lines)


def _development_table(judged: Judged) -> str:
    around = {(each.kind, each.known): each for each in judged.intervals}
    lines = ["| kind | rows | of sources | within their interval |", "| --- " * 4 + "|"]
    for kind in KINDS:
        rows = [each for each in judged.development if each.kind == kind]
        if rows:
            held = sum(
                around[each.kind, each.known].low <= each.factor <= around[each.kind, each.known].high for each in rows
            )
            lines.append(f"| {kind} | {len(rows)} | {len({each.source for each in rows})} | {held} |")
    return "\n".join(lines)
