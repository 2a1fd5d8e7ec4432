"""The load law: what steady arrivals do to the time a token takes, by a formula, to stand beside what was simulated.

A request whose answer has L tokens has a part in L steps, so that at lambda requests a second, by Little's law,
lambda L s of them run side by side where a step takes s; a step also runs the lambda s prompts that came meanwhile.
Where one more sequence adds b to a decode step, which takes a with one, and a prompt adds P to the step that it rides
on:

    s = a + b lambda L s + P lambda s        so that        TPOT = a / (1 - rho),  rho = lambda (P + L b)

b and P are taken where the replica works: at as many sequences as the law itself finds.

n users who ask again at once have n sequences in every step, and L steps bring each of them an answer. In n of these a
prompt runs beside n - 1 sequences that decode, in the others n sequences decode, so that n L tokens take

    (L - n) d(n) + n m(n)        d: a decode step; m: one of a prompt and n - 1 that decode

and a prompt in k parts is in k such steps. A plan's closed loop has each prompt run by itself, as in engines that run
prompts before they go on with decoding.
"""

from dataclasses import dataclass

from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.plan.case import Case

_ROUNDS = 4  # from any batch the next is nearer: b and P change little with it
_FIRST, _MOST = 64, 4096  # sequences


@dataclass(frozen=True, slots=True)
class Law:
    """alone: seconds of a decode step of one sequence (a). each: what one more adds (b). prompt: what a prompt adds to
    the step, or steps, that run it (P). load: rho; from 1 on nothing keeps up. tpot: seconds; None there. wall:
    requests a second at which load is 1."""

    alone: float
    each: float
    prompt: float
    load: float
    tpot: float | None
    wall: float


def load_law(case: Case, rate: float, input: int, output: int, step_tokens: int) -> Law:
    """For requests of so many tokens in and out, `rate` a second."""
    batch = _FIRST
    found = _law(case, rate, input, output, step_tokens, batch)
    for _ in range(_ROUNDS):
        if found.tpot is None:
            break
        batch = max(2, min(_MOST, round(rate * output * found.tpot)))
        found = _law(case, rate, input, output, step_tokens, batch)
    return found


def loop_law(case: Case, users: int, input: int, output: int, step_tokens: int) -> float:
    """Tokens a second of so many users who ask again at once, for requests of so many tokens in and out."""
    context = input + output // 2
    plain = _seconds(case, Work.decode([context] * users, case.price.reaches))
    mixed = _mixed(case, input, [context] * (users - 1), step_tokens)
    steps = output + len(mixed) - 1
    return users * output / ((steps - users * len(mixed)) * plain + users * sum(mixed))


def _law(case: Case, rate: float, input: int, output: int, step_tokens: int, batch: int) -> Law:
    context = input + max(1, output // 2)
    batch = max(2, min(batch, step_tokens // 2))  # a step has room for prompts beside it
    alone, many = (_seconds(case, Work.decode([context] * count, case.price.reaches)) for count in (1, batch))
    each = max(0.0, (many - alone) / (batch - 1))
    mixed = _mixed(case, input, [context] * batch, step_tokens)
    prompt = sum(mixed) - len(mixed) * many
    load, wall = rate * (prompt + output * each), 1 / (prompt + output * each)
    return Law(alone, each, prompt, load, alone / (1 - load) if load < 1 else None, wall)


def _mixed(case: Case, prompt: int, others: list[int], step_tokens: int) -> list[float]:
    """Seconds of each step that runs a part of a prompt beside others that decode, at these positions."""
    found, done = [], 0
    while done < prompt:
        end = min(prompt, done + max(1, step_tokens - len(others)))
        riding = Work.of([Segment(end - done, end)], case.price.reaches, logit_rows=int(end == prompt))
        found.append(_seconds(case, riding + Work.decode(others, case.price.reaches) if others else riding))
        done = end
    return found


def _seconds(case: Case, work: Work) -> float:
    return case.price.on(case.device, work).expected
