"""A chapter's source as plain Markdown: every mark and directive replaced by what it stands for.

Sentences, tables and code stay as they are; so a page reads well as text too, and a change of a source is as small a
change of its page.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import dedent

from docs.guide.machinery import forge
from docs.guide.machinery.api import api_markdown
from docs.guide.machinery.chapters import (
    Block,
    Definition,
    blocks_of,
    chapter_names,
    definitions_of,
    options_of,
    title_of,
)
from docs.guide.machinery.content import (
    ANSWER_TITLE,
    CALCULATOR,
    CALCULATOR_OPTIONS,
    PACKAGE,
    calculator_address,
    folds_of,
    guess_of,
    number_named,
    quoted,
    solution_title,
    source_of,
    statements,
)
from docs.guide.machinery.images import IMAGES, Measurement, alt_text, caption_of, image_of, read_image

from ridgeline.learn.guide.guide_numbers import GuideNumber
from ridgeline.learn.guide.quizzes import QuizQuestion
from ridgeline.learn.lab.exercise import EXERCISES, solution_of

_SPAN = re.compile(
    r"\{(?P<role>[\w:-]+)\}`(?P<said>[^`]*)`"
    r"|(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))"
    r"|^\$\$(?P<display>.+?)\$\$$"
    r"|\$(?P<formula>[^$\n]+)\$"
    r"|\]\((?P<page>[\w-]+\.md)(?P<anchor>#[\w-]*)?\)",
    re.DOTALL | re.MULTILINE,
)
_DEFINITION = re.compile(r"^(?P<term>\S.*)\n: (?P<text>.+(?:\n  .+)*)$", re.MULTILINE)


def page_name(source: str) -> str:
    """Return the name of the page of a source. A forge shows README.md for the folder."""
    return "README.md" if source == "index.md" else source


@dataclass(frozen=True)
class Renderer:
    """A renderer of chapters: it has their texts by file name, the numbers, the questions and the measurements."""

    texts: Mapping[str, str]
    numbers: Mapping[str, GuideNumber]
    quizzes: Mapping[str, Sequence[QuizQuestion]]
    measurements: Mapping[str, Measurement]
    images: Path = IMAGES

    @cached_property
    def anchors(self) -> dict[str, str]:
        """The address of each term's definition, by the term in small letters."""
        return {
            term.lower(): f"{page_name(name)}#{forge.slug(_heading(definition))}"
            for name, text in self.texts.items()
            for definition in definitions_of(text)
            for term in definition.terms
        }

    def body(self, name: str) -> str:
        """Return a chapter in Markdown. Raises ValueError for a mark or a directive that cannot be rendered."""
        try:
            return self.markdown(self.texts[name])
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error

    def markdown(self, text: str) -> str:
        """Return a text of a source in Markdown."""
        lines, parts, at = text.splitlines(), list[str](), 0
        for block in blocks_of(text):
            parts += [self.prose("\n".join(lines[at : block.first])), self.block(block)]
            at = block.last + 1
        return "\n".join([*parts, self.prose("\n".join(lines[at:]))]).strip()

    # -- in a line ----------------------------------------------------------------------------------------------------

    def prose(self, text: str) -> str:
        """Return sentences with every mark replaced."""
        without_lists = _DEFINITION.sub(lambda found: f"{found['term']}\n\n{dedent('  ' + found['text'])}", text)
        return _SPAN.sub(self._span, without_lists)

    def _span(self, found: re.Match[str]) -> str:
        if found["role"]:
            if found["role"] not in self._roles:
                raise ValueError(f"the role {found['role']!r} cannot be rendered; add it to markdown.py")
            return self._roles[found["role"]](" ".join(found["said"].split()))
        if found["display"]:
            return forge.display(found["display"])
        if found["formula"]:
            return forge.formula(found["formula"])
        if found["page"]:
            return f"]({page_name(found['page'])}{found['anchor'] or ''})"
        return found.group()

    @property
    def _roles(self) -> dict[str, Callable[[str], str]]:
        return {
            "n": lambda name: forge.plain(number_named(self.numbers, name).text),
            "says": lambda text: quoted(forge.plain(text)),
            "term": self._term,
        }

    def _term(self, said: str) -> str:
        found = re.fullmatch(r"(.+?)\s*<(.+)>", said)
        shown, term = found.groups() if found else (said, said)
        if term.lower() not in self.anchors:
            raise ValueError(f"{term!r} is not in the glossary")
        return forge.link(shown, self.anchors[term.lower()])

    # -- blocks -------------------------------------------------------------------------------------------------------

    def block(self, block: Block) -> str:
        """Return a fenced block: code as it is, a directive as what it stands for."""
        if not block.language.startswith("{"):
            return forge.fence(block.text, block.language)
        directive = self._directives.get(block.language.strip("{}"))
        if directive is None:
            raise ValueError(f"the directive {block.language} cannot be rendered; add it to markdown.py")
        return directive(block)

    @property
    def _directives(self) -> dict[str, Callable[[Block], str]]:
        return {
            "picture": self._picture,
            "source": self._source,
            "solution": self._solution,
            "answer": lambda block: forge.fold(ANSWER_TITLE, self.markdown(block.text)),
            "statements": self._statements,
            "guess": self._guess,
            "calculator": self._calculator,
            "quiz": self._quiz,
            "glossary": self._glossary,
            "toctree": self._toctree,
            "eval-rst": lambda block: api_markdown(block.text),
        }

    def _picture(self, block: Block) -> str:
        image = image_of(block.rest, *options_of(block))
        alt = alt_text(read_image(image, self.images))
        shown = forge.image(alt, f"images/{image.file().name}")
        return f"{shown}\n\n<sub>{self.prose(caption_of(image, self.measurements))}</sub>"

    def _source(self, block: Block) -> str:
        file, name = block.rest.split()
        _, code = source_of(PACKAGE / file, name)
        # The title has no line number: a page would change whenever something above the code changes.
        title = f'<code>{name}</code> in <a href="../../src/ridgeline/{file}">src/ridgeline/{file}</a>'
        return forge.fold(title, forge.fence(dedent(code), "python"))

    def _solution(self, block: Block) -> str:
        return forge.fold(solution_title(block.rest), forge.fence(solution_of(EXERCISES[block.rest]), "python"))

    def _statements(self, _: Block) -> str:
        return "\n\n".join(
            f"**{'' if one.row is None else f'{one.row}. '}{forge.plain(one.text)}**\n\n"
            f"- *Ledger:* {forge.plain(one.ledger)}\n"
            f"- *Why:* {forge.plain(one.why)}"
            for one in statements()
        )

    def _guess(self, block: Block) -> str:
        options, ask = options_of(block)
        guess = guess_of(block.rest, options.get("text", ""), ask, self.numbers)
        told = f"{forge.plain(guess.told)}The ledger: **{forge.plain(guess.number.text)}**."
        return f"**Guess first.** {forge.plain(guess.ask)}\n\n{forge.fold('Look', told)}"

    def _calculator(self, block: Block) -> str:
        command = f"$ ridgeline page export --out {CALCULATOR} \\\n    {CALCULATOR_OPTIONS}"
        body = [
            "This command writes the calculator, a file that a browser opens:",
            forge.fence(command, "console"),
            f"Open it with this chapter's case behind its name: `{calculator_address(block.rest)}`",
            self.markdown(options_of(block)[1]),
        ]
        return forge.fold("Drag it yourself", "\n\n".join(body))

    def _quiz(self, block: Block) -> str:
        parts = ["*Choose, then open your choice. It says whether it is right, and why.*"]
        for number, question in enumerate(self.quizzes[block.rest], 1):
            parts.append(f"**{number}.** {forge.marked(question.ask)}")
            parts += [
                forge.fold(each.title, f"**{forge.plain(each.verdict)}** {forge.marked(each.text)}")
                for each in folds_of(question)
            ]
        return "\n\n".join(parts)

    def _glossary(self, block: Block) -> str:
        definitions = definitions_of(forge.fence(block.text, block.language))
        return "\n\n".join(f"### {_heading(each)}\n\n{self.prose(each.text)}" for each in definitions)

    def _toctree(self, block: Block) -> str:
        options, _ = options_of(block)
        links = [f"- {self.link_to(name)}" for name in chapter_names(block)]
        return "\n".join([f"## {options['caption']}", "", *links])

    def link_to(self, name: str) -> str:
        """Return a link to a chapter, by its title."""
        source = f"{name}.md"
        return forge.link(title_of(self.texts[source]), page_name(source))


def _heading(definition: Definition) -> str:
    """Return the heading above a definition."""
    return ", ".join(definition.terms)
