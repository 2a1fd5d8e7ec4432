"""What a chat template may spend: steps, time, and the size of what it makes.

Jinja's sandbox bounds what a template can reach, not how much it takes: `'x' * 10**10`, two nested loops over a long
range, or a list that holds itself twice forty times over take a machine down. So everything that makes a value is
measured: before it is made where it may be much larger than what it is made of, else after.
"""

import time
from collections.abc import Iterable, Iterator, Sized
from itertools import chain
from typing import Any

import jinja2

MAX_STEPS = 1 << 20
"""Most turns of loops and calls of one rendering; a thousand messages with tools take some 50,000."""
MAX_SIZE = 1 << 24
"""Largest value, in characters; a place in a list or an object counts as PLACE of them."""
MAX_MADE = 1 << 28
"""Most characters of all values that one rendering makes."""
MAX_SECONDS = 10.0
"""Processor time of one rendering: what is left when each step is as dear as it may be."""
MAX_BITS = 4096
"""Largest integer."""
PLACE = 16


class Exhausted(jinja2.TemplateError):
    """A template takes more than it may."""


class TemplateBudget:
    """What one rendering has spent."""

    def __init__(self) -> None:
        self._steps = 0
        self._made = 0
        self._sizes: dict[int, tuple[object, int]] = {}
        self._end = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        """One turn of a loop, or one call."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Exhausted(f"it takes more than {MAX_STEPS} steps")
        if time.thread_time() > self._end:
            raise Exhausted(f"it takes longer than {MAX_SECONDS:.0f} s")

    def steps(self, items: Iterable[Any]) -> "CountedIterable":
        """The items of a loop, each of which is a step."""
        return CountedIterable(items, self)

    def allow(self, size: int) -> None:
        """Refuse a value of this size before it is made."""
        if size > MAX_SIZE:
            raise Exhausted(f"it makes a value of more than {MAX_SIZE} characters")

    def made(self, value: Any) -> Any:
        """The value itself, counted."""
        self.allow(self.size(value))
        if isinstance(value, str | list | tuple | dict):
            self._made += len(value) * (1 if isinstance(value, str) else PLACE)
        if self._made > MAX_MADE:
            raise Exhausted(f"all that it makes has more than {MAX_MADE} characters")
        return value

    def size(self, value: Any) -> int:
        """Characters of a value when written out, all that it holds included, however often it holds the same."""
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, list | tuple | dict):
            return 1
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        held = chain(value, value.values()) if isinstance(value, dict) else value
        total = PLACE * len(value) + sum(map(self.size, held))
        self._sizes[id(value)] = value, total  # with the value: while it is held, no other has its id
        return total

    def integer(self, bits: int) -> None:
        """Refuse an integer of so many bits before it is made."""
        if bits > MAX_BITS:
            raise Exhausted(f"it makes a number of more than {MAX_BITS} bits")


class CountedIterable:
    """An iterable whose turns are counted; as long as what it iterates, if that has a length."""

    def __init__(self, items: Iterable[Any], budget: TemplateBudget) -> None:
        self._items, self._budget = items, budget

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.step()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type] # a TypeError is what who asks expects


def repeated_size(operator: str, left: Any, right: Any, budget: TemplateBudget) -> None:
    """Refuse an operation of two values whose result would be too large."""
    if operator == "%" and isinstance(left, str):
        _allow_format(left, "%", (right,), budget)
    if operator == "*":
        for value, count in ((left, right), (right, left)):
            if isinstance(count, int) and not isinstance(value, int | float):
                budget.allow(budget.size(value) * max(count, 0))
    if isinstance(left, int) and isinstance(right, int):
        if operator == "*":
            budget.integer(left.bit_length() + right.bit_length())
        if operator == "**":
            budget.integer(left.bit_length() * abs(right))


def allow_method(name: str, text: str, arguments: tuple[Any, ...], budget: TemplateBudget) -> None:
    """Refuse a call of a string's method, or of the filter of that name, whose result would be too large."""
    match name, arguments:
        case (("center" | "ljust" | "rjust" | "zfill"), (int(width), *_)):
            budget.allow(width)
        case "expandtabs", (int(width), *_):
            budget.allow(text.count("\t") * width)
        case "replace", (str(old), str(new), *_):
            budget.allow(len(text) + text.count(old) * len(new))
        case "indent", (int() | str() as width, *_):
            budget.allow((text.count("\n") + 1) * (width if isinstance(width, int) else len(width)))
        case "join", (items, *_) if isinstance(items, Sized):
            budget.allow(len(text) * len(items))
        case (("format" | "format_map"), _):
            _allow_format(text, "{", arguments, budget)


def allow_filter(name: str, value: Any, arguments: tuple[Any, ...], budget: TemplateBudget) -> None:
    """As `allow_method`, of a filter."""
    match name, arguments:
        case "format", _:
            _allow_format(str(value), "%", arguments, budget)
        case "join", (str(separator), *_) if isinstance(value, Sized):
            budget.allow(len(separator) * len(value))
        case (("batch" | "slice"), (int(count), *_)):
            budget.allow(count * PLACE)
        case "round", (int(precision), *_):
            budget.integer(4 * abs(precision))
        case "sum", (_, start, *_) if not isinstance(start, int | float | None):
            raise Exhausted("it adds up what are no numbers")
        case "tojson", (_, int() | str() as indent, *_):
            # As many lines as places, each as far in as it is deep: reckoned 64 deep, more than any tool is.
            width = indent if isinstance(indent, int) else len(indent)
            budget.allow(budget.size(value) // PLACE * 64 * width)
        case _ if isinstance(value, str):
            allow_method(name, value, arguments, budget)


def _allow_format(text: str, mark: str, arguments: tuple[Any, ...], budget: TemplateBudget) -> None:
    """A format may write every argument at every mark, and each as wide as its digits say."""
    widths = "".join(c if c.isdigit() else " " for c in text).split()
    if any(len(width) > 6 for width in widths) or (mark == "%" and "*" in text):
        raise Exhausted("it formats a value to a width that no text has")
    width = max(map(int, widths), default=0)
    budget.allow(len(text) + text.count(mark) * (width + sum(map(budget.size, arguments))))
