"""`ridgeline quiz` asks the guide's questions in the terminal."""

import re
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from ridgeline.cli.console import say
from ridgeline.learn.guide.guide_numbers import read_lock
from ridgeline.learn.guide.quizzes import QuizQuestion, number_in, read_quizzes

_LETTERS = "abcd"


def quiz(
    chapter: Annotated[
        str | None, typer.Argument(help="A chapter of the guide; without one, the chapters are listed.")
    ] = None,
) -> None:
    """Quiz yourself on a chapter of the guide; each answer is checked and explained."""
    quizzes = read_quizzes(read_lock())
    if chapter is None:
        for name, questions in quizzes.items():
            print(f"{name:16}{len(questions)} questions; ridgeline quiz {name}")
        return
    if chapter not in quizzes:
        raise ValueError(f"there are no questions for {chapter!r}; the chapters are {', '.join(quizzes)}")
    if isinstance(sys.stdin, TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # undecodable input is an invalid answer
    rights = total = 0
    for number, question in enumerate(quizzes[chapter], 1):
        print(_plain(f"{number}. {question.ask}"))
        answer = _chosen(question) if question.choices else _numeric(question)
        if answer is None:
            break
        total, rights = total + 1, rights + answer
        print()
    print(f"{rights} of {total} correct at the first try")


def _plain(text: str) -> str:
    """Return a text without the backticks of code and the asterisks of emphasis; asterisks within code remain."""
    parts = re.split("`([^`]+)`", text)
    return "".join(part if n % 2 else re.sub(r"\*(\S[^*]*)\*", r"\1", part) for n, part in enumerate(parts))


def _read(prompt: str) -> str | None:
    """Print a prompt and return the user's line, or None at the end of input."""
    print(prompt, end="", flush=True)
    line = sys.stdin.readline()
    if not line:
        print()
        return None
    return line.strip()


def _chosen(question: QuizQuestion) -> bool | None:
    """Ask until the user gives a valid choice; return whether it is right, or None at the end of input."""
    letters = _LETTERS[: len(question.choices)]
    for letter, choice in zip(letters, question.choices, strict=True):
        print(_plain(f"   {letter}) {choice.text}"))
    while (line := _read("> ")) is not None:
        if line.lower() in tuple(letters):
            choice = question.choices[letters.index(line.lower())]
            print(_plain(f"{'Correct' if choice.right else 'Wrong'}. {choice.why}"))
            if not choice.right:
                letter, right = next(pair for pair in zip(letters, question.choices, strict=True) if pair[1].right)
                print(_plain(f"The correct choice is {letter}). {right.why}"))
            return choice.right
        say(f"enter one of {', '.join(letters)}")
    return None


def _numeric(question: QuizQuestion) -> bool | None:
    """Ask until the user gives a number; return whether it is close enough, or None at the end of input."""
    assert question.answer is not None
    unit = f" ({question.unit})" if question.unit else ""
    while (line := _read(f"a number{unit}> ")) is not None:
        try:
            value = number_in(line)
        except ValueError:
            say("enter a number")
            continue
        right = question.judge(value)
        print(_plain(f"{'Correct' if right else 'Wrong'}: {question.answer.text}. {question.why}"))
        return right
    return None
