"""What a server takes beside its engine's steps: between two of them, and on the core that HTTP and texts share.

Both are measured of an idle server and stated; nothing here is fitted to a load. Between two steps the engine's process
hears of what came and tells what was sampled. The front is a core of its own, on which one thing is done after the
other: requests are read before the engine has them, tokens are written to clients after each step, an answer is closed.
A first token therefore waits behind other requests and behind the tokens of all.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ridgeline.traffic.slo import UNITS

_COST = re.compile(r"(\d+(?:\.\d+)?)(us|µs|ms|s)(?:/(\w+))?")


@dataclass(frozen=True, slots=True)
class Between:
    """Nanoseconds between two steps: of each, and for each sequence and each request that is new in the next one."""

    step: int = 0
    sequence: int = 0
    request: int = 0

    def of(self, sequences: int, requests: int) -> int:
        """Before a step of so many sequences, of which so many are new."""
        return self.step + self.sequence * sequences + self.request * requests


@dataclass(frozen=True, slots=True)
class Front:
    """Nanoseconds of the server's core: for a request before the engine has it, for the messages of a step, for each of
    its tokens until the client has it, and for an answer once it has ended."""

    request: int = 0
    step: int = 0
    token: int = 0
    answer: int = 0


class FrontCore:
    """The core at work: first come, first served."""

    def __init__(self, costs: Front) -> None:
        """free: when it has done all that it was given."""
        self._costs, self.free = costs, 0

    def reads(self, now: int) -> int:
        """A request comes; when the engine has it."""
        return self._works(now, self._costs.request)

    def hears(self, now: int) -> None:
        """A step is over, whose tokens follow."""
        self._works(now, self._costs.step)

    def writes(self) -> int:
        """A token of that step; when its client has it."""
        self.free += self._costs.token
        return self.free

    def closes(self) -> None:
        """The token was an answer's last."""
        self.free += self._costs.answer

    def _works(self, now: int, cost: int) -> int:
        self.free = max(self.free, now) + cost
        return self.free


def parse_between(text: str) -> Between:
    """Of `110us`, `110us+20us/sequence+330us/request`. Raises ValueError."""
    found = _costs(text, "--between-steps", ("step", "sequence", "request"), "110us+20us/sequence+330us/request")
    return Between(**found)


def parse_front(text: str) -> Front:
    """Of `2.6ms/request+190us/step+90us/token+1.4ms/answer`. Raises ValueError."""
    form = "2.6ms/request+190us/step+90us/token+1.4ms/answer"
    return Front(**_costs(text, "--front", ("", "request", "step", "token", "answer"), form))


def _costs(text: str, option: str, names: tuple[str, ...], form: str) -> Mapping[str, int]:
    """Nanoseconds by what they are for; a time alone is for the first of `names`."""
    found: dict[str, int] = {}
    for part in text.split("+"):
        match = _COST.fullmatch(part.strip())
        name = "" if match is None else match[3] or names[0]
        if match is None or name not in names or not name:
            raise ValueError(f"{option} has {part.strip()!r}; write it like {form}")
        if name in found:
            raise ValueError(f"{option} says {name} twice; say it once")
        found[name] = round(float(match[1]) * UNITS[match[2]])
    return found
