"""Cases and masks as same_output.toml lists them."""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

LIST = Path(__file__).with_suffix(".toml").with_name("same_output.toml")


@dataclass(frozen=True)
class Case:
    """Commands that run one after the other in a folder of their own, or a server and what it is asked."""

    name: str
    run: tuple[str, ...]
    """Command lines without the word `ridgeline`; of a server, the one that starts it."""
    asks: tuple[str, ...] = ()
    """Requests of a server, as `METHOD PATH [BODY]`, and commands in which {url} is its address."""
    stdin: str = ""
    files: tuple[str, ...] = ()
    """Files that the commands write, which are kept too."""
    masks: tuple[str, ...] = ()
    """The names of masks that hide what may differ."""
    limit: float = 120.0
    """Seconds after which a command is ended."""
    calibrated: bool = True
    """Whether the machine counts as calibrated, with the constants of same_output_inputs.py."""


@cache
def listed() -> dict[str, Any]:
    """Return what same_output.toml holds."""
    return tomllib.loads(LIST.read_text(encoding="utf-8"))


def read_cases() -> list[Case]:
    """Return the cases in the order of the list. Raises ValueError for a name that comes twice."""
    cases = []
    for entry in listed()["case"]:
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
        values["run"] = (values["run"],) if isinstance(values["run"], str) else values["run"]
        cases.append(Case(**values))
    names = [case.name for case in cases]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"{LIST.name} has several cases {', '.join(sorted(twice))}: rename all but one")
    return cases
