"""Requirements on a simulation's figures, such as `ttft_p99<500ms`, at the worse end of each interval."""

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.insight.simulate.simulation_findings import FIGURES, SimulationFindings
from ridgeline.insight.traffic.percentiles import Interval, needed
from ridgeline.util.document.humanize import say_seconds
from ridgeline.util.times import UNITS

_FORM = re.compile(rf"(?:(.+):)?(\w+)\s*(<=|>=|<|>)\s*(\d+(?:\.\d+)?)\s*(%|{'|'.join(UNITS)})?")
_SCALES = {unit: nanoseconds / 1e9 for unit, nanoseconds in UNITS.items()} | {"%": 0.01, "": 1.0}
_SIGNS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TIMES = re.compile(r"_p\d+$")
_SHARES = ("good_share", "busy", "pages", "most_pages", "prefix_hits")  # figures that accept a bound in %
_OF_CLASS = re.compile(r"(?:ttft|tpot|e2e)_p\d+|good_share|goodput")  # figures that exist per class


@dataclass(frozen=True, slots=True)
class Requirement:
    """A bound on a named figure of a simulation."""

    text: str
    name: str
    sign: str
    """The comparison operator: `<`, `<=`, `>` or `>=`."""
    bound: float
    slo_class: str | None = None
    """The request class to which the figure applies; None for all requests."""

    def failed(self, findings: SimulationFindings) -> str:
        """Return why the requirement is not met, or "" if it holds even at the worse end of the figure's interval."""
        found = self._figure(findings)
        if found is None:
            classes = findings.metrics.classes
            why = "overloaded" if findings.verdict == "overloaded" else self._lack
            if self.slo_class is not None and self.slo_class not in classes:
                there = ", ".join(name or "requests without a class" for name in classes)
                why = f"no request has the class {self.slo_class!r}; classes are {there or 'none'}"
            return f"{self.text} is not met: {why}"
        worse = found.low if self.sign.startswith(">") else found.high
        if _SIGNS[self.sign](worse, self.bound):
            return ""
        low, mid, high = (self._describe(each) for each in (found.low, found.mid, found.high))
        return f"{self.text} is not met: {self.name} is {mid} ({low} .. {high})"

    def _describe(self, value: float) -> str:
        if math.isinf(value):
            return "unbounded"
        return say_seconds(value) if _TIMES.search(self.name) else f"{value:.4g}"

    @property
    def _lack(self) -> str:
        """The reason why a run that is not overloaded lacks the figure."""
        if (percentile := _TIMES.search(self.name)) is None:
            return "this run does not have the figure"
        return f"a {percentile[0][1:]} needs {needed(int(percentile[0][2:])):,} samples, but this run has fewer"

    def _figure(self, findings: SimulationFindings) -> Interval | None:
        if self.slo_class is None:
            return FIGURES[self.name](findings)
        known = self.slo_class in findings.metrics.classes
        return findings.class_figures(self.slo_class)[self.name] if known else None


def parse_requirement(text: str) -> Requirement:
    """Parse a requirement: `ttft_p99<500ms`, `goodput>12`, or `batch:good_share>=99%` for one class of requests.

    Raises:
        ValueError: If the text is malformed, or the figure is unknown; the message then lists the available ones.
    """
    match = _FORM.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"--require is {text!r}; write a figure, < or >, and a number: ttft_p99<500ms, good_share>99%")
    slo_class, name, sign, number, unit = match.groups()
    there = [of for of in FIGURES if slo_class is None or _OF_CLASS.fullmatch(of)]
    if name not in there:
        raise ValueError(f"--require names the unknown figure {name!r}; figures are {', '.join(there)}")
    timed = _TIMES.search(name) is not None
    if unit == "%" and name not in _SHARES and not timed:
        raise ValueError(f"--require is {text!r}; {name} is not a share: leave the % out")
    if timed != (unit in UNITS):
        raise ValueError(
            f"--require is {text!r}; "
            + ("give a time with its unit, like 500ms" if timed else f"{name} is not a time: leave the unit out")
        )
    bound = float(number) * _SCALES[unit or ""]
    if name in _SHARES and bound > 1:
        raise ValueError(f"--require is {text!r}; {name} is a share: write it from 0% to 100%, like 99%")
    return Requirement(text.strip(), name, sign, bound, None if slo_class is None else slo_class.strip())
