"""Limits for rendering a chat template: steps, time, and the size of the values it creates.

Jinja's sandbox limits what a template can access, not what it consumes. `'x' * 10**10`, two nested loops over a long
range, or a list that contains itself twice, nested forty times, can take a machine down. So every operation that
creates a value is measured: before the operation if the result can be much larger than its inputs, otherwise after it.
"""

import time
from collections.abc import Iterable, Iterator, Sized
from itertools import chain
from typing import Any

import jinja2

MAX_STEPS = 1 << 20
"""The maximum number of steps per template rendering; a thousand messages need about 50,000.

A step is a loop iteration, a call, a filter, or an operator whose result can be large.
"""
MAX_SIZE = 1 << 24
"""The largest value that a template may create, in characters; list and object entries add `ENTRY_SIZE` each."""
MAX_MADE = 1 << 28
"""The maximum total size, in characters, of all values that one template rendering creates."""
MAX_SECONDS = 10.0
"""The processor time limit of one template rendering, for templates whose single steps are expensive."""
MAX_BITS = 4096
"""The largest integer that a template may create, in bits."""
ENTRY_SIZE = 16
"""The size, in characters, that each entry of a list or object counts as in a template's budget."""


class Exhausted(jinja2.TemplateError):
    """An error for a template that exceeds its budget."""


class TemplateBudget:
    """The steps, time and characters that one template rendering has used."""

    def __init__(self) -> None:
        self._steps = 0
        self._made = 0
        self._sizes: dict[int, tuple[object, int]] = {}
        self._end = time.thread_time() + MAX_SECONDS

    def step(self) -> None:
        """Charge one step, such as a loop iteration or call, to a template's budget.

        Raises:
            Exhausted: If the steps or the time are spent.
        """
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise Exhausted(f"it takes more than {MAX_STEPS} steps")
        if time.thread_time() > self._end:
            raise Exhausted(f"it takes longer than {MAX_SECONDS:.0f} s")

    def steps(self, items: Iterable[Any]) -> "CountedIterable":
        """Return an iterable over the items of a loop that counts each iteration as a step."""
        return CountedIterable(items, self)

    def allow(self, size: int) -> None:
        """Raise Exhausted if a template's value of this size is too large; call it before the value is created."""
        if size > MAX_SIZE:
            raise Exhausted(f"it builds a value of more than {MAX_SIZE} characters")

    def charge_value(self, value: Any) -> Any:
        """Charge a value that a template created to its budget, and return the value.

        Raises:
            Exhausted: If the value, or all values together, are too large.
        """
        self.allow(self.size(value))
        if isinstance(value, str | list | tuple | dict):
            self._made += len(value) * (1 if isinstance(value, str) else ENTRY_SIZE)
        if self._made > MAX_MADE:
            raise Exhausted(f"its values have more than {MAX_MADE} characters in total")
        return value

    def size(self, value: Any) -> int:
        """Return the approximate number of characters of a value when written out.

        A number or other object counts as 1, and each entry of a list or object adds `ENTRY_SIZE`. Nested values count
        as often as they occur.
        """
        if isinstance(value, str):
            return len(value)
        if not isinstance(value, list | tuple | dict):
            return 1
        known = self._sizes.get(id(value))
        if known is not None:
            return known[1]
        held = chain(value, value.values()) if isinstance(value, dict) else value
        total = ENTRY_SIZE * len(value) + sum(map(self.size, held))
        self._sizes[id(value)] = value, total  # holds the value, so that no other object gets its id
        return total

    def integer(self, bits: int) -> None:
        """Raise Exhausted if an integer of this many bits is too large; call it before the integer is created."""
        if bits > MAX_BITS:
            raise Exhausted(f"it computes a number of more than {MAX_BITS} bits")


class CountedIterable:
    """An iterable that counts its iterations as template steps; it has a length if the wrapped iterable has one."""

    def __init__(self, items: Iterable[Any], budget: TemplateBudget) -> None:
        self._items, self._budget = items, budget

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._budget.step()
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type] # the caller expects this TypeError


def allow_operator(operator: str, left: Any, right: Any, budget: TemplateBudget) -> None:
    """Raise Exhausted if a binary operation on two values would create a result that is too large."""
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
    """Raise Exhausted if a string method, or the filter of the same name, would create a result that is too large."""
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
    """Raise Exhausted if a Jinja filter would create a result that is too large, or a sum starts from a non-number."""
    match name, arguments:
        case "format", _:
            _allow_format(str(value), "%", arguments, budget)
        case "join", (str(separator), *_) if isinstance(value, Sized):
            budget.allow(len(separator) * len(value))
        case (("batch" | "slice"), (int(count), *_)):
            budget.allow(count * ENTRY_SIZE)
        case "round", (int(precision), *_):
            budget.integer(4 * abs(precision))
        case "sum", (_, start, *_) if not isinstance(start, int | float | None):
            raise Exhausted("it sums values that are not numbers")
        case "tojson", (_, int() | str() as indent, *_):
            # Bound: one line per entry, each indented by 64 levels, which is deeper than any tool.
            width = indent if isinstance(indent, int) else len(indent)
            budget.allow(budget.size(value) // ENTRY_SIZE * 64 * width)
        case _ if isinstance(value, str):
            allow_method(name, value, arguments, budget)


def _allow_format(text: str, mark: str, arguments: tuple[Any, ...], budget: TemplateBudget) -> None:
    """Raise Exhausted if string formatting could create a result that is too large.

    The bound assumes that the format writes every argument at every mark, each with the largest width in the format.
    """
    widths = "".join(c if c.isdigit() else " " for c in text).split()
    if any(len(width) > 6 for width in widths) or (mark == "%" and "*" in text):
        raise Exhausted("it formats a value with too large a width")
    width = max(map(int, widths), default=0)
    budget.allow(len(text) + text.count(mark) * (width + sum(map(budget.size, arguments))))
