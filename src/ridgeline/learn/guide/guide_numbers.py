"""The numbers in the guide: each has a name, an expression over the cost model, and a format.

numbers.toml has the expressions, numbers.lock the results. The lock file is committed, so a change of a price shows up
in a diff that a person reviews. The site and the quizzes read only the lock file and therefore need no model.
"""

import json
import math
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ridgeline.util.document import humanize
from ridgeline.util.files import write_whole

if TYPE_CHECKING:  # readers of the lock file need no models
    from ridgeline.learn.lab.cost_calculator import CostCalculator

QUESTIONS = Path(__file__).with_name("numbers.toml")
LOCK = Path(__file__).with_name("numbers.lock")


@dataclass(frozen=True, slots=True)
class GuideNumber:
    """A number that the guide quotes, as text and as value."""

    text: str
    """The number as text for readers, with its unit."""
    value: float
    """The value of a guide number in the base unit (bytes, seconds, dollars ...)."""


def _count(value: float) -> str:
    return f"{value:,.0f}"


def _say(unit: str) -> Callable[[float], str]:
    return lambda value: humanize.say(value, unit)


FORMATS: Mapping[str, Callable[[float], str]] = {
    "seconds": humanize.say_seconds,
    "count": _count,
    "bytes": lambda value: f"{value:,.0f} bytes",
    "gb": lambda value: humanize.say_gb(humanize.gb(value)),
    "gib": lambda value: humanize.say_gib(humanize.gib(value)),
    "kib": lambda value: f"{value / 1024:,.0f} KiB",
    "mib": lambda value: f"{value / 2**20:,.0f} MiB",
    "billions": lambda value: f"{value / 1e9:,.2f} billion",
    "millions": lambda value: f"{value / 1e6:,.0f} million",
    "flop": _say("FLOP"),
    "flop/s": _say("FLOP/s"),
    "byte/s": _say("B/s"),
    "percent": lambda value: f"{humanize.three_digits(100 * value)} %",
    "dollars": lambda value: f"${humanize.three_digits(value)}",
    "times": lambda value: f"{humanize.three_digits(value)} times",
    "number": humanize.three_digits,
    "one": lambda value: f"{value:.1f}",
    "two": lambda value: f"{value:.2f}",
    "four": lambda value: f"{value:.4f}",
}


def read_questions(path: Path = QUESTIONS) -> dict[str, tuple[str, str]]:
    """Return the expression and the format of each number in the guide, keyed by the number's name.

    Raises:
        ValueError: If a format is unknown or a name occurs twice.
    """
    expressions: dict[str, tuple[str, str]] = {}
    for group in tomllib.loads(path.read_text(encoding="utf-8")).values():
        for name, (expression, kind) in group.items():
            if kind not in FORMATS:
                raise ValueError(
                    f"{path.name}: {name} has the unknown format {kind!r}; use one of {', '.join(FORMATS)}"
                )
            if name in expressions:
                raise ValueError(f"{path.name}: {name} is defined twice; remove one definition")
            expressions[name] = expression, kind
    return expressions


def resolve(expressions: Mapping[str, tuple[str, str]], ledger: "CostCalculator") -> dict[str, GuideNumber]:
    """Return every number that the guide quotes, computed by the cost model.

    An expression is Python over the methods of `ledger`, `math`, and earlier numbers as `n["name"]`. It may be
    evaluated because the file is part of this package.

    Raises:
        ValueError: If an expression fails; the message names the number.
    """
    found: dict[str, GuideNumber] = {}
    values: dict[str, float] = {}
    methods = {name: getattr(ledger, name) for name in dir(ledger) if not name.startswith("_")}
    known: dict[str, Any] = {
        **methods, "n": values, "math": math, "exp": math.exp, "sum": sum, "range": range, "round": round,
        "min": min, "max": max, "len": len, "GiB": 2**30, "__builtins__": {},
    }  # fmt: skip
    for name, (expression, kind) in expressions.items():
        try:
            value = eval(expression, known)
        except Exception as error:
            raise ValueError(f"{name} = {expression}: {type(error).__name__}: {error}") from error
        if not isinstance(value, int | float):
            raise ValueError(f"{name} = {expression} is {value!r}, which is not a number")
        values[name] = value
        found[name] = GuideNumber(FORMATS[kind](value), float(value))
    return found


def read_lock(path: Path = LOCK) -> dict[str, GuideNumber]:
    """Return the guide's computed numbers as stored in numbers.lock, keyed by name."""
    return {name: GuideNumber(*entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def lock_text(found: Mapping[str, GuideNumber]) -> str:
    """Return the text of the lock file: one line per number, with the six digits on which two machines agree."""
    lines = (f"{json.dumps(name)}: {_entry(one)}" for name, one in found.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entry(one: GuideNumber) -> str:
    return json.dumps([one.text, float(f"{one.value:.6g}")], ensure_ascii=False)


def write_lock(found: Mapping[str, GuideNumber], path: Path = LOCK) -> None:
    """Write the lock file of the guide's numbers atomically."""
    write_whole(path, lock_text(found))
