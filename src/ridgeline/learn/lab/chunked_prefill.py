"""Interference: a long prompt arrives while other users are decoding, and a step's token budget decides who waits."""

from dataclasses import dataclass

from ridgeline.core.ops.work import StepSegment
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import say_seconds

MODEL, CARD, USERS, CONTEXT, PROMPT = "llama-3-8b", "h100-sxm", 20, 1000, 16_384
BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192, PROMPT + USERS)


@dataclass(frozen=True, slots=True)
class Waits:
    """The waiting times if a long prompt runs next to decoding users, with one token budget per step."""

    steps: int
    """The number of engine steps in which the long prompt is computed."""
    ttft: float
    """The seconds to the prompt's first token."""
    itl: float
    """The longest time between two tokens of another user while the prompt runs, in seconds."""
    alone: float
    """The seconds of a decode step without the prompt."""


def arrive(ledger: CostCalculator, budget: int) -> Waits:
    """Return the waiting times if steps have at most `budget` positions: one per user, the rest for the prompt."""
    done, seconds = 0, list[float]()
    while done < PROMPT:
        chunk = min(PROMPT - done, budget - USERS)
        users = [StepSegment(1, CONTEXT + len(seconds))] * USERS
        seconds.append(ledger.step(MODEL, CARD, [*users, StepSegment(chunk, done + chunk)]).expected)
        done += chunk
    alone = ledger.step(MODEL, CARD, [StepSegment(1, CONTEXT)] * USERS).expected
    return Waits(len(seconds), sum(seconds), max(seconds), alone)


def run() -> ExperimentOutcome:
    """Run the experiment: price the long prompt and the decoding users with every token budget."""
    ledger = CostCalculator()
    found = {budget: arrive(ledger, budget) for budget in BUDGETS}
    least, most = found[BUDGETS[0]], found[BUDGETS[-1]]
    usual = found[2048]
    rows = [
        TableRow((f"{budget:,}", f"{one.steps:,}", say_seconds(one.itl), say_seconds(one.ttft)))
        for budget, one in found.items()
    ]
    lines = (
        Series("longest wait for a token, of 20 users", tuple((budget, one.itl) for budget, one in found.items())),
        Series("first token of the long prompt", tuple((budget, one.ttft) for budget, one in found.items())),
        Series("a step without the prompt", tuple((budget, one.alone) for budget, one in found.items()), "dashed"),
    )
    waits = [one.itl for one in found.values()]
    return ExperimentOutcome(
        (
            (
                most.itl > 20 * most.alone and most.steps == 1,
                f"a step of {say_seconds(most.itl)}, where {say_seconds(most.alone)} are usual",
            ),
            (
                waits == sorted(waits) and least.itl < 3 * least.alone and least.ttft > 1.5 * most.ttft,
                f"at {BUDGETS[0]}: waits of {say_seconds(least.itl)}, first token after {say_seconds(least.ttft)}, "
                f"at once "
                f"{say_seconds(most.ttft)}",
            ),
            (
                usual.ttft < 1.15 * most.ttft and usual.itl < 0.3 * most.itl,
                f"at 2,048: waits of {say_seconds(usual.itl)}, first token after {say_seconds(usual.ttft)}",
            ),
        ),
        (
            DocumentTable(columns("budget", "steps", "longest wait", "first token", words=()), tuple(rows)),
            Chart(
                f"A prompt of {PROMPT:,} tokens among {USERS} users (8B, H100, expected)", "budget of a step, "
                "positions",
                "seconds", lines, log_x=True, log_y=True,
            ),
        ),
        {"budgets": {budget: {"steps": o.steps, "itl": o.itl, "ttft": o.ttft} for budget, o in found.items()}},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "interference",
    "Who waits when a long prompt arrives?",
    (
        "If it runs at once, everybody else waits for one token as long as for more than twenty usual steps.",
        "The smaller the budget of a step, the less they wait, and the later the prompt has its first token.",
        "A budget of 2,048 costs the prompt less than a seventh and spares the others more than two thirds of the "
        "wait.",
    ),
    run,
    __file__,
)
