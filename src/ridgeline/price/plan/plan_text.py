"""The plan as a paragraph: the limiting resource, the distance from the ridge and the changes that help."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from ridgeline.price.device_basis import basis_of
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.price.interval_text import rate_interval, time_interval
from ridgeline.price.plan.alternatives import DEVICES, Change
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.plan_audio import describe_cost
from ridgeline.price.plan.request_phases import Estimate, PhasePrice
from ridgeline.price.plan.scenario import Deployment
from ridgeline.util.document.humanize import gb, gib, say, say_gb, say_gib, say_seconds, three_digits

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "TTFT": "time to first token: from the arrival of a request until prefill has emitted one",
        "ITL": "inter-token latency: one decode step at the average context, input + output / 2",
        "TPOT": "average time per output token after the first, including other requests' prefills in between",
        "floor": "max(FLOPs / peak, bytes of weights and KV / bandwidth) of a whole step: nothing can be faster",
        "bound": "the sum over operations of the same max for each, activations included: perfect kernels",
        "expected": "the bound with the efficiency of each kernel class, measured or a default; sources: --json",
        "[a .. b]": "the interval that holds 8 of 10 measurements of such cases; `trust` states what it comes from",
        "FLOP/B": "FLOP per byte: matrix arithmetic of a step, divided by the bytes of weights and KV that it moves",
        "ridge": "the FLOP/B at which both take equally long in the step's formats; below it, memory is the limit",
        "gain": "total tokens per second of a batch, compared with batch 1, by the bound",
        "units": "1k tokens = 1,024; GiB = 2^30 and GB = 10^9 bytes; TFLOP = 10^12, peaks are dense",
    }
)

ROOFS: Mapping[str, str] = MappingProxyType(
    {"memory": "memory bandwidth", "compute": "arithmetic", "communication": "the link between the devices"}
)
"""The names of the limits of a phase in sentences."""

# The smallest factor that a user would notice, and the smallest that makes batching worth its slower tokens.
NOTICED, _WORTH = 1.03, 1.5
# The reading speed of people in tokens per second, about four words.
_READING = 5.0


def verdict(plan: DeploymentPlan) -> str:
    """Return a paragraph that explains a plan: fit, limits, batching, load and helpful changes."""
    parts = _fit(plan), _prefill(plan), _decode(plan), _ridge(plan), _batch(plan), _load(plan), _levers(plan)
    return " ".join(sentence for part in parts for sentence in part)


def lacking(plan: DeploymentPlan) -> str:
    """Return what is missing and how to fit: `each device lacks 25.32 GiB; it would fit with fp8 weights ...`."""
    return f"{_device(plan)} lacks {say_gib(gib(plan.memory.missing))}; {describe_ways(plan.ways)}"


def describe_ways(ways: Sequence[Deployment]) -> str:
    """Return how the model would fit: `it would fit with fp8 weights on 8 devices, or on 16 devices (...)`."""
    if not ways:
        return "it fits with no weight format and no number of linked devices"
    return "it would fit " + ", or ".join(_way(way) for way in ways)


def describe_held(plan: DeploymentPlan) -> str:
    """Return the requests whose KV fits, the length with which they are counted, and ` on each replica` of several.

    For example `112 requests of 1,536 tokens`, or with an engine that admits requests as long as their current tokens
    fit `383 requests of 1,152 tokens (their mean length)`.
    """
    memory, encoded = plan.memory, plan.workload.encoded
    tokens = f"{memory.admitted_tokens:,} tokens{f' and {encoded:,} of the encoder' if encoded else ''}"
    mean = " (their mean length)" if memory.admitted_tokens < memory.request_tokens else ""
    return f"{memory.users:,} request{'s' * (memory.users != 1)} of {tokens}{mean}{on_each_replica(plan)}"


def on_each_replica(plan: DeploymentPlan) -> str:
    """Return ` on each replica` if a demand takes several replicas, otherwise ""."""
    return "" if plan.fleet is None or plan.fleet.replicas == 1 else " on each replica"


def describe_prompts(plan: DeploymentPlan) -> str:
    """Return the prompts that the plan's prefill runs, such as `a prompt of 1,024 tokens`."""
    batch, given, seen = plan.workload.batch, plan.workload.given, plan.workload.seen
    return f"{'a prompt' if batch == 1 else f'{batch:,} prompts'} of {given:,} tokens{seen}"


