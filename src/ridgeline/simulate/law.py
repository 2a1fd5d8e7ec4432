"""The load law: what steady arrivals do to the time a token takes, by a formula, to stand beside what was simulated.

A request whose answer has L tokens has a part in L steps, so that at lambda requests a second, by Little's law,
lambda L s of them run side by side where a step takes s; a step also runs the lambda s prompts that came meanwhile.
Where one more sequence adds b to a decode step, which takes a with one, and a prompt adds P to the step that it rides
on:

    s = a + b lambda L s + P lambda s        so that        TPOT = a / (1 - rho),  rho = lambda (P + L b)

b and P are taken where the replica works: at as many sequences as the law itself finds. Of requests with I tokens in,
no more run side by side than have a place and pages, nor than leave room for their prompts: a step of T positions has
B = T L / (I + L) that decode, beside the prompts that come meanwhile. Where as many run as may, lambda L s is that B:

    wall = B / (L a + B (P + L b))

n users who ask again at once have n sequences in every step, and L steps bring each of them an answer. In n of these a
prompt runs beside n - 1 sequences that decode, in the others n sequences decode, so that n L tokens take

    (L - n) d(n) + n m(n)        d: a decode step; m: one of a prompt and n - 1 that decode

and a prompt in k parts is in k such steps. A plan's closed loop has each prompt run by itself, as in engines that run
prompts before they go on with decoding.
"""

from dataclasses import dataclass

from ridgeline.ops.work import Segment, Work
from ridgeline.roofline.plan.case import Case
from ridgeline.simulate.replica import Machine

_ROUNDS = 4  # from any batch the next is nearer: b and P change little with it


@dataclass(frozen=True, slots=True)
class Law:
    """load: rho. tpot: seconds; None where nothing keeps up. wall: requests a second from which that is so. most:
    requests that may decode side by side (B)."""

    load: float
    tpot: float | None
    wall: float
    most: float


def load_law(machine: Machine, rate: float, input: int, output: int) -> Law:
    """For requests of so many tokens in and out, `rate` a second."""
    most = _most(machine, input, output)
    alone, request = _costs(machine, input, output, most)
    wall = most / (output * alone + most * request)
    if rate >= wall:
        return Law(rate * request, None, wall, most)
    for _ in range(_ROUNDS):
        batch = min(most, rate * output * alone / (1 - rate * request))
        _, nearer = _costs(machine, input, output, batch)
        if rate * nearer >= 1:  # few sequences may cost more each than many do
            break
        request = nearer
    load = rate * request
    return Law(load, alone / (1 - load), wall, most)


def loop_law(case: Case, users: int, input: int, output: int, step_tokens: int) -> float:
    """Tokens a second of so many users who ask again at once, for requests of so many tokens in and out."""
    context = input + output // 2
    plain = _seconds(case, Work.decode([context] * users, case.price.reaches))
    mixed = _mixed(case, input, [context] * (users - 1), step_tokens)
    steps = output + len(mixed) - 1
    return users * output / ((steps - users * len(mixed)) * plain + users * sum(mixed))


def _most(machine: Machine, input: int, output: int) -> float:
    """B: of places, of pages, and of what leaves room for prompts."""
    limits, layout = machine.limits, machine.layout
    kept = layout.users(input + output // 2, limits.tokens)
    return max(1.0, min(limits.requests, kept, limits.tokens * output / (input + output)))


def _costs(machine: Machine, input: int, output: int, batch: float) -> tuple[float, float]:
    """Seconds of a decode step of one (a), and what a request adds to steps beside so many others (P + L b)."""
    case, step_tokens, context = machine.case, machine.limits.tokens, input + max(1, output // 2)
    many = max(2, min(round(batch), step_tokens // 2))  # a step has room for prompts beside it
    alone, all = (_seconds(case, Work.decode([context] * count, case.price.reaches)) for count in (1, many))
    mixed = _mixed(case, input, [context] * many, step_tokens)
    each = max(0.0, (all - alone) / (many - 1))
    return alone, sum(mixed) - len(mixed) * all + output * each


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
