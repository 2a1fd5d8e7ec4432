"""Guess first: a slider that asks for a number of the ledger before it is told.

```{guess} NAME LEAST MOST
:text: about 30
The question.
```

LEAST and MOST are in the unit of the number's text. text: what a text says, where one does. log: a logarithmic slider.
"""

import math
from html import escape

from docs.guide.machinery.content import Guess, guess_of
from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective


class GuessForm(SphinxDirective):
    """A question, a slider, and, folded, what a text and the ledger say."""

    required_arguments = 3
    has_content = True
    option_spec = {"text": directives.unchanged, "log": directives.flag}  # noqa: RUF012 as docutils has it

    def run(self) -> list[nodes.Node]:
        """One form. Raises ValueError for a number that there is not, or that the slider cannot say."""
        try:
            guess = guess_of(
                " ".join(self.arguments),
                self.options.get("text", ""),
                " ".join(self.content),
                self.env.ridgeline_numbers,  # type: ignore[attr-defined]
            )
        except ValueError as error:
            raise ValueError(f"{self.env.docname}:{self.lineno}: {error}") from error
        return [nodes.raw("", _form(guess, log="log" in self.options), format="html")]


def _form(guess: Guess, *, log: bool) -> str:
    ask, text = escape(guess.ask), guess.number.text
    unit = text.lstrip("$0123456789.,")
    return (
        f'<form class="guess" data-name="{escape(guess.name)}" data-unit="{escape(unit)}"><p>{ask}</p>'
        f'<p class="hand" hidden><input type="range" {_scale(guess.least, guess.most, log=log)} aria-label="{ask}"> '
        f'<output></output> <button type="submit">That is my guess</button></p>'
        f"<details><summary>Look</summary><p><span class=\"own\"></span>{escape(guess.told)}The ledger: "
        f"<b>{escape(text)}</b>.</p></details></form>"
    )  # fmt: skip


def _scale(least: float, most: float, *, log: bool) -> str:
    """The slider's numbers; it begins in its middle."""
    if log:
        low, high = math.log10(least), math.log10(most)
        return f'min="{low:g}" max="{high:g}" step="any" value="{(low + high) / 2:g}" data-log'
    step = 1 if most - least >= 20 else 0.1
    return f'min="{least:g}" max="{most:g}" step="{step}" value="{(least + most) / 2:g}"'
