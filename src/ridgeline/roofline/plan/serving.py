"""A model under load: users, their waiting, requests a second, and what a million tokens costs.

The load is a closed loop: `users` requests are always under way, and who has finished asks again. One engine gives its
time to prefills, which come first, and to decode steps, so that in the `output` tokens of one request every other user
has one prefill:

    TPOT = t_decode(users) + users / output x t_prefill(input)
    tokens a second = users / TPOT        requests a second X = tokens a second / output
    users = X x L, with L = output x TPOT the time a request stays (Little's law)

A new prompt waits for the step under way and for the prompts before it: an M/D/1 queue whose server takes decode steps
as vacations (Doshi 1986; DistServe, arXiv:2401.09670, plans prefill as M/D/1):

    TTFT = t_prefill + rho t_prefill / (2 (1 - rho)) + t_decode / 2, with rho = X t_prefill of the other users
"""

from dataclasses import dataclass
from functools import cached_property

from ridgeline.roofline.plan.case import Case
from ridgeline.roofline.plan.estimate import Estimate
from ridgeline.roofline.plan.memory import Memory, memory_of
from ridgeline.roofline.plan.phases import decode_step, prefill_steps
from ridgeline.roofline.plan.workload import Workload


@dataclass(frozen=True, slots=True)
class Load:
    """What `users` users side by side get.

    itl: seconds of a decode step. prefill: of one prompt alone. tpot: between two tokens on average, the prefills of
    the others included. ttft: from asking to the first token. prefill_share: of the engine's time, as expected.
    """

    users: int
    itl: Estimate
    prefill: Estimate
    tpot: Estimate
    ttft: Estimate
    tokens_per_second: Estimate
    requests_per_second: Estimate
    prefill_share: float

    @property
    def tokens_per_user(self) -> Estimate:
        """Tokens a second that one user sees."""
        return self.tpot.per_second(1)


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most users there may be. limit: what stops one more of them: memory, ttft or tpot.

    load: what they get; where there is not even one, what one would get.
    """

    users: int
    limit: str
    load: Load


class Serving:
    """A case under a workload's requests."""

    def __init__(self, case: Case, workload: Workload) -> None:
        self.case, self.workload = case, workload

    @cached_property
    def memory(self) -> Memory:
        """What a card holds."""
        return memory_of(self.case, self.workload)

    @cached_property
    def prefill(self) -> Estimate:
        """Seconds of one prompt alone."""
        return Estimate.of(prefill_steps(self.case, self.workload, 1))

    def load(self, users: int) -> Load:
        """What `users` users get, whether memory holds them or not."""
        output = self.workload.output
        itl = Estimate.of([decode_step(self.case, users, self.workload.context)])
        tpot = itl + self.prefill * (users / output)
        rate = tpot.per_second(users)
        waits = [
            _first_token(step, prompt, each, users, output)
            for step, prompt, each in zip(_figures(itl), _figures(self.prefill), _figures(tpot), strict=True)
        ]
        share = self.prefill.expected * users / output / tpot.expected
        return Load(users, itl, self.prefill, tpot, Estimate(*waits), rate, rate * (1 / output), share)

    @cached_property
    def capacity(self) -> Capacity:
        """The most users that memory holds and the targets allow, by expected times."""
        held = self.memory.users
        low, high = (0, held + 1) if self._missed(held or 1) else (held, held + 1)
        while high - low > 1:  # `low` users are fine, `high` are too many
            middle = (low + high) // 2
            low, high = (low, middle) if self._missed(middle) else (middle, high)
        limit = "memory" if low == held else self._missed(low + 1) or "memory"
        return Capacity(low, limit, self.load(max(1, low)))

    def _missed(self, users: int) -> str | None:
        """Which target so many users would miss."""
        wanted = {"ttft": self.workload.ttft, "tpot": self.workload.tpot}
        if wanted == {"ttft": None, "tpot": None}:
            return None
        load = self.load(users)
        got = {"ttft": load.ttft.expected, "tpot": load.tpot.expected}
        return next((name for name, target in wanted.items() if target is not None and got[name] > target), None)

    @property
    def batch_fits(self) -> bool:
        """Whether memory holds the workload's batch."""
        return self.memory.users >= self.workload.batch

    def dollars_per_million(self, tokens_per_second: float) -> float | None:
        """Dollars for a million tokens of output, their prompts included; None where no price is known."""
        hourly = self.case.setup.hourly
        return None if hourly is None else hourly / 3600 / tokens_per_second * 1e6


def _figures(estimate: Estimate) -> tuple[float, float, float]:
    return estimate.floor, estimate.bound, estimate.expected


def _first_token(step: float, prompt: float, tpot: float, users: int, output: int) -> float:
    """Seconds to the first token: the queue of the other users' prompts, half a decode step, the prompt itself."""
    others = users - 1
    busy = others * prompt / (output * tpot)
    return prompt + busy * prompt / (2 * (1 - busy)) + (step / 2 if others else 0.0)
