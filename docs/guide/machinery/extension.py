"""Sphinx's side of the guide: numbers of the lock, quotations, pictures of experiments, questions, code of this engine.

{n}`name`                a number of numbers.lock; one that is not there ends the build
{says}`125 tok/s`        what a text says, in its words
```{picture} lab ...     the committed image that this command of ridgeline draws (images.py)
```{source} core/ops/torch_attention.py attend_segment     a function of the engine, where it stands
```{solution} attention  what an exercise asked for
```{answer}              what a pencil should have found
```{statements}          what texts say, all of it
```{guess} name 1 100    a slider that asks for a number before it is told (guess.py)
```{calculator} users=32   the page's calculator, set to a case (widget.py)
```{quiz} chapter        the questions of that chapter
"""

import re
from html import escape
from pathlib import Path
from typing import Any

from docs.guide.machinery.content import (
    ANSWER_TITLE,
    PACKAGE,
    folds_of,
    number_named,
    prose_html,
    quoted,
    solution_title,
    source_of,
    statements,
)
from docs.guide.machinery.guess import GuessForm
from docs.guide.machinery.images import (
    caption_of,
    dark_rules,
    image_of,
    read_image,
    read_measurements,
    without_dark_colours,
)
from docs.guide.machinery.mathml import visit_math, visit_math_block
from docs.guide.machinery.widget import Calculator, write_calculator
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from ridgeline.learn.guide.guide_numbers import read_lock
from ridgeline.learn.guide.quizzes import QuizQuestion, read_quizzes
from ridgeline.learn.lab.exercise import EXERCISES, solution_of
from ridgeline.learn.lab.statement import Statement


class NumberRole(SphinxRole):
    """A number of the ledger."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Its text, with its name to be seen when one points at it."""
        try:
            number = number_named(self.env.ridgeline_numbers, self.text)  # type: ignore[attr-defined]
        except ValueError as error:
            raise ValueError(f"{self.env.docname}:{self.lineno}: {error}") from error
        shown = f'<span class="number" title="{escape(self.text)}">{escape(number.text)}</span>'
        return [nodes.raw("", shown, format="html")], []


class SaysRole(SphinxRole):
    """What a text says."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """In quotation marks, set apart."""
        return [nodes.inline("", quoted(self.text), classes=["says"])], []


class Picture(SphinxDirective):
    """The committed image that a command of ridgeline drew; the content is its caption."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = {"measured": directives.flag}  # noqa: RUF012 as docutils has it

    def run(self) -> list[nodes.Node]:
        """The SVG itself, whose colours the page may change."""
        image = image_of(self.arguments[0], self.options, " ".join(self.content))
        self.env.note_dependency(str(image.file()))
        svg = without_dark_colours(read_image(image))
        caption = nodes.paragraph(classes=["caption"])
        parsed, _ = self.state.inline_text(caption_of(image, read_measurements()), self.lineno)
        caption += parsed
        return [nodes.raw("", f'<div class="picture">{svg}</div>', format="html"), caption]


class Source(SphinxDirective):
    """A function or class of the engine."""

    required_arguments = 2

    def run(self) -> list[nodes.Node]:
        """Its code, folded, under the name of its file."""
        file, name = self.arguments
        self.env.note_dependency(str(PACKAGE / file))
        line, code = source_of(PACKAGE / file, name)
        title = f"<code>src/ridgeline/{escape(file)}</code>, line {line}: <code>{escape(name)}</code>"
        return folded(title, nodes.literal_block(code, code, language="python"), "source")


class Solution(SphinxDirective):
    """What an exercise asked for."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Its code, folded."""
        code = solution_of(EXERCISES[self.arguments[0]])
        return folded(solution_title(self.arguments[0]), nodes.literal_block(code, code, language="python"), "solution")


class Answer(SphinxDirective):
    """What came out of an exercise for a pencil, folded."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The content, under a line to be chosen."""
        block = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, block)
        return folded(ANSWER_TITLE, block, "answer")


