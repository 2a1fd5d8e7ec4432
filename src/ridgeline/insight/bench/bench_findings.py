"""The findings of a server benchmark, and how far they can be trusted."""

from dataclasses import dataclass, field

from ridgeline.insight.bench.bench_run import BenchRun
from ridgeline.insight.bench.job import LoadJob, LoadPattern
from ridgeline.insight.bench.prediction import Prediction
from ridgeline.insight.bench.server_probe import PhaseSteps, ServerInfo
from ridgeline.insight.bench.streamed_response import SHORTER, beyond_context
from ridgeline.insight.bench.sweep import Sweep
from ridgeline.insight.traffic.slo import SLO
from ridgeline.insight.traffic.summary import MAX_LATENESS, Goodput, highest
from ridgeline.util.document.humanize import percent, say_seconds

_CACHED = 0.05  # the share of cached tokens in new prompts that is reported; a chat template's common start is less


@dataclass(frozen=True, slots=True)
class BenchFindings:
    """All results of a server benchmark."""

    served: ServerInfo
    job: LoadJob
    run: BenchRun
    """The run that is reported in detail; for a sweep, the run at the knee, or at the lowest rate if none is good.

    The knee is the highest good request rate.
    """
    slo: SLO | None = None
    sweep: Sweep | None = None
    steps: dict[str, PhaseSteps] = field(default_factory=dict)
    """The numbers and times of engine steps that a Ridgeline server reported for the run, by phase."""
    predicted: Prediction | None = None
    """The server's performance as the cost model predicts it; None if there is no prediction."""
    unpredicted: str = ""
    """The reason why there is no prediction, if it is worth reporting."""
    fitted: bool = False
    """Whether the default lengths were shortened to fit the model's context."""

    @property
    def refused(self) -> bool:
        """Whether the load generator sent too late for latencies to reflect the server.

        The benchmark then reports only the latencies that describe the load generator itself (`CLIENTS_OWN`).
        """
        return self.run.summary.client_late

    @property
    def goodput(self) -> Goodput | None:
        """The rate of requests that met their objectives, as far as it can be trusted.

        It is None without objectives, or if the load generator was too late and its lateness decides for some request.
        """
        good = self.run.summary.goodput
        return None if good is None or (self.refused and good.uncertain) else good

    @property
    def cached(self) -> float:
        """The share of prompt tokens that the server had cached although all prompts should be new; else 0."""
        data, summary = self.job.data, self.run.summary
        new = data.kind == "random" and not data.prefix and data.turns == 1
        return summary.cached_tokens / summary.prompt_tokens if new and summary.prompt_tokens else 0.0

    @property
    def verdict(self) -> str:
        """The verdict on the benchmark in a few words, such as `steady`, `overloaded` or `too short to tell`."""
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
        """The sentences that explain the verdict on a benchmark and warn of unreliable figures."""
        run, reasons = self.run, []
        if self.cached > _CACHED:
            reasons.append(
                f"The server had {percent(self.cached)} of the prompt tokens in its cache, although every prompt "
                "should be new. An earlier run probably used the same --seed: choose another. TTFT is that of cached "
                "prompts."
            )
        if run.summary.client_late or run.summary.some_late:
            reasons.append(self._lateness())
        if run.client_limited and not self.refused:
            reasons.append(
                f"A client process was busy {run.cpu:.0%} of the time and may have limited the load: use more "
                "--processes."
            )
        if self.job.data.kind == "random" and any(map(beyond_context, run.summary.reasons)):
            reasons.append(f"Requests were longer than the model's context: {SHORTER}.")
        if run.stopped:
            reasons.append(f"The run was stopped early: {run.stopped}.")
        if run.overloaded and run.steadiness is not None:
            reasons.append(
                "Requests arrived faster than the server completed them: each minute, "
                f"{60 * run.steadiness.growth:,.0f} more were in flight. Latencies of such a run depend on its length."
            )
        if self.uncounted:
            reasons.append(
                "The server reports no token counts, so tokens here are the chunks of its streams; the numbers may "
                "differ."
            )
        return tuple(reasons)

    def _lateness(self) -> str:
        """Return sentences on how late the load generator sent, the effect on latencies, and what to do about it."""
        late = self.run.summary.latencies["lateness"]
        assert late is not None
        judged = highest(late)
        by = f", {say_seconds(late.mean)} on average"
        if judged is not None:
            by = f", {'the median' if judged[0] == 50 else f'p{judged[0]}'} {say_seconds(judged[1])}"
        message = f"The load generator sent up to {say_seconds(late.most)} late{by} of {late.count:,} requests"
        if not self.refused:
            return f"{message}: TTFT and E2E of these requests include that delay, service TTFT does not."
        if self.run.busy:
            cure = "Use more --processes or less load."
        else:
            cure = (
                f"Its busiest process used only {self.run.cpu:.0%} of a core, so more --processes would not help: it "
                "waited for cores that other processes use, such as the server. Run it on another machine or on "
                "separate cores."
            )
        limit = percent(MAX_LATENESS)
        return (
            f"{message}, over {limit} of the median TTFT, so no latencies are reported, because they would not be the "
            f"server's. {cure}"
        )

    @property
    def uncounted(self) -> bool:
        """Whether the server reported no token count for some responses."""
        return self.run.summary.counted < self.run.summary.answered


def describe_load(load: LoadPattern) -> str:
    """Return a description of the load, such as `Poisson arrivals, 10 per second`."""
    if load.users is not None:
        return f"closed loop of {load.users} user{'s' if load.users > 1 else ''}"
    capped = f", at most {load.most_under_way} in flight" if load.most_under_way is not None else ""
    if load.arrivals == "trace":
        return f"arrival times of the trace{'' if load.speed == 1 else f' {load.speed:g} times as fast'}{capped}"
    name = {"poisson": "Poisson", "gamma": f"gamma ({load.burstiness:g})", "constant": "constant"}[load.arrivals]
    return f"{name} arrivals, {load.rate:.4g} per second{capped}"
