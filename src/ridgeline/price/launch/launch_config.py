"""The configuration that a launch command describes: a priced deployment and the limits that its price assumes."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ridgeline.core.models.common.recipes import read_recipe
from ridgeline.core.ops.number_formats import FORMATS
from ridgeline.price.plan.demand import SimulatedQueue
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.scenario import Scenario
from ridgeline.util.document.humanize import say_duration, say_seconds, three_digits

TARGETS: Mapping[str, str] = MappingProxyType(
    {"vllm": "vllm", "sglang": "sglang", "llama.cpp": "llama.cpp", "kubernetes": "vllm"}
)
"""The engine that the output launches, which is also the one to price, for each value of --emit."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """A deployment that was priced, with the limits that its price assumes."""

    title: str
    """The name of the model, as the plan states it."""
    model: str
    """The repository, folder or file from which an engine loads the model."""
    stored_as: str
    """The name of the format in which the checkpoint's weights are quantised; "" if they are not."""
    case: Scenario
    context: int
    """The maximum number of positions of a request."""
    requests: int
    """The maximum number of requests that run at the same time, per data-parallel rank."""
    step_tokens: int
    """The maximum number of positions of a step."""
    loaded_share: float
    """The share of a device's memory that weights and KV pages take."""
    replicas: int
    result: str
    """The answer of the plan or the simulation in one line."""
    chunk: int | None = None
    """The maximum number of positions of one request in a step; None for as many as a step has."""
    prefix_cache: bool | None = None
    """Whether requests share the pages of equal prefixes; None if no request had a prefix to share."""
    pages: int | None = None
    """The number of KV pages, if the user stated it; None for as many as the memory holds."""
    page_size: int | None = None
    """The positions of a KV page, if they differ from the default."""

    @property
    def engine(self) -> str:
        """The name of the engine that was priced, without the variant for data-parallel attention."""
        return self.case.setup.engine.name.removesuffix("-dp")

    @property
    def dtype(self) -> str:
        """The name in PyTorch of the number format of everything that is not quantised."""
        return str(self.case.model.storage.dtype).removeprefix("torch.")

    @property
    def converted(self) -> str:
        """The weight format that the engine must convert the checkpoint to while it loads; "" if to none."""
        wanted = self.case.setup.weights
        return "" if wanted is None or wanted in {known.name for known in FORMATS} else wanted

    @property
    def comments(self) -> tuple[str, ...]:
        """The lines that say what was priced and which limits were assumed."""
        case, count = self.case, self.case.setup.devices
        devices = case.device.title if count == 1 else f"{count} x {case.device.title}"
        split = "" if count == 1 else ", data-parallel attention" if case.ranks > 1 else f", tensor parallel {count}"
        each = " per rank" if case.ranks > 1 else ""
        prefix = {None: "no shared prefixes", True: "prefix cache on", False: "prefix cache off"}[self.prefix_cache]
        lines = [
            f"{self.title} on {devices}{split}, priced by ridgeline for {case.setup.engine.title}",
            f"formats: weights {case.weights}, KV {case.kv}, everything else {self.dtype}",
            f"limits: {self.context:,} tokens a request, {self.requests:,} running requests{each}, "
            f"{self.step_tokens:,} tokens a step (chunked prefill), {case.setup.utilization:.0%} of the memory, "
            f"{prefix}",
            self.result,
        ]
        if self.replicas > 1:
            lines.append(f"replicas: {self.replicas:,} of this server behind a load balancer, for the whole load")
        return tuple(lines)


def launch_of_plan(plan: DeploymentPlan, model: str) -> LaunchConfig:
    """Return the configuration of a plan, with as many running requests as the plan reports, and its answer.

    A simulated rate has the most requests that ran at the same time: with fewer places, its requests would wait longer.

    Args:
        plan: The plan.
        model: The repository, folder or file from which an engine loads the model.

    Raises:
        ValueError: If the model does not fit, or if no number of replicas serves the demand.
    """
    memory, case, load = plan.memory, plan.case, plan.reported_load
    if not memory.fits:
        raise ValueError(
            f"--emit: {plan.name} does not fit on {case.device.title}; `ridgeline plan` shows what would do"
        )
    if plan.demand and plan.fleet is None:
        raise ValueError("--emit: no number of replicas serves this load within the targets; `ridgeline plan` says why")
    users = load.users if plan.demand or plan.workload.batch == 1 else plan.workload.batch
    running = users if plan.queue is None or plan.demand.rate is None else plan.queue.running
    return LaunchConfig(
        plan.name,
        model,
        read_recipe(plan.models.fields).name,
        case,
        plan.workload.tokens,
        case.requests_per_rank(running),
        plan.workload.step_tokens,
        (memory.weights + memory.left) / memory.total,
        1 if plan.fleet is None else plan.fleet.replicas,
        _expected(plan, users) if plan.queue is None else _simulated(plan, plan.queue),
        prefix_cache=True if plan.workload.cached else None,
    )


def _expected(plan: DeploymentPlan, users: int) -> str:
    """Return the figures of a number of users, and when a batch job is done, by formula in one line."""
    load = plan.serving.load(users)
    job = "" if plan.job is None else f"; {plan.job.requests:,} requests are done in {say_duration(plan.job.seconds)}"
    return (
        f"expected with {users:,} running requests of {_tokens(plan)}: TTFT {say_seconds(load.ttft.expected)}, TPOT "
        f"{say_seconds(load.tpot.expected)}, {three_digits(load.requests_per_second.expected)} requests/s per replica"
        f"{job}"
    )


def _simulated(plan: DeploymentPlan, queue: SimulatedQueue) -> str:
    """Return the means of a simulated demand in one line, as in the plan's summary."""
    rate = f"{three_digits(queue.fleet.requests_per_second / queue.fleet.replicas)} requests/s per replica"
    users = plan.demand.rate is None
    load = f"{queue.fleet.load.users:,} running requests" if users else rate
    pace = "" if queue.tpot is None else f", mean TPOT {say_seconds(queue.tpot)}"
    served = f", {rate}" if users else ""
    missed = f"; misses the target of {' and '.join(queue.missed)}" if queue.missed else ""
    first = f"mean TTFT {say_seconds(queue.ttft)}"
    return f"simulated with {load} of {_tokens(plan)}: {first}{pace}{served}{missed}"


def _tokens(plan: DeploymentPlan) -> str:
    return f"{plan.workload.input:,} + {plan.workload.output:,} tokens{plan.workload.seen}"