class Statements(SphinxDirective):
    """What texts say, beside what the ledger says, as it is now."""

    def run(self) -> list[nodes.Node]:
        """A heading and three lines for each."""
        shown = "".join(map(_statement, statements()))
        return [nodes.raw("", f'<div class="statements">{shown}</div>', format="html")]


class Quiz(SphinxDirective):
    """The questions of a chapter."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Each with its choices, which say when they are opened whether they are right, and why."""
        quizzes: dict[str, list[QuizQuestion]] = self.env.ridgeline_quizzes  # type: ignore[attr-defined]
        questions = quizzes[self.arguments[0]]
        shown = "".join(_question(number, question) for number, question in enumerate(questions, 1))
        return [nodes.raw("", f'<div class="quiz">{shown}</div>', format="html")]


def folded(title: str, block: nodes.Node, name: str) -> list[nodes.Node]:
    """A block that is seen when its title is chosen."""
    opening = nodes.raw("", f'<details class="{name}"><summary>{title}</summary>', format="html")
    return [opening, block, nodes.raw("", "</details>", format="html")]


def _question(number: int, question: QuizQuestion) -> str:
    kinds = {True: ' class="right"', False: ' class="wrong"', None: ""}
    body = "".join(
        f"<details{kinds[fold.right]}><summary>{fold.title}</summary>"
        f"<p><b>{escape(fold.verdict)}</b> {prose_html(fold.text)}</p></details>"
        for fold in folds_of(question)
    )
    return f"<fieldset><legend>{number}</legend><p>{prose_html(question.ask)}</p>{body}</fieldset>"


def _statement(one: Statement) -> str:
    number = "" if one.row is None else f"{one.row}. "
    said = {"text": one.text, "ledger": one.ledger, "why": one.why}
    rows = "".join(f"<dt>{name}</dt><dd>{prose_html(text)}</dd>" for name, text in said.items())
    return f'<section id="statement-{escape(one.id)}"><h3>{number}{escape(one.id)}</h3><dl>{rows}</dl></section>'


def _as_rst(_: Sphinx, *given: Any) -> None:
    """Docstrings are plain text with code between backticks: nothing else in them is markup."""
    lines: list[str] = given[-1]
    lines[:] = [re.sub("`([^`]+)`", r"``\1``", re.sub(r"([*|\\]|_(?=\W|$))", r"\\\1", line)) for line in lines]


def _begin(app: Sphinx, *_: object) -> None:
    numbers = read_lock()
    app.env.ridgeline_numbers = numbers  # type: ignore[attr-defined]
    app.env.ridgeline_quizzes = read_quizzes(numbers)  # type: ignore[attr-defined]


def dark_style() -> str:
    """Colours of pictures on dark ground, where the reader's system or the reader asks for it."""
    rules = [f".picture svg {rule}" for rule in dark_rules()]
    chosen = "\n".join(f'body[data-theme="dark"] {rule}' for rule in rules)
    system = "\n".join(f'body:not([data-theme="light"]) {rule}' for rule in rules)
    return f"{chosen}\n@media (prefers-color-scheme: dark) {{\n{system}\n}}\n"


def _write_style(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        (Path(app.outdir) / "_static" / "pictures.css").write_text(dark_style(), encoding="utf-8")


def setup(app: Sphinx) -> dict[str, object]:
    """What Sphinx calls."""
    app.add_role("n", NumberRole())
    app.add_role("says", SaysRole())
    for name, directive in {
        "picture": Picture,
        "source": Source,
        "solution": Solution,
        "answer": Answer,
        "quiz": Quiz,
        "statements": Statements,
        "guess": GuessForm,
        "calculator": Calculator,
    }.items():
        app.add_directive(name, directive)
    app.add_css_file("pictures.css")
    app.add_js_file("guide.js", loading_method="defer")
    app.connect("env-before-read-docs", _begin)
    app.connect("autodoc-process-docstring", _as_rst)
    app.connect("build-finished", _write_style)
    app.connect("build-finished", write_calculator)
    app.add_node(nodes.math, override=True, html=(visit_math, None))
    app.add_node(nodes.math_block, override=True, html=(visit_math_block, None))
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
