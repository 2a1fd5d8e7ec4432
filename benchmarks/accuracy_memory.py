"""Logged weights and KV pages beside what `plan` says: from the KV bytes that were logged, and from the whole card."""

from dataclasses import dataclass

from accuracy_replay import case_of, facts
from ridgeline.roofline.plan.case import Case, Workload
from ridgeline.roofline.plan.memory import OVERHEAD_RULE, memory_of

GIB = 2**30
PAGE = 16


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """A logged figure and ours. allowed: the error that is asked for."""

    id: str
    model: str
    cards: str
    what: str
    measured: float
    ours: float
    allowed: float

    @property
    def error(self) -> float:
        """Ours over measured, less one."""
        return self.ours / self.measured - 1

    @property
    def missed(self) -> bool:
        """Whether the error is beyond what is asked for."""
        return abs(self.error) > self.allowed

    def line(self) -> list[str]:
        """The cells of its line in the report."""
        allowed = f"{self.allowed:.1%}"
        figures = [f"{self.measured:g}", f"{self.ours:.5g}", f"{self.error:+.2%}"]
        return [self.id, self.model, self.cards, self.what, *figures, allowed]


def rows() -> list[MemoryRow]:
    """Every log on file."""
    return [_row(line) for line in facts("memory.csv")]


def summary(found: list[MemoryRow]) -> str:
    """How many are within what is asked for."""
    missed = [row.id for row in found if row.missed]
    within = f"{len(found) - len(missed)} of {len(found)} rows are within what is allowed"
    return f"Rule: {OVERHEAD_RULE}. {within}; missed: {', '.join(missed) or 'none'}."


def _row(line: dict[str, str]) -> MemoryRow:
    case = case_of(
        line["model"], line["card"], int(line["devices"]), line["weights"], line["kv"], float(line["utilization"])
    )
    ours, allowed = _ours(line, case)
    cards = f"{line['devices']} x {line['card']}"
    return MemoryRow(line["id"], line["model"], cards, line["what"], float(line["value"]), ours, allowed)


def _ours(line: dict[str, str], case: Case) -> tuple[float, float]:
    what = line["what"]
    if what == "weights GiB":
        return case.price.weight_bytes / GIB, 0.015
    if what.startswith("pages of"):
        logged = float(what.split()[2]) * GIB
        return logged // (PAGE * sum(spec.bytes_per_token for spec in case.model.kv_specs)), 0.015
    held = memory_of(case, Workload(2047, 1, step_tokens=int(line["step_tokens"]), page_size=PAGE))
    return (float(held.pages), 0.10) if what == "pages" else (held.concurrency, 0.10)
