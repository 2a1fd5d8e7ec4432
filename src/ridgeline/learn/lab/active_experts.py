"""Mixtures of experts: the number of experts that a batch uses, by formula, by random draws, and in a model."""

import random

from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.insight.trace.expert_sources import expert_sources
from ridgeline.learn.lab.cost_calculator import CostCalculator
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.statements_words import PROSE, VERSE
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

BIG, BATCHES, THROWS = "qwen3-235b-a22b", (1, 2, 4, 8, 16, 32, 64, 128), 400


def thrown(experts: int, each: int, batch: int) -> float:
    """Return the mean number of distinct experts that a batch uses if each token picks `each` of them at random."""
    draw = random.Random(batch)
    hits = (len({e for _ in range(batch) for e in draw.sample(range(experts), each)}) for _ in range(THROWS))
    return sum(hits) / THROWS


def run() -> ExperimentOutcome:
    """Run the experiment on a large mixture by formula, and on the built-in one by its router."""
    ledger = CostCalculator()
    formula = {batch: ledger.touched(BIG, batch) for batch in BATCHES}
    dice = {batch: thrown(128, 8, batch) for batch in BATCHES}
    off = max(abs(dice[batch] / formula[batch] - 1) for batch in BATCHES)
    bill = ledger.bill(BIG)
    read = ledger.decode(BIG, "h200-sxm", 32).weights / ledger.bill(BIG).nbytes
    model, tokenizer = load_model("mixture"), tokenizer_of("mixture")
    texts = {"prose": PROSE, "drama": VERSE}
    routed = expert_sources(model, {name: tokenizer.encode(text, add_special=False) for name, text in texts.items()})
    measured = {one.batch: (one.mixed, one.formula) for one in routed.touched}
    few = [mixed / balanced for batch, (mixed, balanced) in measured.items() if batch > 1]
    rows = [TableRow((f"{n}", f"{formula[n]:.1f}", f"{dice[n]:.1f}")) for n in BATCHES]
    lines = (
        Series("128 experts, from the formula", tuple((n, 100 * value / 128) for n, value in formula.items())),
        Series(
            "built-in model `mixture`, its own router",
            tuple((n, 100 * mixed / 8) for n, (mixed, _) in measured.items()),
        ),
        Series(
            "built-in model `mixture`, balanced router",
            tuple((n, 100 * value / 8) for n, (_, value) in measured.items()),
            "dashed",
        ),
    )
    return ExperimentOutcome(
        (
            (
                off < 0.02,
                f"simulation and formula differ by at most {off:.1%}; 32 tokens activate {formula[32]:.1f} of 128",
            ),
            (
                bill.active / bill.total < 0.1 and read > 0.8,
                f"one token uses {bill.active / bill.total:.0%} of the parameters, but a step of 32 tokens reads "
                f"{read:.0%} of them",
            ),
            (
                max(few) <= 1.001 and min(few) > 0.75,
                f"between {min(few):.0%} and {max(few):.0%} of the experts that balanced routing would activate",
            ),
        ),
        (
            DocumentTable(columns("tokens", "E(1-(1-k/E)^T)", "simulated"), tuple(rows)),
            Chart("Experts per layer that a batch activates", "tokens", "percent of all experts", lines, log_x=True),
        ),
        {"formula": formula, "dice": dice, "read": read, "mixture": measured},
    )


EXPERIMENT = Experiment(
    "experts",
    "How much computation and memory traffic does a mixture of experts save?",
    (
        "A batch of T tokens activates E(1-(1-k/E)^T) experts on average; a random simulation gives the same number.",
        "One token uses less than a tenth of Qwen3-235B's parameters, but a step of 32 tokens reads more than four "
        "fifths.",
        "A trained router is not balanced: the built-in `mixture` activates slightly fewer experts than random "
        "routing.",
    ),
    run,
)
