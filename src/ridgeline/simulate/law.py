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
    context, reaches = input + output // 2, case.price.reaches
    others = [context] * (users - 1)

    def seconds(work: Work) -> float:
        return case.price.on(case.device, work).expected

    plain, mixed, done, parts = seconds(Work.decode([context] * users, reaches)), 0.0, 0, 0
    while done < input:
        end = min(input, done + max(1, step_tokens - len(others)))
        riding = Work.of([Segment(end - done, end)], reaches, logit_rows=int(end == input))
        mixed += seconds(riding + Work.decode(others, reaches) if others else riding)
        done, parts = end, parts + 1
    steps = output + parts - 1
    return users * output / ((steps - users * parts) * plain + users * mixed)


def _law(case: Case, rate: float, input: int, output: int, step_tokens: int, batch: int) -> Law:
    context = input + max(1, output // 2)
    batch = max(2, min(batch, step_tokens // 2))  # a step has room for prompts beside it

    def seconds(work: Work) -> float:
        return case.price.on(case.device, work).expected

    decode = Work.decode([context] * batch, case.price.reaches)
    alone, many = seconds(Work.decode([context], case.price.reaches)), seconds(decode)
    each, prompt, done = max(0.0, (many - alone) / (batch - 1)), 0.0, 0
    while done < input:
        end = min(input, done + max(1, step_tokens - batch))
        riding = Work.of([Segment(end - done, end)], case.price.reaches, logit_rows=int(end == input))
        prompt, done = prompt + seconds(riding + decode) - many, end
    load, wall = rate * (prompt + output * each), 1 / (prompt + output * each)
    return Law(alone, each, prompt, load, alone / (1 - load) if load < 1 else None, wall)
