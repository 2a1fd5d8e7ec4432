"""Published measurements of many sources, by which intervals of predictions are made and judged.

`measured/published.csv` has one figure per row with its conditions. `card` is a name of the device catalogue if the
catalogue has the device. `measured/published_sources.csv` divides the sources, as was done before any row was priced:
development rows may be read one by one, test rows only enter totals by class. Sources of which a row was priced before
(static.csv, serving.csv, envelope.csv, images.csv, kernels.csv) are for development. In each class, the other sources
in the order of their names' SHA-256 went in turn to test, development and test.

`measured/published_models.csv` has a line for each text in the column `model`: the configuration that prices it, or why
none does.
"""

import csv
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

MEASURED = Path(__file__).resolve().parent / "measured"
FILE = MEASURED / "published.csv"
"""The file of rows."""
SOURCES = MEASURED / "published_sources.csv"
"""The file that says of each source whether it is for `development` or for `test`."""
MODELS = MEASURED / "published_models.csv"
"""The file that names a configuration for each text in the column `model`."""
CLASSES = {
    "decode": "tokens per second, or the time of a step, while a batch decodes",
    "prefill": "the prefill of prompts",
    "static": "a batch from its first prompt token to its last output token",
    "load": "first tokens, tokens and throughput under a request rate or a number of users",
}
"""The classes of rows, with what they measure."""


@dataclass(frozen=True, slots=True)
class PublishedRow:
    """One published figure with the conditions under which it was measured; a field is "" if it does not apply."""

    id: str
    kind: str
    """One of CLASSES."""
    model: str
    card: str
    """The device by its name in the catalogue, or as the source calls it."""
    devices: int
    """The number of devices that run one copy of the model."""
    weights: str
    kv: str
    batch: str
    """The sequences of a batch, or the users of a closed loop."""
    input: str
    output: str
    rate: str
    """Requests per second."""
    requests: str
    step_tokens: str
    metric: str
    """The statistic as the source names it."""
    value: float
    unit: str
    engine: str
    date: str
    """The month of the measurement, or of its publication."""
    conditions: str
    source: str
    """The publisher: a repository or a site."""
    location: str
    """The file, thread or page within the source."""

    is_test: bool
    """Whether the source is for tests."""


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """The configuration of a model that rows name, whatever format its weights are stored in, or why there is none."""

    config: str
    """The configuration by its name in the catalogue, else in `measured/models`; "" if the model has no price."""
    reason: str
    """Why the model has no price; "" if it has a configuration."""
    source: str
    """The files that the configuration's values, or their equality with another release's, come from; else ""."""


def read_published() -> list[PublishedRow]:
    """Read all rows.

    Raises:
        ValueError: If a row has other columns, or a number that is none.
    """
    with SOURCES.open(newline="", encoding="utf-8") as file:
        uses = {line["source"]: line["use"] for line in csv.DictReader(file)}
    with FILE.open(newline="", encoding="utf-8") as file:
        lines = csv.DictReader(file)
        if lines.fieldnames != [field.name for field in fields(PublishedRow)][:-1]:
            raise ValueError(f"{FILE}: the columns must be the fields of PublishedRow")
        return [_row(line, uses) for line in lines]


def read_models() -> dict[str, PublishedModel]:
    """Read what prices each model, by the text in the column `model` of the rows.

    Raises:
        ValueError: If a model has two lines, or a line does not have either a configuration or a reason.
    """
    models: dict[str, PublishedModel] = {}
    with MODELS.open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            name, entry = line["model"], PublishedModel(line["config"], line["reason"], line["source"])
            if name in models:
                raise ValueError(f"{MODELS}: {name} has two lines: remove one")
            if bool(entry.config) == bool(entry.reason):
                raise ValueError(f"{MODELS}: {name} must have a configuration or a reason: give one of them")
            models[name] = entry
    return models


def _row(line: Mapping[str, str], uses: Mapping[str, str]) -> PublishedRow:
    use = uses.get(line["source"])
    if use not in ("development", "test"):
        raise ValueError(f"{SOURCES}: {line['source']} must be for development or for test")
    numbers = {"devices": int(line["devices"]), "value": float(line["value"])}
    return PublishedRow(**{**line, **numbers, "is_test": use == "test"})  # type: ignore[arg-type]


def published_section(rows: list[PublishedRow]) -> str:
    """Return a section of the page that counts rows and sources by class."""
    lines = ["| class | development rows | of sources | test rows | of sources |", "| --- | --- | --- | --- | --- |"]
    for kind, title in CLASSES.items():
        counts = []
        for is_test in (False, True):
            sources = Counter(row.source for row in rows if row.kind == kind and row.is_test == is_test)
            counts += [str(sources.total()), str(len(sources))]
        lines.append(f"| {kind}: {title} | {' | '.join(counts)} |")
    return f"""## Which rows do the intervals come from?

`measured/published.csv` has {len(rows)} rows of {len({row.source for row in rows})} sources. Each source is for
development or for tests (`measured/published_sources.csv`), as was decided before any row was priced. No row of a test
source may choose a constant, and this page shows only totals of them.

{chr(10).join(lines)}"""
