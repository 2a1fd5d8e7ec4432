"""The page benchmarks/accuracy.md: sections and tables of Markdown, of what accuracy_findings.py has."""

import fnmatch
import statistics
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import accuracy_images as images
import accuracy_kernels as kernels
import accuracy_memory as memory
from accuracy_findings import Findings, Result
from accuracy_intervals import Judged, interval_section, unpriced_published
from accuracy_replay import MEASURED, METRICS, UNITS, Row, published, published_as
from published_rows import published_section, read_published
from ridgeline.price.engine_profile import load_engine

NEAR, FAR = 0.15, 0.25
CARDS = Path(__file__).resolve().parents[1] / "src" / "ridgeline" / "price" / "cards.toml"


def report(found: Findings, judged: Judged) -> str:
    """The whole page."""
    return f"""# How accurate are predictions for GPUs?

This page compares predictions with published measurements of other engines, row by row. It is for readers who want to
know how far they can trust a figure of `ridgeline plan`. `make accuracy` makes the page from the facts in
`benchmarks/measured/`, where each row names its source.

The error is expected over measured, minus one, in the unit of the row. Above zero, a time is predicted too long and a
rate too high. A floor is a limit that nothing can beat: the shortest time, the highest rate. The top of
`benchmarks/accuracy_replay.py` says what each metric means in priced steps.

The constants of GPUs are fits to kernel times (`price/cards.toml` names the source of each). The constants of engines
come from source code, documentation, profiles and micro-benchmarks (below). No row of time, judged or not, chose a
constant. If only such a row could determine a constant, the row keeps its error.

{interval_section(judged)}

{judged_section(found.chosen)}

{other_section(found.others)}

{envelope_section(found.most)}

{image_section(found.images)}

{test_image_section(found.test_images)}

{kernel_section(found.kernels)}

{memory_section(found.memory)}

{guard_section([*found.timed, *found.most], found.images)}

{constants_section()}

{unpriced_section(found.unpriced)}

{published_section(read_published())}

{unpriced_published(judged)}
"""


def judged_section(chosen: list[Result]) -> str:
    """What is judged, by family, by engine and row by row."""
    within, mean = sum(abs(r.error) <= NEAR for r in chosen), statistics.mean(abs(r.error) for r in chosen)
    return f"""## Judged rows

**{len(chosen)} rows: median absolute error {median_error(chosen):.1%}, mean {mean:.1%}, {within} within 15 %.**
`measured/judged.txt` lists these rows.

{groups(chosen)}

{engine_table(chosen)}

The ten rows with the largest errors:

{worst_list(chosen)}

All judged rows:

{row_table(chosen)}

Errors beyond 25 %, with their reasons:

{misses((r.row.id, r.error) for r in chosen)}"""


def other_section(others: list[Result]) -> str:
    """Rows of time that are not judged."""
    return f"""## Other rows

These rows are not judged. They include GPUs without calibrated kernels, and llama.cpp, ExLlamaV2, MLC and others.

{groups(others)}

{engine_table(others)}

{row_table(others)}

Errors beyond 25 %, with their reasons:

{misses((r.row.id, r.error) for r in others)}"""


def envelope_section(most: list[Result]) -> str:
    """Maximum throughput against the bound."""
    below = [r for r in most if r.predicted.bound < r.row.measured]
    return f"""## Maximum throughput: the bound is the envelope

These published tables give the highest rate that a tool found; the batch is not known. The bound assumes perfect
kernels and as many users as memory holds, so it must not be below the rate.
It is below in {len(below)} of {len(most)} rows. The expected figure is next to it; its median absolute error is
{median_error(most):.1%}.

{
        table(
            ("id", "model", "cards", "in / out", "measured tok/s", "expected", "bound", "expected error"),
            [
                (
                    r.row.id,
                    r.row.model,
                    f"{r.row.devices} x {r.row.card}",
                    f"{r.row.input} / {r.row.output}",
                    f"{r.row.value:.0f}",
                    f"{r.predicted.expected:.0f}",
                    f"{r.predicted.bound:.0f}",
                    percent(r.error),
                )
                for r in most
            ],
        )
    }"""


def kernel_section(rows: list[kernels.KernelRow]) -> str:
    """Single kernels."""
    return f"""## Kernels

These are single kernels, from the tables that the constants were fitted to. The errors show how well three figures per
kernel describe them.

{kernels.summary(rows)}

{
        table(
            ("id", "kernel", "shape", "tokens", "context", "card", "measured us", "expected us", "floor us", "error"),
            [k.line() for k in rows],
        )
    }

Errors beyond 25 %, with their reasons:

{misses((k.id, k.error) for k in rows)}"""


