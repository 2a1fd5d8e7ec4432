"""Interference: a long prompt arrives while other users are decoding, and a step's token budget decides who waits."""

from dataclasses import dataclass

from ridgeline.core.ops.work import StepSegment
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import say_seconds

MODEL, GPU, USERS, CONTEXT, PROMPT = "llama-3-8b", "h100-sxm", 20, 1000, 16_384
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
        seconds.append(ledger.step(MODEL, GPU, [*users, StepSegment(chunk, done + chunk)]).expected)
        done += chunk
    alone = ledger.step(MODEL, GPU, [StepSegment(1, CONTEXT)] * USERS).expected
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
        Series("longest wait of the 20 users for a token", tuple((budget, one.itl) for budget, one in found.items())),
        Series("first token of the long prompt", tuple((budget, one.ttft) for budget, one in found.items())),
        Series("step without the prompt", tuple((budget, one.alone) for budget, one in found.items()), "dashed"),
    )
    waits = [one.itl for one in found.values()]
    return ExperimentOutcome(
        (
            (
                most.itl > 20 * most.alone and most.steps == 1,
                f"one step takes {say_seconds(most.itl)} instead of the usual {say_seconds(most.alone)}",
            ),
            (
                waits == sorted(waits) and least.itl < 3 * least.alone and least.ttft > 1.5 * most.ttft,
                f"with a budget of {BUDGETS[0]} the others wait {say_seconds(least.itl)}, and the first token comes "
                f"after {say_seconds(least.ttft)} instead of {say_seconds(most.ttft)} in a single step",
            ),
            (
                usual.ttft < 1.15 * most.ttft and usual.itl < 0.3 * most.itl,
                f"with a budget of 2,048 the others wait {say_seconds(usual.itl)}, and the first token comes after "
                f"{say_seconds(usual.ttft)}",
            ),
        ),
        (
            DocumentTable(columns("token budget", "steps", "longest wait", "first token", words=()), tuple(rows)),
            Chart(
                f"A prompt of {PROMPT:,} tokens joins {USERS} decoding users (8B, H100, expected)",
                "token budget per step",
                "seconds", lines, log_x=True, log_y=True,
            ),
        ),
        {"budgets": {budget: {"steps": o.steps, "itl": o.itl, "ttft": o.ttft} for budget, o in found.items()}},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "interference",
    "Which requests wait when a long prompt arrives?",
    (
        "If the prompt runs in one step, all other users wait for their next token more than 20 times as long as "
        "usual.",
        "With a smaller token budget per step the others wait less, but the prompt's first token comes later.",
        "A budget of 2,048 tokens delays the first token by less than 15 % and saves the others over 70 % of their "
        "wait.",
    ),
    run,
)