def describe_work(phase: PhasePrice) -> str:
    """Return the minimum times of a phase: `18.1 ms of memory traffic, 4.75 ms of arithmetic`.

    If the link between devices is the limit, the time of communication follows.
    """
    work = f"{say_seconds(phase.memory)} of memory traffic, {say_seconds(phase.arithmetic)} of arithmetic"
    if phase.limit != "communication":
        return work
    linked = sum(row.bound for row in phase.classes if row.limit == "communication")
    return f"{work}, {say_seconds(linked)} of communication"


def time_with(interval: ErrorInterval, seconds: Estimate) -> str:
    """Return an expected time with its interval: `88.8 ms [70.1 .. 190 ms]`."""
    return f"{say_seconds(seconds.expected)} {time_interval(interval, seconds.expected, seconds.floor)}"


def rate_with(interval: ErrorInterval, rate: Estimate) -> str:
    """Return an expected rate with its interval, without its unit: `675 [420 .. 810]`."""
    return f"{three_digits(rate.expected)} {rate_interval(interval, rate.expected, rate.floor)}"


def describe_users(count: int) -> str:
    """Return a number of users as text: `one user`, `352 users`."""
    return "one user" if count == 1 else f"{count:,} users"


def scarcest(plan: DeploymentPlan) -> Change | None:
    """Return the doubled resource that raises the throughput most, or None if no doubling has a noticeable effect."""
    best = max(plan.sensitivities, key=lambda change: change.throughput or 0.0, default=None)
    return best if best is not None and (best.throughput or 0.0) >= NOTICED else None


def without_kernels(plan: DeploymentPlan, change: Change) -> bool:
    """Return whether a change leads to kernels that were never timed.

    These are a device without known kernel times, or int8 products on a device without int8 kernel times, which are
    priced with the constants of bf16 at another peak.
    """
    outcome, own_device = change.outcome, plan.case.setup.device
    other = next((device for device in plan.others if device.name == outcome.device_name != own_device.name), None)
    if other is not None:
        return basis_of(other) == "kind"
    known = own_device.calibrated or "linear/int8" in own_device.efficiency
    return outcome.weights == "w8a8" != plan.case.weights and not known


def _way(way: Deployment) -> str:
    devices_text = f"on {way.devices} device{'s' * (way.devices > 1)}"
    beyond = " (more than one machine, not predicted)" if way.devices > max(DEVICES) else ""
    return (f"with {way.weights} weights " if way.weights else "") + devices_text + beyond


def _fit(plan: DeploymentPlan) -> Iterator[str]:
    if not plan.memory.fits:
        yield f"It does not fit: {lacking(plan)}. The other figures are those that it would have if it did."


def _prefill(plan: DeploymentPlan) -> Iterator[str]:
    phase = plan.prefill
    yield (
        f"In the prefill of {describe_prompts(plan)}, {ROOFS[phase.limit]} is the limit: "
        f"{three_digits(phase.intensity)} FLOP per byte, and the ridge is at {three_digits(phase.ridge)}."
    )


def _decode(plan: DeploymentPlan) -> Iterator[str]:
    phase = plan.decode
    work = (
        f"Decoding for {describe_users(plan.workload.batch)}, {_device(plan)} computes {say(phase.flops, 'FLOP')} and "
        f"moves {say_gb(gb(phase.memory_bytes))} per step: {three_digits(phase.intensity)} FLOP per byte, and the "
        f"ridge is at {three_digits(phase.ridge)}."
    )
    if phase.limit == "compute":
        yield f"{work} Arithmetic is the limit, {three_digits(phase.balance)} x over the ridge."
    elif phase.limit == "memory":
        yield (
            f"{work} Memory bandwidth is the limit, {three_digits(1 / phase.balance)} x under the ridge: even with "
            f"perfect kernels the arithmetic units idle {phase.idle:.1%} of the time."
        )
    else:
        share = sum(row.share for row in phase.classes if row.limit == "communication")
        yield f"{work} But the link between the devices is the limit: it takes {share:.0%} of the step's bound."


