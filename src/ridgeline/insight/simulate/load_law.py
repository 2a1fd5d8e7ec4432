"""A queueing formula for the time per output token under steady arrivals, shown next to the simulated figure.

A request whose response has L tokens takes part in L steps. At lambda requests per second, Little's law gives lambda L
s requests that run concurrently if a step takes s; a step also runs the lambda s prompts that arrived meanwhile. If a
decode step of one sequence takes a, each further sequence adds b, and a prompt adds P to its step:

    s = a + b lambda L s + P lambda s        so that        TPOT = a / (1 - rho),  rho = lambda (P + L b)

b and P are taken at the batch size n = lambda L s that results. With n concurrent sequences

    lambda(n) = n / (L a + n (P + L b))

requests complete per second. The saturation rate, above which the queue grows without bound, is lambda(B) for the
largest batch B of decoding sequences: the smallest that request slots, KV pages and the token budget allow. A request
also holds its slot and pages for the k steps of its prompt, so L / (L + k - 1) of the running requests decode. A step
with a budget of T tokens has room for T L / (I + L) decoding sequences next to the prompts of I tokens that arrive
meanwhile.

In a closed loop without think time, n users have n sequences in every step, and each of them gets a response every L
steps. In n of these steps, a prompt runs next to n - 1 decoding sequences; in the others n sequences decode. So n L
tokens take

    (L - n) d(n) + n m(n)        d: a decode step; m: one of a prompt and n - 1 that decode

and a prompt in k chunks takes part in k such steps. The closed loop of `ridgeline plan` differs: there each prompt runs
by itself, as in engines that run prompts before they continue decoding.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, field

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.insight.simulate.replica import Machine
from ridgeline.util.json_data import json_name


@dataclass(frozen=True, slots=True)
class LoadLaw:
    """The load of one replica by the queueing formula."""

    load: float
    """The utilization rho of the replica."""
    tpot: float | None
    """The seconds per output token; None if the replica cannot keep up."""
    saturation_rate: float = field(metadata=json_name("wall"))
    """The saturation rate in requests per second, from which the queue grows without bound."""
    max_batch: float = field(metadata=json_name("most"))
    """The number of sequences that decode concurrently at saturation (B)."""


def load_law(machine: Machine, rate: float, input: int, output: int) -> LoadLaw:
    """Return the load and TPOT for `rate` requests per second with given prompt and response lengths."""
    requests, most = _RequestCost(machine, input, output), _most(machine, input, output)
    wall = requests.answered(most)
    if rate >= wall:
        return LoadLaw(rate * requests.cost(most), None, wall, most)
    counts = range(1, math.ceil(most) + 1)
    fewest = counts.start + bisect_left(counts, rate, key=requests.answered)
    load = rate * requests.cost(min(fewest, most))
    return LoadLaw(load, requests.alone / (1 - load), wall, most)


def saturation_rate(machine: Machine, input: int, output: int) -> float:
    """Return the requests per second above which the queue of a replica grows without bound."""
    return _RequestCost(machine, input, output).answered(_most(machine, input, output))


def load_curve(machine: Machine, input: int, output: int) -> list[tuple[float, float]]:
    """Return points (requests per second, TPOT in seconds) of the formula, up to about the saturation rate."""
    requests, most = _RequestCost(machine, input, output), _most(machine, input, output)
    batches = sorted({round(most ** (at / _POINTS)) for at in range(_POINTS + 1)} if most > 1 else {1})
    rates = [(batch, requests.answered(batch)) for batch in batches]
    return [(rate, batch / (rate * output)) for batch, rate in rates]


def closed_loop_throughput(machine: Machine, users: int, input: int, output: int) -> float:
    """Return the output tokens per second of a closed loop without think time.

    Args:
        machine: The replica.
        users: Users who send the next request as soon as they have a response.
        input: Tokens of a prompt.
        output: Tokens of a response.
    """
    others = [_context(input, output)] * users
    plain, mixed = _decoding(machine, others), _mixed(machine, input, others[1:])
    steps = output + len(mixed) - 1
    return users * output / ((steps - users * len(mixed)) * plain + users * sum(mixed))


_POINTS = 40  # points of a curve


class _RequestCost:
    """The time that a request of given lengths costs a replica, by the number of concurrently decoding sequences."""

    def __init__(self, machine: Machine, input: int, output: int) -> None:
        """Compute `alone`, the seconds of a decode step with one sequence (a)."""
        self._machine, self._input, self._output = machine, input, output
        self._context = _context(input, output)
        self.alone = _decoding(machine, [self._context])
        self._costs: dict[int, float] = {}

    def cost(self, batch: float) -> float:
        """Return the seconds that one request adds to its steps at a batch size (P + L b)."""
        many = max(2, round(batch))
        if many not in self._costs:
            others = [self._context] * many
            plain, mixed = _decoding(self._machine, others), _mixed(self._machine, self._input, others)
            each = max(0.0, (plain - self.alone) / (many - 1))
            self._costs[many] = sum(mixed) - len(mixed) * plain + self._output * each
        return self._costs[many]

    def answered(self, batch: float) -> float:
        """Return the completed requests per second at a batch size (lambda of n)."""
        return batch / (self._output * self.alone + batch * self.cost(batch))


def _most(machine: Machine, input: int, output: int) -> float:
    """Return the largest decode batch B, which can be below 1, for example for a long prompt with a short response."""
    limits = machine.limits
    kept = machine.layout.max_sequences(_context(input, output), limits.max_request_tokens)
    parts = math.ceil(input / limits.max_request_tokens)
    decoding = max(1, min(limits.requests, kept)) * output / (output + parts - 1)
    return min(decoding, limits.tokens * output / (input + output))


def _context(input: int, output: int) -> int:
    """Return the average number of positions of a decoding sequence."""
    return input + output // 2


def _mixed(machine: Machine, prompt: int, others: list[int]) -> list[float]:
    """Return the seconds of each step that runs a chunk of a prompt next to decoding sequences.

    Args:
        machine: The replica.
        prompt: Tokens of the prompt.
        others: The context lengths of the sequences that decode.
    """
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
    """Return the seconds of a decode step, given the context length of each sequence."""
    return _seconds(machine, Work.decode(sequences, machine.case.price.reaches), len(sequences), new=0)


def _seconds(machine: Machine, work: Work, sequences: int, new: int) -> float:
    """Return the seconds of a step, with the host overhead before it."""
    return (
        machine.case.price.price_step(machine.case.device, work).expected
        + machine.host_overhead.of(sequences, new) / 1e9
    )
