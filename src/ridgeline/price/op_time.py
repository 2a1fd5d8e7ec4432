"""A cost becomes seconds: floor, bound and expected.

floor: the whole step, max(FLOPs / peak, compulsory bytes / bandwidth); nothing can beat it.
bound: each op's own max, summed; what a perfect kernel for every op would take.
expected: t0 + sqrt((FLOPs / (ec peak))^2 + (bytes / (em bandwidth))^2) for each op, with the constants of its kernel
class; the blend is right near the ridge, where a max is not. A class may have another power than 2. With what lies
between ops, where that is known.
"""

from collections.abc import Sequence

import msgspec

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Launch
from ridgeline.core.ops.work import Work
from ridgeline.price.device import Device

_ROUNDS = {"all_reduce": 2, "all_gather": 1, "all_to_all": 1}


class OpTime(msgspec.Struct, frozen=True, gc=False):
    """Seconds of one op: its bound, what is expected, and which roof it hits (compute, memory, communication)."""

    bound: float
    expected: float
    limit: str


def compute_seconds(cost: Cost, device: Device) -> float:
    """Seconds of arithmetic alone, at the dense peak of each number format. Formats may have units of their own, which
    could all be busy at once: of a whole step these are the seconds of the busiest. An op computes in one format.
    """
    seconds = 0.0
    for name, flops in cost.flops.items():  # a plain loop: a simulator asks several times a step
        seconds = max(seconds, flops / device.peak(name))
    return seconds


def memory_seconds(cost: Cost, device: Device, working_set: float) -> float:
    """Seconds of memory traffic alone. Weights and KV stream through the memory that holds the step's working set;
    an op's activations live in whatever holds them.
    """
    near = cost.activation_bytes / device.bandwidth_of(cost.activation_bytes)
    return cost.memory_bytes / device.bandwidth_of(working_set) + near


def communication_seconds(cost: Cost, device: Device, devices: int) -> tuple[float, float]:
    """Bound and expected seconds of collectives over `devices` cards. Raises ValueError if nothing joins them."""
    if not cost.communication:
        return 0.0, 0.0
    if device.link is None:
        raise ValueError(f"{device.name} has no link to other cards; use one, or a card with a link")
    bound = expected = 0.0
    for collective, nbytes in cost.communication.items():
        # A ring moves (N - 1) / N of the message through every card: twice where it adds up, once where it joins. All
        # that was measured is an all-reduce: a gather takes as long as one of half the message.
        rounds = _ROUNDS[collective]
        least = rounds * (devices - 1) / devices * nbytes / device.link.bandwidth
        bound += least
        expected += max(least, device.link.all_reduce_seconds(rounds / 2 * nbytes, devices, device.all_reduce))
    return bound, expected


def floor_seconds(cost: Cost, device: Device, working_set: float) -> float:
    """The floor of a whole step. Activations are left out: fusion could keep every one of them in registers."""
    return max(compute_seconds(cost, device), cost.memory_bytes / device.bandwidth_of(working_set))


def op_seconds(
    cost: Cost,
    launches: Sequence[Launch],
    device: Device,
    working_set: float,
    devices: int = 1,
    *,
    recorded: bool = False,
) -> OpTime:
    """Bound and expected seconds of one call of an op: the bound is that of one kernel for all of it, expected the sum
    of the kernels that it runs. recorded: in a step that is recorded.
    """
    if cost.communication:
        return OpTime(*communication_seconds(cost, device, devices), "communication")
    compute, memory = compute_seconds(cost, device), memory_seconds(cost, device, working_set)
    expected = 0.0
    for kernel in launches:
        e = device.efficiency_of(kernel.name, kernel.number_format)
        arithmetic, traffic = compute, memory
        if kernel.cost is not cost:
            arithmetic, traffic = compute_seconds(kernel.cost, device), memory_seconds(kernel.cost, device, working_set)
        if kernel.stored:
            traffic /= device.dequantise.get(kernel.stored, 1.0)
        expected += e.seconds(e.launches(kernel.calls), arithmetic, traffic, recorded=recorded)
        expected += _rereading_seconds(kernel, device) + _copying_seconds(kernel, device)
    return OpTime(max(compute, memory), expected, "compute" if compute > memory else "memory")


def _rereading_seconds(kernel: Launch, device: Device) -> float:
    """Of a decode attention that has a block for each query head: those that share keys and values run side by side, so
    that the first of them fetches what the others read from the largest cache.
    """
    if not device.rereads or kernel.sharers == 1 or not kernel.name.startswith("attention.decode"):
        return 0.0
    near = max(device.caches, key=lambda cache: cache.nbytes).bandwidth if device.caches else device.bandwidth
    return (kernel.sharers - 1) * kernel.cost.kv_read_bytes / near


def _copying_seconds(kernel: Launch, device: Device) -> float:
    """Of the kernels that bring a prompt's rows into the layout that its attention wants, and its results back."""
    copies = device.copies
    if copies is None or not kernel.name.startswith("attention.prefill"):
        return 0.0
    # A copy reads and writes: the rows of an attention are its queries and its results, as many of one as of the other.
    nbytes = copies.queries * kernel.cost.activation_bytes + 2 * copies.keys * kernel.cost.kv_write_bytes
    return device.efficiency_of("elementwise").seconds(copies.launches, 0.0, nbytes / device.bandwidth_of(nbytes))


def added_host_seconds(card: float, host: float, device: Device) -> float:
    """Seconds of a step that the host adds to those of the card: what is longer than the card's where it prepares the
    next step meanwhile, else all of its own.
    """
    return max(0.0, host - card) if device.host is not None and device.host.overlap else host


def host_seconds(
    work: Work, cost: Cost, ops: int, device: Device, *, recorded: bool = False, card: float = 0.0
) -> float:
    """Seconds of the host in a step of `ops` ops of so much cost; 0 where the device says nothing of it. card: those of
    the ops, which hide what the host takes to ask for them where they run meanwhile.
    """
    host = device.host
    if host is None:
        return 0.0
    nbytes = min(cost.total_bytes, device.cached_bytes)
    asked = 0.0 if recorded else host.asked + host.op * ops
    if host.ahead:
        asked = max(0.0, asked - card)
    own = host.step if work.is_verify else host.step + host.prompts
    return own + asked + host.sequence * work.sequences + host.token * work.tokens + host.byte * nbytes
