"""The published rows that intervals are made of: complete, of many sources, and divided by source."""

import csv
import hashlib
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from published_rows import CLASSES, MEASURED, PublishedRow, published_section, read_published  # noqa: E402

RESERVED = (
    "sgl-cookbook", "amd-strix-halo-toolboxes", "onediff", "qwenlm", "ai-benchmarks", "diffusers-torchao", "autoawq",
    "vllm-project", "lmsys", "pytorch/ao", "ml-engineering", "dstackai", "ik_llama", "deepgemm", "vultr", "jetsonhacks",
    "ggml-org", "dao-ailab",
)  # fmt: skip
"""Parts of names of sources from which no row may come, because others judge the predictions by them."""


@pytest.fixture(scope="module")
def rows() -> list[PublishedRow]:
    return read_published()


def test_each_row_is_complete(rows: list[PublishedRow]) -> None:
    assert max(Counter(row.id for row in rows).values()) == 1
    for row in rows:
        needed = (row.model, row.card, row.weights, row.metric, row.unit, row.engine, row.source, row.location)
        assert all(needed), row.id
        assert row.kind in CLASSES, row.id
        assert row.value > 0, row.id
        assert row.devices > 0, row.id
        assert re.fullmatch(r"202[456]-(0[1-9]|1[0-2])(-\d\d)?", row.date), row.id
        assert row.batch or row.rate or row.requests, row.id
        assert row.input or row.output or row.conditions, row.id


def test_no_row_is_of_a_reserved_source(rows: list[PublishedRow]) -> None:
    for row in rows:
        assert not any(name in row.source.lower() for name in RESERVED), row.id


@pytest.mark.parametrize("is_test", [False, True])
def test_every_class_has_rows_of_several_sources(rows: list[PublishedRow], *, is_test: bool) -> None:
    """Check that each class has 40 test rows of four sources, from which intervals can be made, and others to learn."""
    for kind in CLASSES:
        own = [row for row in rows if row.kind == kind and row.is_test == is_test]
        assert len(own) >= (40 if is_test else 8), kind
        assert len({row.source for row in own}) >= (4 if is_test else 2), kind


def priced_before() -> set[str]:
    """Return the sources of rows that predictions were compared with before the others were collected."""
    found: set[str] = set()
    for name in ("static", "serving", "envelope", "images", "kernels"):
        with (MEASURED / f"{name}.csv").open(newline="", encoding="utf-8") as file:
            found |= {line["source"].split()[0] for line in csv.DictReader(file)}
    return found


def test_sources_priced_before_are_for_development(rows: list[PublishedRow]) -> None:
    known = [row for row in rows if row.source in priced_before()]
    assert len(known) > 40
    assert not any(row.is_test for row in known)


def test_sources_are_divided_by_their_names(rows: list[PublishedRow]) -> None:
    """Repeat the division, which does not depend on the errors of rows."""
    new = {row.source for row in rows} - priced_before()
    kinds = {source: Counter(row.kind for row in rows if row.source == source) for source in new}
    for kind in CLASSES:
        sources = [source for source, own in kinds.items() if own.most_common(1)[0][0] == kind]
        sources.sort(key=lambda source: hashlib.sha256(source.encode()).hexdigest())
        found = [next(row.is_test for row in rows if row.source == source) for source in sources]
        assert found == [place % 3 != 1 for place in range(len(sources))], kind


def test_the_page_counts_the_rows(rows: list[PublishedRow]) -> None:
    assert published_section(rows) in (BENCHMARKS / "accuracy.md").read_text(encoding="utf-8")
