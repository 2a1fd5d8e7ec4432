"""Requirements: what a simulation has to keep to, such as `ttft_p99<500ms`, in the bad case of every interval."""

import re
from dataclasses import dataclass

from ridgeline.simulate.findings import FIGURES, Findings

_FORM = re.compile(r"(\w+)\s*(<=|>=|<|>)\s*(\d+(?:\.\d+)?)\s*(us|µs|ms|s|%)?")
_UNITS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "%": 0.01, "": 1.0, None: 1.0}
_TIMES = re.compile(r"_p\d+$")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A figure by its name, and what it may be at most, or has to be at least."""

    text: str
    name: str
    least: bool
    bound: float

    def failed(self, findings: Findings) -> str:
        """Why it is not kept, in words; "" where it is, even at the worse end of the figure's interval."""
        found = FIGURES[self.name](findings)
        if found is None:
            why = "overloaded" if findings.verdict == "overloaded" else "there is no such figure of this run"
            return f"{self.text} is not kept: {why}"
        worse = found.low if self.least else found.high
        kept = worse >= self.bound if self.least else worse <= self.bound
        return (
            ""
            if kept
            else f"{self.text} is not kept: {self.name} is {found.mid:.4g} ({found.low:.4g} .. {found.high:.4g})"
        )


def parse_requirement(text: str) -> Requirement:
    """Of `ttft_p99<500ms`, `goodput>12`, `good_share>=99%`. Raises ValueError naming what there is."""
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"--require is {text!r}; write a figure, < or >, and a number: ttft_p99<500ms, good_share>99%")
    name, sign, number, unit = match.groups()
    if name not in FIGURES:
        raise ValueError(f"--require names {name!r}; there is {', '.join(FIGURES)}")
    timed = _TIMES.search(name) is not None
    if timed != (unit in ("us", "µs", "ms", "s")):
        raise ValueError(
            f"--require is {text!r}; " + ("give a time with its unit, like 500ms" if timed else "it is no time")
        )
    return Requirement(text.strip(), name, sign[0] == ">", float(number) * _UNITS[unit])
