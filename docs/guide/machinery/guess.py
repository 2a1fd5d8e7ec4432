"""Guess first: a slider that asks for a number of the ledger before it is told.

```{guess} NAME LEAST MOST
:text: about 30
The question.
```

LEAST and MOST are in the unit of the number's text. text: what a text says, where one does. log: a logarithmic slider.
"""

import math
from html import escape

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.util.docutils import SphinxDirective

from ridgeline.guide.numbers import Number
from ridgeline.guide.quiz import number_in


class Guess(SphinxDirective):
    """A question, a slider, and, folded, what a text and the ledger say."""

    required_arguments = 3
    has_content = True
    option_spec = {"text": directives.unchanged, "log": directives.flag}  # noqa: RUF012 as docutils has it

    def run(self) -> list[nodes.Node]:
        """One form. Raises ValueError for a number that there is not, or that the slider cannot say."""
        name, *ends = self.arguments
        numbers: dict[str, Number] = self.env.ridgeline_numbers  # type: ignore[attr-defined]
        if name not in numbers:
            raise ValueError(f"{self.env.docname}:{self.lineno}: there is no number {name!r} in numbers.toml")
        least, most = map(float, ends)
        if not least <= number_in(numbers[name].text) <= most:
            raise ValueError(f"{self.env.docname}:{self.lineno}: {numbers[name].text} is not from {least} to {most}")
        ask = escape(" ".join(self.content))
        return [nodes.raw("", _form(name, ask, numbers[name], self.options, least, most), format="html")]


def _form(name: str, ask: str, number: Number, options: dict[str, str], least: float, most: float) -> str:
    says = f"A text says: {escape(options['text'])}. " if options.get("text") else ""
    unit = number.text.lstrip("$0123456789.,")
    return (
        f'<form class="guess" data-name="{escape(name)}" data-unit="{escape(unit)}"><p>{ask}</p>'
        f'<p class="hand" hidden><input type="range" {_scale(least, most, log="log" in options)} aria-label="{ask}"> '
        f'<output></output> <button type="submit">That is my guess</button></p>'
        f"<details><summary>Look</summary><p><span class=\"own\"></span>{says}The ledger: "
        f"<b>{escape(number.text)}</b>.</p></details></form>"
    )  # fmt: skip


def _scale(least: float, most: float, *, log: bool) -> str:
    """The slider's numbers; it begins in its middle."""
    if log:
        low, high = math.log10(least), math.log10(most)
        return f'min="{low:g}" max="{high:g}" step="any" value="{(low + high) / 2:g}" data-log'
    step = 1 if most - least >= 20 else 0.1
    return f'min="{least:g}" max="{most:g}" step="{step}" value="{(least + most) / 2:g}"'
