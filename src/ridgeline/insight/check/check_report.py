"""What a check found."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_MAX_LINES = 8  # lines of one kind: what has gone wrong for one tensor has often gone wrong for all


@dataclass(frozen=True, slots=True)
class Finding:
    """Something wrong, in one line with its fix. part: of the folder: `files`, `tensors`, `tokenizer`."""

    part: str
    problem: str


@dataclass(slots=True)
class CheckReport:
    """findings: what is wrong. notes: what is worth knowing and no fault. facts: what was looked at, by part."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong."""
        return not self.findings

    def found(self, part: str, problems: Iterable[str]) -> bool:
        """Take problems of a part; whether there are any."""
        before = len(self.findings)
        self.findings += [Finding(part, problem) for problem in problems]
        return len(self.findings) > before

    def note(self, part: str, notes: Iterable[str]) -> None:
        """Take notes of a part."""
        self.notes += [Finding(part, note) for note in notes]


def few(problems: Iterable[str], what: str) -> Iterator[str]:
    """The first problems of a kind, and how many more there are. what: they are of, in the plural."""
    all_problems = list(problems)
    yield from all_problems[:_MAX_LINES]
    if len(all_problems) > _MAX_LINES:
        yield f"and so are {len(all_problems) - _MAX_LINES} more {what}"
