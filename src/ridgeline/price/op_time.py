"""The roofline model: it turns the cost of an op into a floor, a bound and an expected time.

- floor: max(FLOPs / peak, compulsory bytes / bandwidth) of a whole step. Nothing can beat it.
- bound: the sum of each op's own max, the time of a perfect kernel for every op.
- expected: t0 + sqrt((FLOPs / (ec peak))^2 + (bytes / (em bandwidth))^2) for each op, with the constants of its kernel
  class. Near the ridge this blend is right and a max is not. A class may use another power than 2. The host overhead
  between ops is added if it is known.
"""

from collections.abc import Sequence

import msgspec

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Launch
from ridgeline.core.ops.work import Work
from ridgeline.price.device import Device

_ROUNDS = {"all_reduce": 2, "all_gather": 1, "all_to_all": 1}


class OpTime(msgspec.Struct, frozen=True, gc=False):  # also in formulas.js
    """The bound and the expected seconds of one op, and the roof that limits it."""

    bound: float
    expected: float
    limit: str
    """The roof that limits the op: "compute", "memory" or "communication"."""


def compute_seconds(cost: Cost, device: Device) -> float:  # also in formulas.js
    """Return the seconds of arithmetic alone, at the dense peak of each number format.

    Formats may have units of their own that could all be busy at once, so this is the time of the busiest format of a
    whole step. A single op computes in one format.
    """
    seconds = 0.0
    for name, flops in cost.flops.items():  # a plain loop is fast: a simulator calls this several times per step
        seconds = max(seconds, flops / device.peak(name))
    return seconds


def memory_seconds(cost: Cost, device: Device, working_set: float) -> float:  # also in formulas.js
    """Return the seconds of memory traffic alone.

    Weights and KV move at the bandwidth of the fastest cache that holds the step's working set, an op's activations at
    that of the fastest cache that holds these activations. Main memory replaces a cache that is too small.
    """
    near = cost.activation_bytes / device.bandwidth_of(cost.activation_bytes)
    return cost.memory_bytes / device.bandwidth_of(working_set) + near


def communication_seconds(cost: Cost, device: Device, devices: int) -> tuple[float, float]:  # also in formulas.js
    """Return the bound and the expected seconds of the collectives over `devices` devices.

    Raises:
        ValueError: If there are collectives but the device has no link to others.
    """
    if not cost.communication:
        return 0.0, 0.0
    if device.link is None:
        raise ValueError(f"{device.name} has no link to other devices; use one device, or a device with a link")
    bound = expected = 0.0
    for collective, nbytes in cost.communication.items():
        # A ring moves (N - 1) / N of the message through every device: twice for a reduction, once for a gather. Only
        # all-reduces were measured, so a gather is priced as an all-reduce of half the message.
        rounds = _ROUNDS[collective]
        least = rounds * (devices - 1) / devices * nbytes / device.link.bandwidth
        bound += least
        expected += max(least, device.link.all_reduce_seconds(rounds / 2 * nbytes, devices, device.all_reduce))
    return bound, expected


def floor_seconds(cost: Cost, device: Device, working_set: float) -> float:  # also in formulas.js
    """Return the least seconds of a whole step: for its arithmetic or its weight and KV traffic, the longer of both.

    Activations do not count, because fusion could keep all of them in registers.
    """
    return max(compute_seconds(cost, device), cost.memory_bytes / device.bandwidth_of(working_set))


