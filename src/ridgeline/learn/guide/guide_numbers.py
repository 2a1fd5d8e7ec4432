"""The guide's numbers: a name, what it asks of the ledger, and how it is written.

numbers.toml has the questions, numbers.lock the answers. The lock is committed, so that a change of a price is a change
that somebody reads; it is also what a site and a quiz are made from, which therefore wait for no model.
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

if TYPE_CHECKING:  # what reads the lock alone waits for no model
    from ridgeline.learn.lab.cost_calculator import CostCalculator

QUESTIONS = Path(__file__).with_name("numbers.toml")
LOCK = Path(__file__).with_name("numbers.lock")


@dataclass(frozen=True, slots=True)
class GuideNumber:
    """text: as people read it, with its unit; value: in the unit that is 1."""

    text: str
    value: float


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
    """Of each name the expression and the format. Raises ValueError for a format that there is not."""
    asked: dict[str, tuple[str, str]] = {}
    for group in tomllib.loads(path.read_text(encoding="utf-8")).values():
        for name, (expression, kind) in group.items():
            if kind not in FORMATS:
                raise ValueError(f"{path.name}: {name} is to be written as {kind!r}; there are {', '.join(FORMATS)}")
            if name in asked:
                raise ValueError(f"{path.name}: {name} is there twice")
            asked[name] = expression, kind
    return asked


def resolve(asked: Mapping[str, tuple[str, str]], ledger: "CostCalculator") -> dict[str, GuideNumber]:
    """Every number, from the ledger. An expression is Python over the ledger's methods, `math`, and the numbers before
    it as `n["name"]`; the file is this package's own. Raises ValueError that names the number for one that fails.
    """
    found: dict[str, GuideNumber] = {}
    values: dict[str, float] = {}
    methods = {name: getattr(ledger, name) for name in dir(ledger) if not name.startswith("_")}
    known: dict[str, Any] = {
        **methods, "n": values, "math": math, "exp": math.exp, "sum": sum, "range": range, "round": round,
        "min": min, "max": max, "len": len, "GiB": 2**30, "__builtins__": {},
    }  # fmt: skip
    for name, (expression, kind) in asked.items():
        try:
            value = eval(expression, known)
        except Exception as error:
            raise ValueError(f"{name} = {expression}: {type(error).__name__}: {error}") from error
        if not isinstance(value, int | float):
            raise ValueError(f"{name} = {expression} is {value!r}, which is no number")
        values[name] = value
        found[name] = GuideNumber(FORMATS[kind](value), float(value))
    return found


def read_lock(path: Path = LOCK) -> dict[str, GuideNumber]:
    """The numbers as they were written last."""
    return {name: GuideNumber(*entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def lock_text(found: Mapping[str, GuideNumber]) -> str:
    """The lock: a line for each number, whose value has the digits that two machines agree on."""
    lines = (f"{json.dumps(name)}: {_entry(one)}" for name, one in found.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _entry(one: GuideNumber) -> str:
    return json.dumps([one.text, float(f"{one.value:.6g}")], ensure_ascii=False)


def write_lock(found: Mapping[str, GuideNumber], path: Path = LOCK) -> None:
    """Write it whole."""
    write_whole(path, lock_text(found))
