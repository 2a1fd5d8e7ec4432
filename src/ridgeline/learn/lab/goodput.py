"""Goodput: more requests give more responses, until a little more traffic makes nearly all responses late."""

from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.load_simulation import TARGETS, USUAL, LoadOutcome, OneGpuReplica
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import say_seconds

RATES = (8, 16, 24, 28, 32, 36, 40)
FEW, USUAL_BUDGET, MANY, TUNED = 256, 2048, 8192, 28
"""The three token budgets per step to compare, and the requests per second for that comparison."""
_TRAFFIC = (
    f"Prompts of about {USUAL.tokens:,} tokens, responses of about {USUAL.answer:,}, Poisson arrivals, the engine that "
    "ridgeline plan takes by default. Longer responses lower these rates: plan and simulate assume 256 tokens."
)


def run() -> ExperimentOutcome:
    """Run the experiment: simulate an 8B model on an H100 at several rates, then with several budgets."""
    usual = OneGpuReplica(budget=USUAL_BUDGET)
    found = {rate: usual.serve(rate) for rate in RATES}
    others = {budget: OneGpuReplica(budget=budget).serve(TUNED) for budget in (FEW, MANY)}
    tuned = {FEW: others[FEW], USUAL_BUDGET: found[TUNED], MANY: others[MANY]}
    best = max(RATES, key=lambda rate: found[rate].good)
    after = next(rate for rate in RATES if rate > best and found[rate].metrics.good_share < 0.1)
    calm, late = found[best], found[after]
    small, middle, large = tuned.values()
    rows = [_row(f"{rate} per second", one) for rate, one in found.items()]
    lines = (
        Series("answered", tuple((rate, one.responses_per_second) for rate, one in found.items())),
        Series("answered in time", tuple((rate, one.good) for rate, one in found.items())),
        Series("asked", tuple((rate, rate) for rate in RATES), "dashed"),
    )
    return ExperimentOutcome(
        (
            (
                late.responses_per_second > 0.9 * calm.responses_per_second,
                f"at {best} per second, {calm.responses_per_second:.1f} requests are completed per second; at {after}, "
                f"{late.responses_per_second:.1f} are completed, {late.metrics.good_share:.0%} of them in time",
            ),
            (
                calm.metrics.good_share > 0.95 and after < 4 / 3 * best,
                f"at {best} per second, {calm.metrics.good_share:.0%} are in time",
            ),
            (
                small.metrics.good_share < 0.5 < middle.metrics.good_share and large.longest > 3 * middle.longest,
                f"{small.metrics.good_share:.0%} are in time with a budget of {FEW} tokens; the longest step takes "
                f"{say_seconds(middle.longest)} with {USUAL_BUDGET:,} and {say_seconds(large.longest)} with {MANY:,}",
            ),
        ),
        (
            DocumentTable(
                columns("", "completed per second", "in time", "TTFT p50", "TPOT p50", "longest step"),
                (
                    *rows,
                    f"{TUNED} per second, by token budget per step",
                    *(_row(f"{b:,}", one) for b, one in tuned.items()),
                ),
                (_TRAFFIC, "Up to the best rate, the three lines of the chart below are on top of each other."),
            ),
            Chart(
                f"An 8B on an H100 with the objectives {TARGETS}",
                "requests per second that arrive",
                "per second",
                lines,
            ),
        ),
        {
            "rates": {rate: {"answered": one.responses_per_second, "good": one.good} for rate, one in found.items()},
            "budgets": {budget: one.metrics.good_share for budget, one in tuned.items()},
        },
    )


def _row(name: str, one: LoadOutcome) -> TableRow:
    metrics = one.metrics
    return TableRow((
        name, f"{one.responses_per_second:.1f}", f"{metrics.good_share:.0%}", say_seconds(one.latency("TTFT", 50)),
        say_seconds(one.latency("TPOT", 50)), say_seconds(one.longest),
    ))  # fmt: skip


EXPERIMENT = Experiment(
    "goodput",
    "How many requests per second can a GPU serve?",
    (
        "Beyond a certain rate a GPU still completes as many requests as before, but hardly any of them in time.",
        "With less than a third more traffic, the share of requests in time falls from nearly all to nearly none.",
        "With a small token budget, prompts fall behind. With a large one, single steps delay all requests.",
    ),
    run,
)
