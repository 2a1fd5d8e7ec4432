"""Logged weights and KV pages beside what `plan` says: from the KV bytes that were logged, and from the whole card."""

import statistics
from dataclasses import dataclass, replace

from accuracy_replay import case_of, facts
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.plan.device_memory import memory_of
from ridgeline.price.plan.scenario import PlanWorkload, Scenario

GIB = 2**30
PAGE = 16


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A logged figure and ours. allowed: the error that is asked for."""

    id: str
    model: str
    card: str
    devices: int
    engine: str
    what: str
    measured: float
    ours: float
    allowed: float

    @property
    def error(self) -> float:
        """Ours over measured, less one."""
        return self.ours / self.measured - 1

    @property
    def from_the_card(self) -> bool:
        """Whether it is what a whole card holds, not what logged bytes do."""
        return self.what in ("pages", "concurrency at 2048")

    @property
    def missed(self) -> bool:
        """Whether the error is beyond what is asked for."""
        return abs(self.error) > self.allowed

    def line(self) -> list[str]:
        """The cells of its line in the report."""
        allowed = f"{self.allowed:.1%}"
        cards = f"{self.devices} x {self.card}"
        figures = [f"{self.measured:g}", f"{self.ours:.5g}", f"{self.error:+.2%}"]
        return [self.id, self.model, cards, self.engine, self.what, *figures, allowed]


def rows() -> list[MemoryRow]:
    """Every log on file."""
    return [_row(line) for line in facts("memory.csv")]


def summary(found: list[MemoryRow]) -> str:
    """How many are within what is asked for."""
    missed = [row.id for row in found if row.missed]
    median = statistics.median(abs(row.error) for row in found)
    within = (
        f"{len(found) - len(missed)} of {len(found)} rows are within what is allowed, {median:.1%} off by the median"
    )
    rule = load_engine().memory.describe()
    return f"Rule for vLLM: {rule}; its sampler's peak. {within}; missed: {', '.join(missed) or 'none'}."


def _row(line: dict[str, str]) -> MemoryRow:
    devices, engine = int(line["devices"]), line["engine"]
    case = case_of(
        line["model"], line["card"], devices, line["weights"], line["kv"], float(line["utilization"]), engine
    )
    ours, allowed = _ours(line, _with_rows(case, int(line["rows"] or 0)))
    return MemoryRow(
        line["id"], line["model"], line["card"], devices, engine, line["what"], float(line["value"]), ours, allowed
    )


def _with_rows(case: Scenario, rows: int) -> Scenario:
    """The case with so many requests at once, where the log has another number than the engine's default."""
    if not rows:
        return case
    engine = case.setup.engine
    driven = replace(engine, memory=replace(engine.memory, rows=rows, large=None))
    return Scenario(replace(case.setup, engine=driven), case.model, case.price)


def _ours(line: dict[str, str], case: Scenario) -> tuple[float, float]:
    what = line["what"]
    if what == "weights GiB":
        return case.price.weight_bytes / GIB, 0.015
    if what.startswith("pages of"):
        logged = float(what.split()[2]) * GIB
        return logged // (PAGE * sum(spec.bytes_per_token for spec in case.model.kv_specs)), 0.015
    # Long requests: so few that the engine's rows of logits are enough, as they were in the log.
    length = 8192 if what == "pages" else 2048
    held = memory_of(case, PlanWorkload(length - 1, 1, step_tokens=int(line["step_tokens"]), page_size=PAGE))
    return (float(held.pages), 0.10) if what == "pages" else (held.concurrency, 0.10)
