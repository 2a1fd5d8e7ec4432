"""What a server takes beside its engine's steps, as an idle one shows it: the parts that `simulate` is told with
`--between-steps` and `--front`."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

from ridgeline.simulate.front import Between, Front

COLD = 6
"""Decode steps after a prompt from which on they take what they are priced at."""


@dataclass(frozen=True)
class Phase:
    """Requests to a server that nobody else asks: what the client wrote of each, what the server did of them and of its
    engine's steps, and processor seconds of server and client. paces: how many times longer than undisturbed the
    engine's core took, and the other; all that is said of a phase is as if they had not."""

    rows: Sequence[Mapping[str, str]]
    steps: Sequence[Mapping[str, float]]
    requests: Sequence[Mapping[str, float]]
    taken: float
    paces: tuple[float, float]

    @property
    def seconds(self) -> float:
        """Of the processor."""
        return self.taken / self.paces[1]

    @property
    def tokens(self) -> int:
        """Of all answers."""
        return sum(int(row["output_tokens"]) for row in self.rows)

    @property
    def batch(self) -> float:
        """Sequences of a step, on average."""
        return statistics.mean(step["sequences"] for step in self.steps)

    @property
    def read(self) -> float:
        """Seconds from a request's arrival until the engine is sent it; the median."""
        return statistics.median(each["queued"] - each["at"] for each in self.requests) / self.paces[1]

    @property
    def around(self) -> float:
        """Seconds of a first token that are not the engine's; the median. Nobody is before a request of one user."""
        rows = self.rows
        found = (float(r["service_ttft"]) - float(r["server_ttft"]) + float(r["server_queue"]) for r in rows)
        return statistics.median(found) / self.paces[1]

    def gap(self, *, prompts: bool) -> float:
        """Seconds before a step in the midst of others, those that begin a prompt or the others; the mean, for they add
        up."""
        return statistics.mean(
            self._gap(before, after)
            for before, after in pairwise(self.steps)
            if before["running"] and _prompts(after) == prompts
        )

    def over(self, *, idle: bool) -> float:
        """Seconds that steps with a prompt take more than they are priced at: those before which nothing ran, or the
        others; the median, 0 where there are none."""
        found = (
            self._over(after)
            for before, after in pairwise(self.steps)
            if _prompts(after) and (before["running"] == 0) == idle
        )
        return statistics.median([*found] or [0.0])

    def after(self) -> float:
        """Seconds that a prompt costs the decode steps after it beside their price, gaps before them too: the median of
        each before the COLD-th, less that of the later ones."""
        found, since = defaultdict[int, list[float]](list), COLD
        for before, step in pairwise(self.steps):
            since = 0 if _prompts(step) else min(COLD, since + 1)
            if since and before["running"]:
                found[since].append(self._gap(before, step) + self._over(step))
        usual = statistics.median(found.pop(COLD))
        return sum(max(0.0, statistics.median(each) - usual) for each in found.values())

    def _gap(self, before: Mapping[str, float], after: Mapping[str, float]) -> float:
        return (after["at"] - before["at"] - before["seconds"]) / self.paces[0]

    def _over(self, step: Mapping[str, float]) -> float:
        return step["seconds"] / self.paces[0] - step["predicted"]


def _prompts(step: Mapping[str, float]) -> bool:
    return step["positions"] > step["sequences"]


def costs_of(long: Phase, short: Phase, two: Phase, several: Phase) -> tuple[Between, Front]:
    """The parts, undisturbed: of one user with long answers and with short ones, of two users and of several. All of it
    is idle time that is told apart: nothing of a trace is in it."""
    each = (long.seconds - short.seconds) / (long.tokens - short.tokens)  # a step and its one token
    request = (short.seconds - each * short.tokens) / len(short.rows)
    shared = (several.seconds - request * len(several.rows)) / several.tokens
    assert several.batch > 1, "several users are together in steps"
    step = min(each, max(0.0, (each - shared) / (1 - 1 / several.batch)))
    sequence = max(0.0, (several.gap(prompts=False) - long.gap(prompts=False)) / (several.batch - 1))
    arrival = max(0.0, several.gap(prompts=True) - several.gap(prompts=False))
    idle = max(0.0, two.over(idle=True) - two.over(idle=False))
    always = max(0.0, long.gap(prompts=False) - sequence)
    between = Between(*_nanoseconds(always, sequence, arrival, idle, two.after()))
    first = max(0.0, short.around - short.read - each - arrival)
    answer = max(0.0, request - short.read - first)
    return between, Front(*_nanoseconds(short.read, step, each - step, first, answer))


def slowed(costs: Between | Front, pace: float) -> Any:
    """The same while all of it takes so many times longer."""
    return replace(costs, **{each.name: round(getattr(costs, each.name) * pace) for each in fields(costs)})


def _nanoseconds(*seconds: float) -> Iterator[int]:
    return (round(each * 1e9) for each in seconds)
