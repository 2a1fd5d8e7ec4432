"""Sphinx's side of the guide: numbers of the lock, quotations, pictures of experiments, questions, code of this engine.

{n}`name`                a number of numbers.lock; one that is not there ends the build
{says}`125 tok/s`        what a text says, in its words
```{picture} lab ...     the picture that this command of ridgeline draws
```{source} ops/attend.py attend_segment     a function of the engine, where it stands
```{solution} attention  what an exercise asked for
```{answer}              what a pencil should have found
```{statements}          what texts say, all of it
```{guess} name 1 100    a slider that asks for a number before it is told (guess.py)
```{calculator} users=32   the page's calculator, set to a case (widget.py)
```{quiz} chapter        the questions of that chapter
"""

import ast
import json
import re
import shlex
import subprocess
import sys
import tempfile
from html import escape
from pathlib import Path
from typing import Any

from docs.guide.machinery.chapters import ROOT
from docs.guide.machinery.guess import Guess
from docs.guide.machinery.mathml import visit_math, visit_math_block
from docs.guide.machinery.widget import Calculator, write_calculator
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective, SphinxRole

from ridgeline.document.svg_parts import DARK
from ridgeline.guide.numbers import Number, read_lock
from ridgeline.guide.quiz import Question, read_quizzes
from ridgeline.lab.exercise import EXERCISES, solution_of

PACKAGE = ROOT / "src" / "ridgeline"


class NumberRole(SphinxRole):
    """A number of the ledger."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Its text, with its name to be seen when one points at it."""
        numbers: dict[str, Number] = self.env.ridgeline_numbers  # type: ignore[attr-defined]
        if self.text not in numbers:
            raise ValueError(f"{self.env.docname}:{self.lineno}: there is no number {self.text!r} in numbers.toml")
        shown = f'<span class="number" title="{escape(self.text)}">{escape(numbers[self.text].text)}</span>'
        return [nodes.raw("", shown, format="html")], []


class SaysRole(SphinxRole):
    """What a text says."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """In quotation marks, set apart."""
        return [nodes.inline("", f"“{self.text}”", classes=["says"])], []


class Picture(SphinxDirective):
    """The picture that a command of ridgeline draws, as it is now; the content is its caption."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        """The SVG itself, whose colours the page may change."""
        (command,) = self.arguments
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "picture.svg"
            option = "--roofline" if command.startswith("trace") else "--svg"
            call = [sys.executable, "-m", "ridgeline", *shlex.split(command), option, str(path)]
            done = subprocess.run(call, capture_output=True, text=True, check=False)
            # A busy machine may miss what an experiment expects, which its own test says; it has drawn the picture.
            if not path.exists():
                raise ValueError(f"{self.env.docname}: ridgeline {command}: {done.stderr.strip()}")
            svg = path.read_text(encoding="utf-8")
        caption = nodes.paragraph(classes=["caption"])
        parsed, _ = self.state.inline_text(" ".join(self.content), self.lineno)
        caption += parsed
        again = nodes.literal("", f"ridgeline {command}")
        caption += [nodes.Text(" "), again]
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
        title = f"One solution of the exercise <code>{escape(self.arguments[0])}</code>"
        return folded(title, nodes.literal_block(code, code, language="python"), "solution")


class Answer(SphinxDirective):
    """What came out of an exercise for a pencil, folded."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """The content, under a line to be chosen."""
        block = nodes.container()
        self.state.nested_parse(self.content, self.content_offset, block)
        return folded("Done? Compare", block, "answer")


class Statements(SphinxDirective):
    """What texts say, beside what the ledger says, as it is now."""

    def run(self) -> list[nodes.Node]:
        """A heading and three lines for each."""
        call = [sys.executable, "-m", "ridgeline", "lab", "numbers", "--json"]
        done = subprocess.run(call, capture_output=True, text=True, check=True)
        shown = "".join(map(_statement, json.loads(done.stdout)["statements"]))
        return [nodes.raw("", f'<div class="statements">{shown}</div>', format="html")]


class Quiz(SphinxDirective):
    """The questions of a chapter."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Each with its choices, which say when they are opened whether they are right, and why."""
        quizzes: dict[str, list[Question]] = self.env.ridgeline_quizzes  # type: ignore[attr-defined]
        questions = quizzes[self.arguments[0]]
        shown = "".join(_question(number, question) for number, question in enumerate(questions, 1))
        return [nodes.raw("", f'<div class="quiz">{shown}</div>', format="html")]


def folded(title: str, block: nodes.Node, name: str) -> list[nodes.Node]:
    """A block that is seen when its title is chosen."""
    opening = nodes.raw("", f'<details class="{name}"><summary>{title}</summary>', format="html")
    return [opening, block, nodes.raw("", "</details>", format="html")]


def source_of(path: Path, name: str) -> tuple[int, str]:
    """The line and the code of a function, a class, or a method `Class.method`. Raises ValueError where it is not."""
    text = path.read_text(encoding="utf-8")
    within: Any = ast.parse(text)
    for part in name.split("."):
        found = [node for node in within.body if getattr(node, "name", None) == part]
        if not found:
            raise ValueError(f"{path.relative_to(ROOT)} has no {name}")
        within = found[0]
    first = min([within.lineno, *(each.lineno for each in within.decorator_list)])
    return within.lineno, "\n".join(text.splitlines()[first - 1 : within.end_lineno])


def _prose(text: str) -> str:
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def _question(number: int, question: Question) -> str:
    if question.answer is not None:
        body = (
            f"<details><summary>Make up your mind, then look</summary><p><b>{escape(question.answer.text)}</b>, within "
            f"{question.within:.0%}. {_prose(question.why)}</p></details>"
        )
    else:
        body = "".join(
            f'<details class="{"right" if choice.right else "wrong"}"><summary>{_prose(choice.text)}</summary>'
            f"<p><b>{'Right' if choice.right else 'No'}.</b> {_prose(choice.why)}</p></details>"
            for choice in question.choices
        )
    return f"<fieldset><legend>{number}</legend><p>{_prose(question.ask)}</p>{body}</fieldset>"


def _statement(one: dict[str, Any]) -> str:
    number = "" if one["row"] is None else f"{one['row']}. "
    rows = "".join(f"<dt>{name}</dt><dd>{_prose(one[name])}</dd>" for name in ("text", "ledger", "why"))
    return f'<section id="statement-{escape(one["id"])}"><h3>{number}{escape(one["id"])}</h3><dl>{rows}</dl></section>'


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
    rules = [
        f'.picture svg [{kind}="{one}"] {{ {kind}: {other}; }}'
        for one, other in DARK.items()
        for kind in ("fill", "stroke")
    ]
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
        "guess": Guess,
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
