"""What a server takes beside its engine's steps, as an idle one shows it: the parts that `simulate` is told with
`--between-steps` and `--front`."""

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from ridgeline.insight.calibrate.overhead import COLD
from ridgeline.insight.simulate.serving_overhead import ApiServerOverhead, HostOverhead

LATER = COLD + 1
"""Which decode step after a prompt stands for all later ones, which take what they are priced at."""


@dataclass(frozen=True)
class Phase:
    """Requests to a server that nobody else asks: what the client wrote of each, what the server did of them and of its
    engine's steps, and processor seconds of server and client. pace: how many times longer than undisturbed things took
    on their core, as probes say; all that is said of a phase is as if they had not."""

    rows: Sequence[Mapping[str, str]]
    steps: Sequence[Mapping[str, float]]
    requests: Sequence[Mapping[str, float]]
    taken: float
    pace: float

    @property
    def seconds(self) -> float:
        """Of the processor."""
        return self.taken / self.pace

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
        return self._read / self.pace

    @property
    def _read(self) -> float:
        return statistics.median(each["queued"] - each["at"] for each in self.requests)

    @property
    def taken_up(self) -> float:
        """Seconds from then until its first step begins; the median, of requests of which few wait for others."""
        queued = statistics.median(float(row["server_queue"]) for row in self.rows)
        return max(0.0, queued - self._read) / self.engine

    @property
    def outside(self) -> float:
        """Seconds of a first token before the server has the request and after it has made the token; the median."""
        found = (float(row["service_ttft"]) - float(row["server_ttft"]) for row in self.rows)
        return statistics.median(found) / self.pace

    @property
    def late(self) -> float:
        """Seconds that the first token of an answer is later at the client than the others are, each beside its step:
        what the engine took from the first to the last, less what the client waited in between; the median. Of one
        user, whose answers follow each other."""
        waited = (float(row["last_token"]) - float(row["first_token"]) for row in self.rows)
        pairs = zip(self._spans(), waited, strict=True)
        return max(0.0, statistics.median(took - between for took, between in pairs) / self.pace)

    def _spans(self) -> Iterator[float]:
        """Seconds from the end of each prompt to the end of its answer's last step."""
        first = 0.0
        for step in self.steps:
            end = step["at"] + step["seconds"]
            if _prompts(step):
                first = end
            if step["running"] == 0:
                yield end - first

    @cached_property
    def engine(self) -> float:
        """What decode steps take that find all at hand, of what they are priced at; the median. It stands for the pace
        of the engine's core: what other steps take beside their price is a difference, and probes are too coarse for
        that."""
        return statistics.median(step["seconds"] / step["predicted"] for _, step in self._later())

    @property
    def gap(self) -> float:
        """Seconds before a decode step that finds all at hand; the mean, for they add up."""
        return statistics.mean(self._gap(before, step) for before, step in self._later())

    @property
    def side_by_side(self) -> float:
        """Sequences of those steps, on average."""
        return statistics.mean(step["sequences"] for _, step in self._later())

    @property
    def arrival(self) -> float:
        """Seconds more before a step in the midst of others than before others, for each request that is new in it."""
        usual = self.gap
        met = [(before, after) for before, after in pairwise(self.steps) if before["running"] and _prompts(after)]
        if not met:
            return 0.0
        longer = sum(self._gap(before, after) - usual for before, after in met)
        return max(0.0, longer / sum(after["sequences"] - before["running"] for before, after in met))

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
        each of the first COLD, less that of the later ones."""
        found = defaultdict[int, list[float]](list)
        for before, step, since in self._decoding():
            found[since].append(self._gap(before, step) + self._over(step))
        usual = statistics.median(found.pop(LATER))
        return sum(max(0.0, statistics.median(each) - usual) for each in found.values())

    def _later(self) -> Iterator[tuple[Mapping[str, float], Mapping[str, float]]]:
        """Those of the decode steps that find all at hand, and the one before each."""
        return ((before, step) for before, step, since in self._decoding() if since == LATER)

    def _decoding(self) -> Iterator[tuple[Mapping[str, float], Mapping[str, float], int]]:
        """Steps without a prompt in the midst of others, the one before each, and which it is after a prompt, up to
        LATER."""
        since = LATER
        for before, step in pairwise(self.steps):
            since = 0 if _prompts(step) else min(LATER, since + 1)
            if since and before["running"]:
                yield before, step, since

    def _gap(self, before: Mapping[str, float], after: Mapping[str, float]) -> float:
        return (after["at"] - before["at"] - before["seconds"]) / self.engine

    def _over(self, step: Mapping[str, float]) -> float:
        return step["seconds"] / self.engine - step["predicted"]


def _prompts(step: Mapping[str, float]) -> bool:
    return step["positions"] > step["sequences"]


def costs_of(long: Phase, short: Phase, light: Phase, several: Phase) -> tuple[HostOverhead, ApiServerOverhead]:
    """The parts, undisturbed: of one user with long answers and with short ones, of few requests that come by
    themselves, and of several users. Users ask as soon as they have an answer, so that what ends it is still done while
    the next one begins; requests that come by themselves mostly find nothing else going on. Nothing of a trace is in
    it."""
    each = (long.seconds - short.seconds) / (long.tokens - short.tokens)  # a step and its one token
    request = (short.seconds - each * short.tokens) / len(short.rows)
    shared = (several.seconds - request * len(several.rows)) / several.tokens
    assert several.batch > 1, "several users are together in steps"
    step = min(each, max(0.0, (each - shared) / (1 - 1 / several.batch)))
    sequence = max(0.0, (several.gap - long.gap) / (several.side_by_side - 1))
    always = max(0.0, long.gap - sequence)
    arrival = max(0.0, light.arrival + light.over(idle=False))
    idle = max(0.0, light.taken_up + light.over(idle=True) - always - sequence - arrival)
    between = HostOverhead(*_nanoseconds(always, sequence, arrival, idle, light.after()))
    read = light.read + max(0.0, light.outside - each - long.late)  # and what comes before the server has a request
    answer = max(0.0, request - read - long.late)
    return between, ApiServerOverhead(*_nanoseconds(read, step, each - step, long.late, answer))


def _nanoseconds(*seconds: float) -> Iterator[int]:
    return (round(each * 1e9) for each in seconds)
