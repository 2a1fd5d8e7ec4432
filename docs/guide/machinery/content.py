"""The content of the guide's marks and directives, which is the same in Sphinx and in a forge."""

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from docs.guide.machinery.chapters import ROOT

from ridgeline.learn.guide.guide_numbers import GuideNumber
from ridgeline.learn.guide.quizzes import QuizQuestion, number_in
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.statement import Statement
from ridgeline.learn.lab.statement_report import statements as statements_of

PACKAGE = ROOT / "src" / "ridgeline"
CALCULATOR = "calculator.html"
_MODEL = "llama-3-8b"
CALCULATOR_OPTIONS = f"--models {_MODEL} --weights stored,int4 --kv stored --devices 1 --no-runs --trace ''"
"""The options of `ridgeline page export` that write the calculator of the chapters."""


def number_named(numbers: Mapping[str, GuideNumber], name: str) -> GuideNumber:
    """Look up a number of the lock. Raises ValueError if there is none of that name."""
    if name not in numbers:
        raise ValueError(f"there is no number {name!r} in numbers.toml")
    return numbers[name]


def quoted(text: str) -> str:
    """Put a text in quotation marks."""
    return f"“{text}”"


def source_of(path: Path, name: str) -> tuple[int, str]:
    """Return the line and the code of a function, a class, or a method `Class.method`. Raises ValueError if the file
    has no such name."""
    text = path.read_text(encoding="utf-8")
    within: Any = ast.parse(text)
    for part in name.split("."):
        found = [node for node in within.body if getattr(node, "name", None) == part]
        if not found:
            raise ValueError(f"{path.relative_to(ROOT)} has no {name}")
        within = found[0]
    first = min([within.lineno, *(each.lineno for each in within.decorator_list)])
    return within.lineno, "\n".join(text.splitlines()[first - 1 : within.end_lineno])


def solution_title(exercise: str) -> str:
    """Return the line above a folded solution, as HTML."""
    return f"One solution of the exercise <code>{escape(exercise)}</code>"


ANSWER_TITLE = "Done? Compare"


@cache
def statements() -> Sequence[Statement]:
    """Return the statements of the texts with the ledger's figures of today."""
    return statements_of(CostCalculator())


# -- questions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fold:
    """A text that a click on its title, a line of HTML, opens. right: whether it is the right choice, if it is one."""

    title: str
    verdict: str
    text: str
    right: bool | None = None


def folds_of(question: QuizQuestion) -> list[Fold]:
    """Return the folds of a question: one for each choice, or one for the number that it asks for."""
    if question.answer is not None:
        verdict = f"{question.answer.text}, within {question.within:.0%}."
        return [Fold("Make up your mind, then look", verdict, question.why)]
    return [
        Fold(prose_html(choice.text), "Right." if choice.right else "No.", choice.why, choice.right)
        for choice in question.choices
    ]


def prose_html(text: str) -> str:
    """Return a text with code between backticks and emphasis between asterisks as HTML."""
    parts = re.split("(`[^`]+`)", text)
    return "".join(
        f"<code>{escape(part[1:-1])}</code>"
        if part.startswith("`")
        else re.sub(r"\*(\S[^*]*)\*", r"<em>\1</em>", escape(part))
        for part in parts
    )


@dataclass(frozen=True, slots=True)
class Guess:
    """A question that the reader answers with a guess before the page shows the ledger's number."""

    name: str
    ask: str
    number: GuideNumber
    least: float
    most: float
    text: str
    """The figure that a text gives; empty if no text gives one."""

    @property
    def told(self) -> str:
        """The sentence that quotes the text, with a space behind it; empty if no text gives a figure."""
        return f"A text says: {self.text}. " if self.text else ""


def guess_of(arguments: str, text: str, ask: str, numbers: Mapping[str, GuideNumber]) -> Guess:
    """Read the directive `{guess}`. arguments: NAME LEAST MOST, the ends in the unit of the number's text. Raises
    ValueError for a number that is unknown or outside the ends."""
    name, *ends = arguments.split()
    number = number_named(numbers, name)
    least, most = map(float, ends)
    if not least <= number_in(number.text) <= most:
        raise ValueError(f"{number.text} is not from {least} to {most}")
    return Guess(name, " ".join(ask.split()), number, least, most, text)


# -- the calculator ---------------------------------------------------------------------------------------------------


def calculator_address(case: str) -> str:
    """Return the address of the calculator, set to a case: `card=NAME&users=N&...`."""
    return f"{CALCULATOR}#calculator&model={_MODEL}&{case}"
