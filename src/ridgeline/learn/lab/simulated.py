"""The engine on a simulated clock, compared with a queueing formula that does not know the arrival pattern."""

from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.load_simulation import LoadOutcome, OneGpuReplica, RequestMix
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.humanize import say_seconds

RATES = (8, 20, 28)
WAYS = {"evenly": 100.0, "by chance": 1.0, "in bursts": 0.25}
"""The arrival patterns by name, with the shape of the gaps between requests: larger means more equal gaps."""
LOW, HIGH = 8, 28
COUNT = 400  # requests of each run


def mean_tpot(one: LoadOutcome) -> float:
    """Return the mean time per output token after the first in a simulated run, in seconds."""
    found = one.metrics.latencies["TPOT"]
    assert found is not None
    return found.mean


def off(one: LoadOutcome) -> float:
    """Return the relative error of the load law's time per output token, compared with a simulated run."""
    assert one.law.tpot is not None
    return abs(mean_tpot(one) / one.law.tpot - 1)


def run() -> ExperimentOutcome:
    """Run the experiment: an 8B model on an H100, with the same average rates in three arrival patterns."""
    replica = OneGpuReplica()
    found = {
        way: {rate: replica.serve(rate, RequestMix(count=COUNT, burstiness=shape)) for rate in RATES}
        for way, shape in WAYS.items()
    }
    again = replica.serve(HIGH, RequestMix(count=COUNT)).log.requests
    chance = found["by chance"]
    same = again.last == chance[HIGH].log.requests.last
    late = {way: each[HIGH].latency("TTFT", 90) for way, each in found.items()}
    rows = [
        TableRow((
            f"{rate}", f"{one.law.load:.0%}", say_seconds(one.law.tpot or 0.0), say_seconds(mean_tpot(one)),
            *(say_seconds(each[rate].latency("TTFT", 90)) for each in found.values()),
        ))
        for rate, one in chance.items()
    ]  # fmt: skip
    lines = [
        Series(f"arrive {way}", tuple((100 * one.law.load, 1e3 * one.latency("TTFT", 90)) for one in each.values()))
        for way, each in found.items()
    ]
    return ExperimentOutcome(
        (
            (
                same,
                f"the last tokens of all {COUNT} requests come at the same nanosecond"
                if same
                else "the two runs differ",
            ),
            (
                off(chance[LOW]) < 0.05 < 0.1 < off(chance[HIGH]),
                f"the formula is {off(chance[LOW]):.1%} off at {LOW} requests per second, {off(chance[HIGH]):.0%} "
                f"at {HIGH}",
            ),
            (
                late["in bursts"] > 1.3 * late["by chance"] > 3 * late["evenly"],
                ", ".join(f"{way} {say_seconds(seconds)}" for way, seconds in late.items()),
            ),
        ),
        (
            DocumentTable(
                columns(
                    "per second",
                    "load",
                    "TPOT by formula",
                    "TPOT simulated",
                    *(f"TTFT p90, {way}" for way in WAYS),
                    words=(),
                ),
                tuple(rows),
            ),
            Chart(
                "TTFT p90 by arrival pattern (8B, H100)",
                "load, percent",
                "ms",
                tuple(lines),
                log_y=True,
            ),
        ),
        {
            "rates": {rate: {"law": one.law.tpot, "simulated": mean_tpot(one)} for rate, one in chance.items()},
            "late": late,
        },
    )


EXPERIMENT = Experiment(
    "simulated",
    "What does a simulation show that a formula does not?",
    (
        "Simulating the same requests twice gives the same times, to the last nanosecond.",
        "At low load a formula gives the same TPOT. At seven tenths of a GPU's capacity it is more than a tenth off.",
        "At the same average rate, requests that arrive in bursts wait far longer than those that arrive evenly.",
    ),
    run,
)
