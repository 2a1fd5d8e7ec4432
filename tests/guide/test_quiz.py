"""Questions: those of the guide are fair, a question that is not is found, and the terminal asks them."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from docs.guide.machinery.chapters import chapters
from typer.testing import CliRunner

from ridgeline.cli.main import build_app
from ridgeline.cli.quiz import _plain
from ridgeline.learn.guide.guide_numbers import GuideNumber, read_lock
from ridgeline.learn.guide.quizzes import QuizChoice, QuizQuestion, faults, number_in, read_quizzes

APP = build_app(("quiz",))


def test_the_guides_questions_are_fair() -> None:
    """One right answer, a reason for each, and neither length nor place tells which it is."""
    quizzes = read_quizzes(read_lock())
    assert faults(quizzes) == []
    assert quizzes.keys() <= {path.stem for path in chapters()}
    assert all(len(questions) >= 6 for questions in quizzes.values())
    assert sum(map(len, quizzes.values())) >= 100


# -- what is not fair -------------------------------------------------------------------------------------------------


def question(*choices: tuple[str, bool], why: str = "because it is so", ask: str = "Is it?") -> QuizQuestion:
    return QuizQuestion("made", ask, tuple(QuizChoice(text, right, why) for text, right in choices))


GOOD = question(("yes", True), ("not now", False), ("never", False))


@pytest.mark.parametrize(
    ("made", "says"),
    [
        ([question(("a", True), ("bb", True), ("cc", False))], "2 right choices"),
        ([question(("a", False), ("bb", False), ("cc", False))], "0 right choices"),
        ([question(("a", True), ("bb", False))], "2 choices"),
        ([question(("a", True), ("bb", False), ("bb", False))], "the same choice twice"),
        ([question(("a", True), ("bb", False), ("cc", False), why="so")], "does not explain the choice"),
        ([question(("a", True), ("bb", False), ("all of the above", False))], "refers to other choices in"),
        ([GOOD, GOOD], "occurs twice as a question"),
        ([question(("the longest by far", True), ("b", False), ("c", False))],
            "the longest choice is the right one in 1 of 1"),
        ([QuizQuestion("made", "How much?", answer=GuideNumber("3 ms", 0.003), within=0.5, why="so it is")],
            "its tolerance is too large"),
    ],
)  # fmt: skip
def test_what_is_unfair_is_found(made: Sequence[QuizQuestion], says: str) -> None:
    assert any(says in fault for fault in faults({"made": made})), faults({"made": made})


def test_a_fair_question_has_no_fault() -> None:
    assert faults({"made": [GOOD]}) == []


def test_right_answers_in_one_place_are_found() -> None:
    always = [question((f"a{n}", True), ("bb bb", False), ("cc cc", False), ask=f"{n}?") for n in range(20)]
    assert any("not evenly distributed" in fault for fault in faults({"made": always}))


def test_a_file_that_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "made.toml").write_text('[[question]]\nask = "Is it {nothing}?"\nchoices = []\n')
    with pytest.raises(ValueError, match=r"made.toml: KeyError: 'nothing'"):
        read_quizzes({}, tmp_path)


@pytest.mark.parametrize(("text", "value"), [("525,336,576", 525336576), ("7.51 ms", 7.51), ("about -2e3", -2000)])
def test_numbers_in_texts(text: str, value: float) -> None:
    assert number_in(text) == value


# -- the terminal -----------------------------------------------------------------------------------------------------


def answers(chapter: str, *, right: bool) -> str:
    lines = []
    for one in read_quizzes(read_lock())[chapter]:
        if one.answer is not None:
            lines.append(f"{one.shown if right else 3 * one.shown}")
        else:
            lines.append("abcd"[next(n for n, choice in enumerate(one.choices) if choice.right is right)])
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("right", [True, False])
def test_a_chapter_asked(right: bool) -> None:
    ended = CliRunner().invoke(APP, ["quiz", "bend"], input=answers("bend", right=right))
    assert ended.exit_code == 0
    assert ended.stdout.endswith(f"{6 if right else 0} of 6 correct at the first try\n")
    assert ended.stdout.count("Correct") == (6 if right else 0)
    assert ended.stdout.count("The correct choice is ") >= (0 if right else 5)


def test_marks_of_emphasis_and_code_are_not_printed() -> None:
    """A reader saw `*La* takes a quarter of its attention`; an asterisk inside code is a product."""
    asked = CliRunner().invoke(APP, ["quiz", "two-stacks"], input=answers("two-stacks", right=True)).stdout
    assert "Voiture needs la." in asked
    assert not {"*", "`"} & set(asked)
    assert _plain("*No*: `a * b` and `c * d`, 2 * 3") == "No: a * b and c * d, 2 * 3"


def test_what_is_no_answer_is_asked_again_and_the_end_of_input_ends_it() -> None:
    ended = CliRunner().invoke(APP, ["quiz", "bend"], input=b"x\n\xff\n\n")
    assert "enter one of a, b, c" in ended.output
    assert ended.stdout.endswith("0 of 0 correct at the first try\n")


def test_chapters_are_listed_and_one_that_is_not_there_refused() -> None:
    assert "ridgeline quiz attention" in CliRunner().invoke(APP, ["quiz"]).stdout
    assert "there are no questions for 'flying'" in str(CliRunner().invoke(APP, ["quiz", "flying"]).exception)
