"""The report of a model check."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_MAX_LINES = 8  # the most lines of one kind, because a problem of one tensor often affects all


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, or a remark, in one line."""

    part: str
    """The checked part of the folder, such as `files`, `tensors` or `tokenizer`."""
    problem: str
    """The problem with its fix, or the remark."""


@dataclass(slots=True)
class CheckReport:
    """The result of checking a model."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    """The problems."""
    notes: list[Finding] = field(default_factory=list)
    """Remarks that are not problems."""
    facts: dict[str, str] = field(default_factory=dict)
    """A summary of what was checked, by part."""

    @property
    def sound(self) -> bool:
        """Whether there are no problems."""
        return not self.findings

    def found(self, part: str, problems: Iterable[str]) -> bool:
        """Add the problems of a part, and return whether there are any."""
        before = len(self.findings)
        self.findings += [Finding(part, problem) for problem in problems]
        return len(self.findings) > before

    def note(self, part: str, notes: Iterable[str]) -> None:
        """Add remarks on a part."""
        self.notes += [Finding(part, note) for note in notes]


def few(problems: Iterable[str], what: str) -> Iterator[str]:
    """Yield the first problems of a kind, and how many more there are.

    Args:
        problems: The problems.
        what: The plural noun for what they concern.
    """
    all_problems = list(problems)
    yield from all_problems[:_MAX_LINES]
    if len(all_problems) > _MAX_LINES:
        yield f"and so are {len(all_problems) - _MAX_LINES} more {what}"