def memory_section(rows: list[memory.MemoryRow]) -> str:
    """Weights and pages."""
    return f"""## Memory

The rows compare weights and KV pages with those in an engine's log. Pages are computed from the KV bytes that the
engine logged (1.5 % allowed), or from the GPU's memory under the engine's rule for overhead (10 % allowed).

{table(("id", "model", "cards", "engine", "what", "measured", "ours", "error", "allowed"), [m.line() for m in rows])}

{memory.summary(rows)}

{chr(10).join(f"- {m.id}: {why(m.id) or 'not explained'}." for m in rows if m.missed)}"""


def image_section(found: Sequence[images.ImageRow]) -> str:
    """Pictures and clips."""
    apart = [
        (name, len(rows), f"{images.median_error(rows):.1%}", percent(statistics.median(row.error for row in rows)))
        for name, rows in images.groups(found).items()
    ]
    return f"""## Images and video

{len(found)} rows: median absolute error {images.median_error(found):.1%}, with the constants for language models.
The top of `benchmarks/accuracy_images.py` says what the rows measure. The other published rows are in the last
section, each with the reason why it is not priced.

{table(("apart", "rows", "median absolute error", "median error"), apart)}

{table(images.HEADS, [row.line() for row in found])}

Errors beyond 25 %, with their reasons:

{misses((row.id, row.error) for row in found)}"""


def test_image_section(found: Sequence[images.ImageRow]) -> str:
    """Return the section of totals over the test rows of images and videos."""
    totals = [
        (
            name,
            len(rows),
            len({row.source for row in rows}),
            f"{images.median_error(rows):.1%}",
            percent(statistics.median(row.error for row in rows)),
            f"{sum(abs(row.error) <= FAR for row in rows)} of {len(rows)}",
            f"{images.median_of_sources(rows):.1%}",
        )
        for name, rows in images.groups_for_totals(found).items()
    ]
    return f"""### Test rows of images and video

`measured/images_test.csv` has {len(found)} rows of {len({row.source for row in found})} sources of which no row was
priced when they were committed. No constant was changed afterwards. Only totals are shown, so that the rows can test
intervals. The last column is the median over the sources of each source's median absolute error. The physics guard
rejects {sum(row.guard is not None for row in found)} of these rows.

{
        table(
            (
                "test rows",
                "rows",
                "sources",
                "median absolute error",
                "median error",
                "within 25 %",
                "median of sources",
            ),
            totals,
        )
    }"""


def guard_section(found: Sequence[Result], drawn: Sequence[images.ImageRow]) -> str:
    """Measurements that the physics guard does not believe."""
    guarded = [(r.row.id, r.guard) for r in found if r.guard] + [(r.id, r.guard) for r in drawn if r.guard]
    return f"""## Physics guard

A measurement that is more than 10 % better than the floor would be an error in the device's data, the shape or the
timer. Such rows: {", ".join(f"{name}: {text}" for name, text in guarded) or "none"}."""


def constants_section() -> str:
    """Return the section on the sources of the constants of engines and devices."""
    names = dict.fromkeys(entry.profile for entry in published())
    lines = [
        f"- **{(engine := load_engine(name)).title}**, "
        + "; ".join(f"{field}: {source}" for field, source in engine.sources.items())
        for name in names
    ]
    return f"""## Where do the constants come from?

No constant comes from a row of this page, except those of kernels and of memory, which the sections above name.

Engines:

{chr(10).join(lines)}

Devices, by the set of efficiencies in `price/cards.toml`:

{chr(10).join(f"- **{name}**: {source}" for name, source in efficiency_sets().items())}"""


def efficiency_sets() -> dict[str, str]:
    """Return the source of each set of efficiencies in cards.toml; a short name stands for an entry of its sources."""
    catalogue = tomllib.loads((CARDS).read_text(encoding="utf-8"))
    return {
        name: catalogue["sources"].get(source := constants.get("source", "typical figures of its kind"), source)
        for name, constants in catalogue["efficiency"].items()
    }


def unpriced_section(unpriced: dict[str, list[str]]) -> str:
    """Measurements without a prediction."""
    return f"""## Which rows are not priced?

{chr(10).join(f"- {reason}: {len(names)} rows ({', '.join(names)})" for reason, names in unpriced.items())}"""


