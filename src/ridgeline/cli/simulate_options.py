"""The options of `ridgeline simulate` for the engine, the objectives and the output."""

from dataclasses import dataclass
from pathlib import Path

from ridgeline.cli import options
from ridgeline.cli.flags import panel
from ridgeline.cli.options import parse_tokens
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.rope_override import offer_longer_context
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.capacity import REQUESTS
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import NO_OVERHEAD, Machine
from ridgeline.insight.simulate.require import Requirement, parse_requirement
from ridgeline.insight.simulate.serving_overhead import parse_host_overhead
from ridgeline.insight.simulate.simulation_query import PriceUncertainty, price_error
from ridgeline.insight.simulate.slo_classes import ATTAIN
from ridgeline.insight.traffic.slo import SLO, parse_slos
from ridgeline.price.plan.scenario import Scenario

_engine, _judged, _output = map(panel, ("Engine", "Targets", "Output"))


@dataclass(frozen=True, slots=True)
class LimitFlags:
    """The options for the engine's scheduler and memory."""

    max_requests: options.MaxRequests = 256
    chunk: options.Chunk = None
    page_size: options.PageSize = 16
    pages: int | None = _engine(
        "The number of KV-cache pages, as your server reports it; by default what the plan computes."
    )
    context: options.Context = None
    between_steps: str | None = _engine(
        "The time between two steps in addition to the engine's profile, like 300us, or "
        "110us+20us/sequence+330us/request+400us/idle+300us/after: per step, per sequence and per new request in it, "
        "after an idle time, and after a step with new requests.",
        metavar="COSTS",
    )
    front: str | None = _engine(
        "The CPU time of the API server, like 0.8ms/request+190us/step+90us/token+1.2ms/first+1.4ms/answer. By "
        "default none.",
        metavar="COSTS",
    )
    prefix_cache: bool = _engine(
        "Share the KV pages of requests with equal prefixes.", "--prefix-cache/--no-prefix-cache", default=True
    )

    def check_context(self, case: Scenario, config: Fields) -> None:
        """Raise ValueError if --context exceeds the model's; the message names the --rope that would suffice."""
        if self.context is not None and (asked := parse_tokens(self.context, "--context")) > case.model.context:
            raise ValueError(
                f"--context is {asked:,}, but the model's context is {case.model.context:,}; give at most that"
                f"{offer_longer_context(config, asked)}"
            )

    def machine(self, case: Scenario, limits: Limits) -> Machine:
        """Return an engine with the given limits on the devices of a scenario.

        Raises:
            ValueError: If an option is invalid, the model cannot be simulated, or the memory does not suffice.
        """
        between = self.between_steps
        return machine_of(
            case,
            limits,
            context=None if self.context is None else parse_tokens(self.context, "--context"),
            pages=self.pages,
            page_size=self.page_size,
            prefix_cache=self.prefix_cache,
            between=NO_OVERHEAD if between is None else parse_host_overhead(between),
        )


@dataclass(frozen=True, slots=True)
class ObjectiveFlags:
    """The options for the objectives of a simulation."""

    slo: list[str] | None = _judged(
        "What a good request meets, like ttft=1s,tpot=50ms,e2e=20s. A class of a trace can have its own, like "
        "batch:e2e=60s. Repeatable.",
        "--slo",
        "--goodput",
        metavar="[CLASS:]LIMITS",
    )
    capacity: bool = _judged(
        f"Look for the highest rate at which {ATTAIN:.0%} of the requests are good, with {REQUESTS:,} of them.",
        default=False,
    )
    advise: bool = _judged(
        "Find the tokens per step, running requests and memory share that make most requests good, and explain why.",
        default=False,
    )
    divide: int | None = _judged(
        "With at most this number of devices, find how many devices per replica and how many replicas give the most "
        "good requests per dollar."
    )
    require: list[str] | None = _judged(
        "Exit with code 1 unless this holds at the worse end of its interval, like ttft_p99<500ms or good_share>99%; "
        "repeatable.",
        metavar="FIGURE<VALUE",
    )
    error: str | None = _judged(
        "The error to assume for the predicted step times, like 12%; 0% for a single run. By default the interval that "
        "holds 8 of 10 published measurements.",
        "--price-error",
    )

    def objectives(self) -> SLO | None:
        """Return the latency objectives of a request; None if there are none.

        Raises:
            ValueError: If an option is malformed.
        """
        return parse_slos(self.slo) if self.slo else None

    def requirements(self) -> tuple[Requirement, ...]:
        """Return the conditions of --require, which the results must meet for the command to exit with status 0.

        Raises:
            ValueError: If an option is malformed.
        """
        return tuple(map(parse_requirement, self.require or ()))

    def price_error(self, case: Scenario) -> PriceUncertainty:
        """Return the uncertainty of the predicted times, as given or from published measurements.

        Raises:
            ValueError: If the option is malformed.
        """
        if self.error is None:
            return price_error(case)
        try:
            share = float(self.error.removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not self.error.endswith("%") or not 0 <= share < 1:
            raise ValueError(f"--price-error is {self.error!r}; write a share from 0% to below 100%, like 12%")
        return PriceUncertainty.of_share(share, "--price-error")


@dataclass(frozen=True, slots=True)
class SimulationOutputFlags:
    """The options for the output of a simulation."""

    out: Path | None = _output("Write the result as JSON to this file, which the web page can open.")
    report: Path | None = _output("Write the result with charts to this HTML file.")
    force: bool = _output("Overwrite existing files.", default=False)
    emit: options.Emit = None
    as_json: options.Json = False
