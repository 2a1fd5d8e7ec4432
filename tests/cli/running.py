"""How a command ended, and what an error has to be."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

OK, FAULT, USAGE, REFUSED, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 130


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended and what it said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.out.count("\n") == 1, "one object on one line"
        return json.loads(self.out)


Run = Callable[..., Ended]


def assert_one_line(ended: Ended, code: int, *says: str) -> None:
    """An error is an exit code and one line on stderr that names what is wrong."""
    assert ended.code == code, ended.err
    assert re.fullmatch(r"ridgeline: [^\n]+\n", ended.err), ended.err
    assert "Traceback" not in ended.err
    for part in says:
        assert part in ended.err, ended.err
    assert ended.out == ""