def _ridge(plan: DeploymentPlan) -> Iterator[str]:
    """Yield what a larger batch would do for a memory-bound decode step."""
    if plan.decode.limit != "memory":
        return
    critical, context = plan.crossings.critical_batch, f"At {plan.workload.context:,} tokens of context"
    if critical is None:
        yield f"{context} no batch reaches the ridge, because every sequence reads its own KV."
        return
    batch = math.ceil(critical)
    beyond = f", but memory holds {describe_held(plan)}" if plan.memory.fits and batch > plan.memory.users else ""
    yield f"{context} a batch of {batch:,} would reach the ridge{beyond}."


def _batch(plan: DeploymentPlan) -> Iterator[str]:
    """Yield how much more throughput the most users get from the device."""
    lever, load = plan.batching, plan.capacity.load
    if lever is None or lever.throughput is None or not plan.memory.fits:
        return
    each = load.tokens_per_user.expected
    worth = "Batching pays" if lever.throughput >= _WORTH else "A larger batch helps little"
    slow = "; that is slower than people read, and --tpot can set a target" if each < _READING else ""
    around, users = plan.intervals["load"], f"{describe_users(plan.capacity.users)}{on_each_replica(plan)}"
    whole = "per replica" if on_each_replica(plan) else "in total"
    yield (
        f"{worth}: {users} get {three_digits(lever.throughput)} x the tokens of "
        f"{describe_users(plan.workload.batch)}, {rate_with(around, load.tokens_per_second)} per second {whole}, "
        f"each of them {rate_with(around, load.tokens_per_user)} per second ({time_with(around, load.tpot)} per "
        f"token){slow}."
    )


def _load(plan: DeploymentPlan) -> Iterator[str]:
    if not plan.capacity.users:
        return
    scarce = scarcest(plan)
    listed = ", ".join(f"{_resource(c)} x {three_digits(c.throughput)}" for c in plan.sensitivities if c.throughput)
    advice = "none would help noticeably" if scarce is None else f"more {_resource(scarce)} would help most"
    users = f"{describe_users(plan.capacity.users)}{on_each_replica(plan)}"
    yield (
        f"With {users} prefill takes {plan.capacity.load.prefill_share:.0%} of the time. "
        f"Doubling one resource multiplies total tokens/s by: {listed}; {advice}."
    )


def _resource(change: Change) -> str:
    return change.name.removeprefix("twice the ")


def _levers(plan: DeploymentPlan) -> Iterator[str]:
    helps = [change for change in plan.levers if change.outcome.fits and _helps(change)]
    same = [change for change in helps if change.outcome.device_name == plan.case.device.name]
    same.sort(key=lambda change: change.benefit, reverse=True)
    others = [change for change in helps if change.outcome.device_name != plan.case.device.name]
    for where, changes in (("With the same kind of device", same), ("With another device", others)):
        if changes:
            yield f"{where}: {'; '.join(_lever(plan, change) for change in changes)}."


def _lever(plan: DeploymentPlan, change: Change) -> str:
    """Return a change with its effects: `fp8 KV (x 1.41 total tokens/s, x 1.02 for one user)`.

    For other devices this includes the price, such as `$0.06 per million tokens`.
    """
    users, batch, cost = change.outcome.users, plan.workload.batch, change.outcome.dollars_per_million
    if change.throughput is not None:
        parts = [f"x {three_digits(change.throughput)} total tokens/s"]
    elif users:
        parts = [f"fits {describe_users(users)}"]
    else:
        parts = ["no user within the targets either"]
    parts.append(f"x {three_digits(change.faster)} for " + ("one user" if batch == 1 else f"each of {batch:,} users"))
    other = (change.outcome.device_name, change.outcome.devices) != (plan.case.device.name, plan.case.setup.devices)
    if other and cost is not None:  # on the same devices, the price per token follows from throughput
        sound, here = plan.audio, plan.dollars_per_million
        what = " tokens" if sound is None else ""
        instead = "" if here is None else f" instead of {describe_cost(here, sound, plan.cost_factors)}"
        parts.append(f"{describe_cost(cost, sound, change.cost_factors)}{what}{instead}")
    if without_kernels(plan, change):
        parts.append("no kernel times")
    return f"{change.name} ({', '.join(parts)})"


def _helps(change: Change) -> bool:
    newly = change.throughput is None and change.outcome.users > 0
    return newly or change.gain >= NOTICED or (change.cost is not None and change.cost <= 1 / NOTICED)


def _device(plan: DeploymentPlan) -> str:
    return "the device" if plan.case.setup.devices == 1 else "each device"
