"""Findings: everything that a benchmark of a server has to say, before anybody says it."""

from dataclasses import dataclass, field

from ridgeline.bench.job import Job, Load
from ridgeline.bench.prediction import Prediction
from ridgeline.bench.run import Run
from ridgeline.bench.server import Served, Steps
from ridgeline.bench.sweep import Sweep
from ridgeline.traffic.slo import SLO


@dataclass(frozen=True, slots=True)
class Findings:
    """run: the one that is looked at closely: of a sweep the knee's. steps: what a server of ours said of the steps
    that it did for it. predicted: None where no price was asked for."""

    served: Served
    job: Job
    run: Run
    slo: SLO | None = None
    sweep: Sweep | None = None
    steps: dict[str, Steps] = field(default_factory=dict)
    predicted: Prediction | None = None

    @property
    def refused(self) -> bool:
        """Whether the load generator was too late for latencies to be the server's: then none is told."""
        return self.run.summary.client_late

    @property
    def verdict(self) -> str:
        """In one word or two."""
        if self.refused or self.run.client_limited:
            return "client limited"
        if self.run.stopped:
            return "given up"
        if self.run.overloaded:
            return "overloaded"
        if self.run.job.load.users is not None:
            return "closed loop"
        return "too short to tell" if self.run.steadiness is None else "steady"

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences for the verdict."""
        run, told = self.run, []
        if self.refused:
            late = run.summary.latencies["lateness"]
            assert late is not None
            told.append(
                f"The load generator sent up to {late.most * 1e3:.3g} ms late, its p99 more than 5 % of the median "
                "TTFT: what it saw is not the server's latency, and none is given. Use more --processes, or less load."
            )
        elif run.client_limited:
            told.append(f"A client process was busy {run.cpu:.0%} of the time: use more --processes to be sure.")
        if run.stopped:
            told.append(f"The run was given up: {run.stopped}.")
        if run.overloaded and run.steadiness is not None:
            told.append(
                f"Requests came faster than they were answered: {60 * run.steadiness.growth:,.0f} more were under way "
                "each minute. Latencies of such a run depend on how long it was."
            )
        if self.uncounted:
            told.append("The server does not count tokens: they are the pieces of its streams here, which may differ.")
        return tuple(told)

    @property
    def uncounted(self) -> bool:
        """Whether there are answers of which the server said no count."""
        return self.run.summary.counted < self.run.summary.answered


def load_in_words(load: Load) -> str:
    """`Poisson arrivals, 10 a second`."""
    if load.users is not None:
        return f"closed loop of {load.users} user{'s' if load.users > 1 else ''}"
    capped = f", at most {load.most_under_way} under way" if load.most_under_way is not None else ""
    if load.arrivals == "trace":
        return f"arrivals of the trace{'' if load.speed == 1 else f' {load.speed:g} times as fast'}{capped}"
    name = {"poisson": "Poisson", "gamma": f"gamma ({load.burstiness:g})", "constant": "constant"}[load.arrivals]
    return f"{name} arrivals, {load.rate:.4g} a second{capped}"