def op_seconds(
    cost: Cost,
    launches: Sequence[Launch],
    device: Device,
    working_set: float,
    devices: int = 1,
    *,
    recorded: bool = False,
) -> OpTime:  # also in formulas.js
    """Return the bound and the expected seconds of one call of an op, and the roof that limits it.

    The bound is that of a single kernel that does everything; the expected time is the sum over the kernels that
    actually run. Collectives are priced as in `communication_seconds` instead.

    Args:
        cost: The cost of the call.
        launches: The kernels that run.
        device: The device that runs them.
        working_set: The bytes of weights and KV that the step reads and writes.
        devices: The number of devices that a collective spans.
        recorded: Whether the step is recorded and replayed.

    Raises:
        ValueError: If a collective needs a link that the device does not have.
    """
    if cost.communication:
        least, likely = communication_seconds(cost, device, devices)
        return OpTime(least, likely, "communication")
    compute, memory = compute_seconds(cost, device), memory_seconds(cost, device, working_set)
    expected = 0.0
    for kernel in launches:
        e = device.efficiency_of(kernel.name, kernel.number_format)
        arithmetic, traffic = compute, memory
        if kernel.cost is not cost:
            arithmetic, traffic = compute_seconds(kernel.cost, device), memory_seconds(kernel.cost, device, working_set)
        if kernel.weight_format:
            traffic /= device.dequantise.get(kernel.weight_format, 1.0)
        expected += e.seconds(e.launches(kernel.calls), arithmetic, traffic, recorded=recorded)
        expected += _rereading_seconds(kernel, device) + _copying_seconds(kernel, device)
    return OpTime(max(compute, memory), expected, "compute" if compute > memory else "memory")


def _rereading_seconds(kernel: Launch, device: Device) -> float:  # also in formulas.js
    """Return the additional seconds of decode attention that reads keys and values again for each query head.

    Heads that share keys and values run concurrently, so the first fetches what the others then read from the largest
    cache.
    """
    sharers = kernel.query_heads_per_kv_head
    if not device.rereads or sharers == 1 or not kernel.name.startswith("attention.decode"):
        return 0.0
    near = max(device.caches, key=lambda cache: cache.nbytes).bandwidth if device.caches else device.bandwidth
    return (sharers - 1) * kernel.cost.kv_read_bytes / near


def _copying_seconds(kernel: Launch, device: Device) -> float:  # also in formulas.js
    """Return the seconds of the kernels that convert a prompt's rows into the attention layout and its results back."""
    copies = device.copies
    if copies is None or not kernel.name.startswith("attention.prefill"):
        return 0.0
    # A copy reads and writes every byte. Queries and results are equally large, so the activation bytes of attention
    # are the traffic of copying one of them.
    nbytes = copies.queries * kernel.cost.activation_bytes + 2 * copies.keys * kernel.cost.kv_write_bytes
    return device.efficiency_of("elementwise").seconds(copies.launches, 0.0, nbytes / device.bandwidth_of(nbytes))


def added_host_seconds(device_seconds: float, host: float, device: Device) -> float:  # also in formulas.js
    """Return the seconds that the host adds to a step.

    If the host prepares the next step meanwhile, only the excess over the device time counts, otherwise all of its
    time.

    Args:
        device_seconds: The seconds of the device.
        host: The seconds of the host.
        device: The device, whose `host.overlap` says whether the two overlap.
    """
    return max(0.0, host - device_seconds) if device.host is not None and device.host.overlap else host


def host_seconds(
    work: Work,
    cost: Cost,
    ops: int,
    device: Device,
    *,
    recorded: bool = False,
    device_seconds: float = 0.0,
    prompts: int = 0,
    vocabulary: int = 0,
) -> float:  # also in formulas.js
    """Return the host seconds of a step; 0 if the device has no known host overhead.

    Args:
        work: The step.
        cost: The total cost of the step.
        ops: The number of op calls in the step.
        device: The device that runs the step.
        recorded: Whether the step is recorded and replayed.
        device_seconds: The device seconds of the ops, which hide the time to issue them if both run concurrently.
        prompts: The number of sequences that run several positions (`Work.prompts`).
        vocabulary: The number of logits of a row; 0 for a model that samples nothing.
    """
    host = device.host
    if host is None:
        return 0.0
    nbytes = min(cost.total_bytes, device.cached_bytes)
    asked = 0.0 if recorded else host.asked + host.op * ops
    if host.ahead:
        asked = max(0.0, asked - device_seconds)
    own = host.step if work.is_verify else host.step + host.prompts
    if host.parts is not None:
        own += host.parts.seconds(work, prompts, vocabulary, recorded=recorded)
    return own + asked + host.sequence * work.sequences + host.token * work.tokens + host.byte * nbytes
