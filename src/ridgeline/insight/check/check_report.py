"""The report of a model check, with problems, remarks and a summary."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

_MAX_LINES = 8  # the most lines of one kind, because a problem of one tensor often affects all


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a checked model, mostly with its fix, or a remark, in one line."""

    part: str
    """The checked part of the model folder or file, such as `files`, `tensors` or `tokenizer`."""
    problem: str
    """The problem, mostly with its fix, or the remark."""


@dataclass(slots=True)
class CheckReport:
    """The result of checking a model folder or file: its problems, remarks and facts."""

    name: str
    findings: list[Finding] = field(default_factory=list)
    """The problems that the check found."""
    notes: list[Finding] = field(default_factory=list)
    """Remarks on the model that are not problems."""
    facts: dict[str, str] = field(default_factory=dict)
    """A summary of what was checked, by part of the model."""

    @property
    def sound(self) -> bool:
        """Whether the check found no problems."""
        return not self.findings

    def found(self, part: str, problems: Iterable[str]) -> bool:
        """Add problems of one part of the model to the report, and return whether there are any."""
        before = len(self.findings)
        self.findings += [Finding(part, problem) for problem in problems]
        return len(self.findings) > before

    def note(self, part: str, notes: Iterable[str]) -> None:
        """Add remarks on one part of the model to the report."""
        self.notes += [Finding(part, note) for note in notes]


def few(problems: Iterable[str], what: str) -> Iterator[str]:
    """Yield the first eight problems of a kind, and then one line with the number of the others, if there are more.

    Args:
        problems: The problems.
        what: The plural noun for what they concern, such as `files`.
    """
    all_problems = list(problems)
    yield from all_problems[:_MAX_LINES]
    if len(all_problems) > _MAX_LINES:
        yield f"and so are {len(all_problems) - _MAX_LINES} more {what}"