def groups(found: Sequence[Result]) -> str:
    """Medians by metric, source, card class and date."""
    by_metric = sorted(found, key=lambda r: list(METRICS).index(r.row.metric_class))
    by_date = sorted(found, key=lambda r: r.engine.date)
    return "\n\n".join(
        (
            group_table("metric", by_metric, lambda r: f"{r.row.metric_class}: {METRICS[r.row.metric_class]}"),
            group_table("source", found, lambda r: r.source),
            group_table("cards", found, lambda r: r.card_class),
            group_table("date of the engine", by_date, lambda r: r.engine.date),
        )
    )


def grouped(found: Iterable[Result], key: Callable[[Result], str]) -> dict[str, list[Result]]:
    """Rows by a property, in order of appearance."""
    groups: dict[str, list[Result]] = {}
    for result in found:
        groups.setdefault(key(result), []).append(result)
    return groups


def group_table(what: str, found: Iterable[Result], key: Callable[[Result], str]) -> str:
    """Medians by a property of the rows."""
    return table(
        (what, "rows", "median error", "median absolute error", f"within {NEAR * 100:.0f} %"),
        [
            (
                name, len(rows), percent(statistics.median(r.error for r in rows)), f"{median_error(rows):.1%}",
                f"{sum(abs(r.error) <= NEAR for r in rows)} of {len(rows)}",
            )
            for name, rows in grouped(found, key).items()
        ],
    )  # fmt: skip


def engine_table(found: Iterable[Result]) -> str:
    """Medians by engine, and what each of them leaves open."""
    return table(
        ("engine", "date", "priced as", "rows", "median absolute error", "what it leaves open"),
        [
            (
                name, (entry := published_as(name)).date, load_engine(entry.profile).title, len(rows),
                f"{median_error(rows):.1%}", entry.open,
            )
            for name, rows in grouped(found, lambda r: r.row.engine).items()
        ],
    )  # fmt: skip


def row_table(found: Iterable[Result]) -> str:
    """One line a row."""
    return table(
        (
            "id", "model", "cards", "weights", "batch", "in / out", "what", "class", "measured", "expected", "floor",
            "error",
        ),
        [
            (
                r.row.id, r.row.model, f"{r.row.devices} x {r.row.card}", r.row.weights, r.row.batch or "?",
                f"{r.row.input} / {r.row.output}", r.row.metric, r.row.metric_class, shown(r.row, r.row.measured),
                shown(r.row, r.predicted.expected), shown(r.row, r.predicted.floor), percent(r.error),
            )
            for r in found
        ],
    )  # fmt: skip


def misses(names: Iterable[tuple[str, float]]) -> str:
    """Rows beyond a quarter, with the reason on file, by reason."""
    by_reason: dict[str, list[str]] = {}
    for name, error in names:
        if abs(error) > FAR:
            by_reason.setdefault(why(name) or "not explained", []).append(f"{name} ({percent(error)})")
    return "\n".join(f"- {', '.join(ids)}: {reason}." for reason, ids in by_reason.items()) or "None."


def worst(found: Iterable[Result], count: int = 10) -> list[Result]:
    """The rows that miss most, either way alike: by the larger of the two figures over the smaller one."""
    return sorted(found, key=lambda r: -max(1 + r.error, 1 / (1 + r.error)))[:count]


def worst_list(found: Iterable[Result]) -> str:
    """The worst ten with the reason on file."""
    return "\n".join(
        f"{place}. {r.row.id} ({percent(r.error)}): {why(r.row.id) or 'not explained'}."
        for place, r in enumerate(worst(found), 1)
    )


def why(name: str) -> str:
    """The reason on file for a row that misses; empty if there is none."""
    reasons = tomllib.loads((MEASURED / "explained.toml").read_text(encoding="utf-8"))["reason"]
    return next((r["why"] for r in reasons if any(fnmatch.fnmatch(name, pattern) for pattern in r["rows"])), "")


def median_error(found: Iterable[Result]) -> float:
    """Median of the absolute errors."""
    return statistics.median(abs(result.error) for result in found)


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    rows = [head, ["---"] * len(head), *lines]
    return "\n".join("| " + " | ".join(str(cell) for cell in row) + " |" for row in rows)


def percent(value: float) -> str:
    """A signed share."""
    return f"{value:+.1%}"


def shown(row: Row, value: float) -> str:
    """A figure in the unit that was published."""
    return f"{value / UNITS[row.unit]:.4g} {row.unit}"
