"""The load law: what steady arrivals do to the time a token takes, by a formula, to stand beside what was simulated.

A request whose answer has L tokens has a part in L steps, so that at lambda requests a second, by Little's law,
lambda L s of them run side by side where a step takes s; a step also runs the lambda s prompts that came meanwhile.
Where one more sequence adds b to a decode step, which takes a with one, and a prompt adds P to the step that it rides
on:

    s = a + b lambda L s + P lambda s        so that        TPOT = a / (1 - rho),  rho = lambda (P + L b)

b and P are taken beside as many sequences as that makes, n = lambda L s: with n side by side

    lambda(n) = n / (L a + n (P + L b))

are answered a second. The wall, above which nothing keeps up, is lambda(B) of the most that decode side by side: the
least of what places, pages and positions allow. A request has its place and its pages for the k steps of its prompt
too, so that of as many requests L / (L + k - 1) decode. A step of T positions has room for T L / (I + L) that decode,
beside the prompts of I tokens that come meanwhile.

n users who ask again at once have n sequences in every step, and L steps bring each of them an answer. In n of these a
prompt runs beside n - 1 sequences that decode, in the others n sequences decode, so that n L tokens take

    (L - n) d(n) + n m(n)        d: a decode step; m: one of a prompt and n - 1 that decode

and a prompt in k parts is in k such steps. A plan's closed loop has each prompt run by itself, as in engines that run
prompts before they go on with decoding.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.insight.simulate.replica import Machine


@dataclass(frozen=True, slots=True)
class LoadLaw:
    """Of one replica. load: rho. tpot: seconds; None where nothing keeps up. wall: requests a second from which that is
    so. most: requests that decode side by side then (B).
    """

    load: float
    tpot: float | None
    wall: float
    most: float


def load_law(machine: Machine, rate: float, input: int, output: int) -> LoadLaw:
    """For requests of so many tokens in and out, `rate` a second."""
    requests, most = _RequestCost(machine, input, output), _most(machine, input, output)
    wall = requests.answered(most)
    if rate >= wall:
        return LoadLaw(rate * requests.cost(most), None, wall, most)
    counts = range(1, math.ceil(most) + 1)
    fewest = counts.start + bisect_left(counts, rate, key=requests.answered)
    load = rate * requests.cost(min(fewest, most))
    return LoadLaw(load, requests.alone / (1 - load), wall, most)


def saturation_rate(machine: Machine, input: int, output: int) -> float:
    """Requests a second above which nothing keeps up."""
    return _RequestCost(machine, input, output).answered(_most(machine, input, output))


def load_curve(machine: Machine, input: int, output: int) -> list[tuple[float, float]]:
    """Requests a second below the wall, and the TPOT in seconds that the law has there."""
    requests, most = _RequestCost(machine, input, output), _most(machine, input, output)
    batches = sorted({round(most ** (at / _POINTS)) for at in range(_POINTS + 1)} if most > 1 else {1})
    rates = [(batch, requests.answered(batch)) for batch in batches]
    return [(rate, batch / (rate * output)) for batch, rate in rates]


def loop_law(machine: Machine, users: int, input: int, output: int) -> float:
    """Tokens a second of so many users who ask again at once, for requests of so many tokens in and out."""
    others = [_context(input, output)] * users
    plain, mixed = _decoding(machine, others), _mixed(machine, input, others[1:])
    steps = output + len(mixed) - 1
    return users * output / ((steps - users * len(mixed)) * plain + users * sum(mixed))


_POINTS = 40  # of a curve


class _RequestCost:
    """What requests of so many tokens in and out cost, by how many decode side by side."""

    def __init__(self, machine: Machine, input: int, output: int) -> None:
        """alone: seconds of a decode step of one (a)."""
        self._machine, self._input, self._output = machine, input, output
        self._context = _context(input, output)
        self.alone = _decoding(machine, [self._context])
        self._costs: dict[int, float] = {}

    def cost(self, batch: float) -> float:
        """Seconds that a request adds to the steps that it has a part in, beside so many others (P + L b)."""
        many = max(2, round(batch))
        if many not in self._costs:
            others = [self._context] * many
            plain, mixed = _decoding(self._machine, others), _mixed(self._machine, self._input, others)
            each = max(0.0, (plain - self.alone) / (many - 1))
            self._costs[many] = sum(mixed) - len(mixed) * plain + self._output * each
        return self._costs[many]

    def answered(self, batch: float) -> float:
        """Requests a second (lambda of n)."""
        return batch / (self._output * self.alone + batch * self.cost(batch))


def _most(machine: Machine, input: int, output: int) -> float:
    """B, which is less than 1 where a prompt takes more steps than its answer leaves."""
    limits = machine.limits
    kept = machine.layout.users(_context(input, output), limits.max_request_tokens)
    parts = math.ceil(input / limits.max_request_tokens)
    decoding = max(1, min(limits.requests, kept)) * output / (output + parts - 1)
    return min(decoding, limits.tokens * output / (input + output))


def _context(input: int, output: int) -> int:
    """Positions of a sequence that decodes, on average."""
    return input + output // 2


def _mixed(machine: Machine, prompt: int, others: list[int]) -> list[float]:
    """Seconds of each step that runs a part of a prompt beside others that decode, at these positions."""
    limits, reaches = machine.limits, machine.case.price.reaches
    part = max(1, min(limits.max_request_tokens, limits.tokens - len(others)))
    found = []
    for done in range(0, prompt, part):
        end = min(prompt, done + part)
        riding = Work.of([StepSegment(end - done, end)], reaches, logit_rows=int(end == prompt))
        work = riding + Work.decode(others, reaches) if others else riding
        found.append(_seconds(machine, work, len(others) + 1, new=int(done == 0)))
    return found


def _decoding(machine: Machine, sequences: list[int]) -> float:
    """Seconds of a step in which sequences decode, at these positions."""
    return _seconds(machine, Work.decode(sequences, machine.case.price.reaches), len(sequences), new=0)


def _seconds(machine: Machine, work: Work, sequences: int, new: int) -> float:
    """Of a step, with what passes before it."""
    return machine.case.price.on(machine.case.device, work).expected + machine.between.of(sequences, new) / 1e9
