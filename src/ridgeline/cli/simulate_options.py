"""The options of `ridgeline simulate` about the engine, what is judged and what is written."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ridgeline.cli import options
from ridgeline.cli.options import parse_tokens
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.capacity import REQUESTS
from ridgeline.insight.simulate.machine_setup import machine_of
from ridgeline.insight.simulate.replica import NOTHING, Machine
from ridgeline.insight.simulate.require import Requirement, parse_requirement
from ridgeline.insight.simulate.serving_overhead import parse_between
from ridgeline.insight.simulate.simulation_query import PriceUncertainty, price_error
from ridgeline.insight.simulate.slo_classes import ATTAIN
from ridgeline.insight.traffic.slo import SLO, parse_slos
from ridgeline.price.device import Device
from ridgeline.price.plan.scenario import Scenario

_engine, _judged, _output = map(options.panel, ("Engine", "What is judged", "Output"))


@dataclass(frozen=True, slots=True)
class LimitFlags:
    """How the engine is set up."""

    max_requests: options.MaxRequests = 256
    chunk: options.Chunk = None
    page_size: options.PageSize = 16
    pages: Annotated[
        int | None, _engine("Pages of KV memory, as a server of yours says; by default what the plan leaves for them.")
    ] = None
    context: options.Context = None
    between_steps: Annotated[
        str | None,
        _engine(
            "What passes between two steps beside what the engine's profile has, like 300us, or "
            "110us+20us/sequence+330us/request+400us/idle+300us/after: of each step, for each sequence and new request "
            "in it, after a time with nothing to do, and after a step in which requests were new.",
            metavar="COSTS",
        ),
    ] = None
    front: Annotated[
        str | None,
        _engine(
            "What a server's core takes for requests and tokens, like "
            "0.8ms/request+190us/step+90us/token+1.2ms/first+1.4ms/answer. By default nothing.",
            metavar="COSTS",
        ),
    ] = None
    prefix_cache: Annotated[
        bool, _engine("Keep and share the KV pages of equal prefixes.", "--prefix-cache/--no-prefix-cache")
    ] = True

    def limits(self, max_batch_tokens: str) -> Limits:
        """What a step may hold. Raises ValueError."""
        return Limits(
            tokens=parse_tokens(max_batch_tokens, "--max-batch-tokens"),
            requests=self.max_requests,
            chunk=None if self.chunk is None else parse_tokens(self.chunk, "--chunk"),
        )

    def machine(self, case: Scenario, limits: Limits) -> Machine:
        """An engine with limits on the card of a case. Raises ValueError."""
        between = self.between_steps
        return machine_of(
            case,
            limits,
            context=None if self.context is None else parse_tokens(self.context, "--context"),
            pages=self.pages,
            page_size=self.page_size,
            prefix_cache=self.prefix_cache,
            between=NOTHING if between is None else parse_between(between),
        )


@dataclass(frozen=True, slots=True)
class ObjectiveFlags:
    """What the run is held to."""

    slo: Annotated[
        list[str] | None,
        _judged(
            "What a good request keeps to, like ttft=1s,tpot=50ms,e2e=20s; with a class of a trace before it, like "
            "batch:e2e=60s, what those of that class do instead. May be repeated.",
            "--slo",
            "--goodput",
            metavar="[CLASS:]LIMITS",
        ),
    ] = None
    capacity: Annotated[
        bool,
        _judged(
            f"Look for the highest rate at which {ATTAIN:.0%} of the requests are good, with {REQUESTS:,} of them.",
            "--capacity",
        ),
    ] = False
    advise: Annotated[
        bool,
        _judged(
            "Look for the positions a step, requests at a time and share of memory that make most requests good, and "
            "say why.",
            "--advise",
        ),
    ] = False
    divide: Annotated[
        int | None,
        _judged(
            "Of so many cards at most, how many to a replica and how many replicas make most good requests a dollar."
        ),
    ] = None
    require: Annotated[
        list[str] | None,
        _judged(
            "Exit with 1 unless this holds at the worse end of its interval, like ttft_p99<500ms or good_share>99%; "
            "may be repeated.",
            metavar="FIGURE<VALUE",
        ),
    ] = None
    error: Annotated[
        str | None,
        _judged(
            "How far the price may be off, like 12%; 0% for one run. By default as published rows say.",
            "--price-error",
        ),
    ] = None

    def objectives(self) -> SLO | None:
        """What a good request keeps to; None where nothing says so. Raises ValueError."""
        return parse_slos(self.slo) if self.slo else None

    def requirements(self) -> tuple[Requirement, ...]:
        """Raises ValueError."""
        return tuple(map(parse_requirement, self.require or ()))

    def price_error(self, device: Device, devices: int) -> PriceUncertainty:
        """Raises ValueError."""
        if self.error is None:
            return price_error(device, devices)
        try:
            share = float(self.error.removesuffix("%")) / 100
        except ValueError:
            share = -1.0
        if not self.error.endswith("%") or not 0 <= share < 1:
            raise ValueError(f"--price-error is {self.error!r}; write a share from 0% to below 100%, like 12%")
        return PriceUncertainty(share, "--price-error")


@dataclass(frozen=True, slots=True)
class SimulationOutputFlags:
    """What is written."""

    out: Annotated[Path | None, _output("Write the result to this file, which the page opens: as --json.")] = None
    report: Annotated[Path | None, _output("Write all of it with figures to this HTML file.")] = None
    force: Annotated[bool, _output("Write over files that exist.", "--force")] = False
    as_json: options.Json = False
