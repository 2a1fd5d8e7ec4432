"""The quiz questions of the guide, one TOML file per chapter, and the checks that make a question fair.

    [[question]]
    ask = "..."
    choices = [{text = "...", right = true, why = "..."}, ...]

The choices are shuffled, always in the same way. Instead of choices a question may have `number = {answer = "NAME",
within = 0.1}` and a `why`, with NAME a name in numbers.toml. Texts may refer to numbers as `{NAME}`.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from ridgeline.learn.guide.guide_numbers import GuideNumber

FOLDER = Path(__file__).with_name("questions")
_NUMBER = re.compile(r"\{([\w./-]+)\}")
_PROVEN_BY_CHANCE = 16.27
"""The value that chi-square with three degrees of freedom exceeds by chance once in a thousand times."""


@dataclass(frozen=True, slots=True)
class QuizChoice:
    """A choice of a multiple-choice question."""

    text: str
    """The text of a quiz choice."""
    right: bool
    """Whether a quiz choice is the right one."""
    why: str
    """The reason why a quiz choice is right, or the misconception behind a wrong one."""


@dataclass(frozen=True, slots=True)
class QuizQuestion:
    """A quiz question of a chapter, with choices or with a number as its answer."""

    chapter: str
    """The name of the chapter with the quiz question."""
    ask: str
    """The text of the quiz question."""
    choices: tuple[QuizChoice, ...] = ()
    """The three or four choices of a quiz question; empty if its answer is a number."""
    answer: GuideNumber | None = None
    """The number that answers the quiz question, if it has no choices."""
    within: float = 0.0
    """The relative error up to which a reader's number counts as the right answer."""
    why: str = ""
    """The explanation of the right number, for a quiz question without choices."""

    @property
    def unit(self) -> str:
        """The unit in which a numeric question expects its answer."""
        assert self.answer is not None
        return self.answer.text.lstrip("$0123456789.,").strip()

    @property
    def shown(self) -> float:
        """The number that answers a numeric question, in the unit of its text."""
        assert self.answer is not None
        return number_in(self.answer.text)

    def judge(self, value: float) -> bool:
        """Return whether a reader's number is close enough to the answer of a quiz question."""
        return abs(value - self.shown) <= self.within * abs(self.shown)


def number_in(text: str) -> float:
    """Return the first number in a text; it may have thousands separators.

    Raises:
        ValueError: If there is none.
    """
    found = re.search(r"-?\d[\d,]*\.?\d*(?:e[+-]?\d+)?", text)
    if found is None:
        raise ValueError(f"no number found in {text!r}")
    return float(found.group().replace(",", ""))


def read_quizzes(numbers: Mapping[str, GuideNumber], folder: Path = FOLDER) -> dict[str, list[QuizQuestion]]:
    """Return the questions of each chapter; a chapter has the name of its file.

    Raises:
        ValueError: If a file is invalid; the message names it.
    """
    found = {}
    for path in sorted(folder.glob("*.toml")):
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8"))["question"]
            found[path.stem] = [_question(path.stem, entry, numbers) for entry in entries]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path.name}: {type(error).__name__}: {error}") from error
    return found


def _question(chapter: str, entry: Mapping[str, Any], numbers: Mapping[str, GuideNumber]) -> QuizQuestion:
    def say(text: str) -> str:
        return _NUMBER.sub(lambda name: numbers[name[1]].text, text)

    ask = say(entry["ask"])
    if "number" in entry:
        wanted = entry["number"]
        return QuizQuestion(
            chapter, ask, answer=numbers[wanted["answer"]], within=wanted["within"], why=say(entry["why"])
        )
    choices = [QuizChoice(say(each["text"]), each.get("right", False), say(each["why"])) for each in entry["choices"]]
    Random(entry["ask"]).shuffle(choices)  # authors favour some positions; the seed keeps the order stable
    return QuizQuestion(chapter, ask, tuple(choices))


# -- what makes one fair ----------------------------------------------------------------------------------------------


def faults(quizzes: Mapping[str, Sequence[QuizQuestion]]) -> list[str]:
    """Return the unfair properties of all questions, one line each.

    They include right answers that can be guessed from their length or position, choices without a reason, questions
    that occur twice or do not have exactly one right choice, and numbers with too large a tolerance.
    """
    everything = [question for questions in quizzes.values() for question in questions]
    found = [f"{question.chapter}: {question.ask!r} {fault}" for question in everything for fault in _faults(question)]
    asks = Counter(question.ask for question in everything)
    found += [f"{ask!r} occurs twice as a question" for ask, times in asks.items() if times > 1]
    chosen = [question for question in everything if question.choices]
    longest = [question for question in chosen if _longest_is_right(question)]
    if len(longest) > 0.4 * len(chosen):
        found.append(f"the longest choice is the right one in {len(longest)} of {len(chosen)} questions")
    return [*found, *_places(chosen)]


def _faults(question: QuizQuestion) -> list[str]:
    if question.answer is not None:
        return (
            []
            if question.why and 0 < question.within <= 0.25
            else ["has no explanation, or its tolerance is too large"]
        )
    rights = sum(choice.right for choice in question.choices)
    found = [] if rights == 1 else [f"has {rights} right choices"]
    if not 3 <= len(question.choices) <= 4:
        found.append(f"has {len(question.choices)} choices; give three or four")
    if len({choice.text for choice in question.choices}) < len(question.choices):
        found.append("has the same choice twice")
    for choice in question.choices:
        if len(choice.why.split()) < 3:
            found.append(f"does not explain the choice {choice.text!r}")
        if re.search(r"\b(all|none|both) of (the above|these|them)\b", choice.text, re.IGNORECASE):
            found.append(f"refers to other choices in {choice.text!r}")
    return found


def _longest_is_right(question: QuizQuestion) -> bool:
    longest = max(len(choice.text) for choice in question.choices)
    return any(choice.right and len(choice.text) == longest for choice in question.choices)


def _places(questions: Sequence[QuizQuestion]) -> list[str]:
    """Return a line for each number of choices whose right answers are not evenly distributed over the positions."""
    found = []
    for count in (3, 4):
        places = [
            next((n for n, choice in enumerate(question.choices) if choice.right), 0)
            for question in questions
            if len(question.choices) == count
        ]
        even = len(places) / count
        unevenness = sum((places.count(n) - even) ** 2 / even for n in range(count)) if places else 0.0
        if unevenness > _PROVEN_BY_CHANCE:
            found.append(
                f"the positions of the right ones of {count} choices are not evenly distributed: {Counter(places)}"
            )
    return found
