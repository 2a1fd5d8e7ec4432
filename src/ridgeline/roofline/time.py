"""A cost becomes seconds: floor, bound and expected.

floor: the whole step, max(FLOPs / peak, compulsory bytes / bandwidth); nothing can beat it.
bound: each op's own max, summed; what a perfect kernel for every op would take.
expected: t0 + sqrt((FLOPs / (ec peak))^2 + (bytes / (em bandwidth))^2) for each op, with the constants of its kernel
class; the blend is right near the ridge, where a max is not.
"""

import math
from dataclasses import dataclass

from ridgeline.ops.cost import Cost
from ridgeline.roofline.device import Device


@dataclass(frozen=True, slots=True)
class OpTime:
    """Seconds of one op: its bound, what is expected, and which roof it hits (compute, memory, communication)."""

    bound: float
    expected: float
    limit: str


def compute_seconds(cost: Cost, device: Device) -> float:
    """Seconds of arithmetic alone, at the dense peak of each number format."""
    return sum(flops / device.peak(number) for number, flops in cost.flops.items())


def memory_seconds(cost: Cost, device: Device, working_set: float) -> float:
    """Seconds of memory traffic alone. Weights and KV stream through the memory that holds the step's working set;
    an op's activations live in whatever holds them."""
    near = cost.activation_bytes / device.bandwidth_of(cost.activation_bytes)
    return cost.memory_bytes / device.bandwidth_of(working_set) + near


def communication_seconds(cost: Cost, device: Device, devices: int) -> tuple[float, float]:
    """Bound and expected seconds of an all-reduce over `devices` cards. Raises ValueError if nothing joins them."""
    if not cost.communication_bytes:
        return 0.0, 0.0
    if device.link is None:
        raise ValueError(f"{device.name} has no link to other cards; use one, or a card with a link")
    # A ring moves 2 (N - 1) / N of the message through every card.
    bound = 2 * (devices - 1) / devices * cost.communication_bytes / device.link.bandwidth
    if devices not in device.link.all_reduce:
        return bound, bound
    alpha, beta = device.link.all_reduce[devices]
    return bound, max(bound, alpha + cost.communication_bytes / beta)


def floor_seconds(cost: Cost, device: Device, working_set: float) -> float:
    """The floor of a whole step. Activations are left out: fusion could keep every one of them in registers."""
    return max(compute_seconds(cost, device), cost.memory_bytes / device.bandwidth_of(working_set))


def op_seconds(kind: str, cost: Cost, device: Device, working_set: float, devices: int = 1) -> OpTime:
    """Bound and expected seconds of one op of a kernel class."""
    if cost.communication_bytes:
        return OpTime(*communication_seconds(cost, device, devices), "communication")
    compute, memory = compute_seconds(cost, device), memory_seconds(cost, device, working_set)
    e = device.efficiency_of(kind)
    expected = e.launch + math.hypot(compute / e.compute, memory / e.memory)
    return OpTime(max(compute, memory), expected, "compute" if compute > memory else "memory")
