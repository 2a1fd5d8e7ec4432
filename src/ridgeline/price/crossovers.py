"""The points at which a model on a device turns from memory-bound to compute-bound, or reads more KV than weights.

All of them are relative to the floor, so they depend on the device and not on its kernels. Only the arithmetic of
matrix products counts, each number format at its own peak, because elementwise operations run on separate units.
"""

from collections.abc import Callable, Iterable, Mapping

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.device import Device
from ridgeline.price.price import Price

# Larger than any real batch or context: if a property does not hold here, it never does.
_MAX_SEARCHED = 2**40


def balance(costs: Iterable[Cost], device: Device) -> float:  # also in formulas.js
    """Return the ratio of arithmetic seconds to memory seconds of consecutive steps; from 1 on they are compute-bound.

    This is the only definition of the distance from the ridge.
    """
    arithmetic, memory = compute_and_memory_seconds(costs, device)
    return arithmetic / memory


def compute_and_memory_seconds(costs: Iterable[Cost], device: Device) -> tuple[float, float]:  # also in formulas.js
    """Return the seconds of matrix arithmetic and the seconds of weight and KV traffic, summed over steps."""
    seconds = [_seconds(cost, device) for cost in costs]
    return sum(arithmetic for arithmetic, _ in seconds), sum(memory for _, memory in seconds)


def matrix_flops(cost: Cost) -> Mapping[str, float]:  # also in formulas.js
    """Return the FLOPs of a step's matrix products by number format; those in fp32 count only if there are no others.

    Elementwise operations count as fp32. If a narrower format appears too, the matrix products are in that one.
    """
    narrow = {name: flops for name, flops in cost.flops.items() if name != "fp32"}
    return narrow or cost.flops


def matrix_intensity(cost: Cost) -> float:  # also in formulas.js
    """Return the arithmetic intensity: matrix FLOPs per byte of weights and KV."""
    return sum(matrix_flops(cost).values()) / cost.memory_bytes


def critical_batch(price: Price, device: Device, context: int, encoded: int = 0) -> float | None:
    """Return the batch size from which a decode step is compute-bound, or None if no batch size is.

    Weights are read once per step and shared, but each sequence has its own KV. If reading a token's KV takes longer
    than computing the token, no batch size helps.

    Args:
        price: The priced model.
        device: The device that runs it.
        context: The positions of each sequence, including the new one.
        encoded: The encoder positions of each sequence.
    """
    one = Work.of([StepSegment(1, context, encoded)], price.reaches)
    return compute_bound_from(lambda batch: price.step(one * batch), device)


def compute_bound_from(cost_of: Callable[[int], Cost], device: Device) -> float | None:  # also in formulas.js
    """Return the batch size from which the step with the cost `cost_of(batch)` is compute-bound, or None for never.

    Between two batch sizes, the seconds of arithmetic and of memory traffic are interpolated linearly.
    """

    def excess(batch: int) -> float:
        arithmetic, memory = _seconds(cost_of(batch), device)
        return arithmetic - memory

    batch = first_from(lambda batch: excess(batch) >= 0)
    if batch is None or batch == 1:
        return None if batch is None else 1.0
    under, over = excess(batch - 1), excess(batch)
    return batch - over / (over - under)


def compute_bound_prompt(
    price: Price, device: Device, prompt: Callable[[int], StepSegment] = lambda length: StepSegment(length, length)
) -> int | None:
    """Return the prompt length from which the prefill of one prompt is compute-bound, or None if no length is.

    Args:
        price: The priced model.
        device: The device that runs it.
        prompt: Returns the step segment of a prompt of a given length, which an encoder may process.
    """

    def holds(length: int) -> bool:
        return balance([price.step(Work.of([prompt(length)], price.reaches))], device) >= 1

    return first_from(holds)


def context_where_kv_outweighs_weights(price: Price, batch: int = 1, encoded: int = 0) -> int | None:
    """Return the context length from which a decode step reads more KV than weights.

    Return None if no length is enough, for example because sliding windows limit the KV that a step reads.

    Args:
        price: The priced model.
        batch: The number of sequences.
        encoded: The encoder positions of each sequence.
    """

    def holds(context: int) -> bool:
        cost = price.step(Work.of([StepSegment(1, context, encoded)], price.reaches) * batch)
        return cost.kv_read_bytes > cost.weight_bytes

    return first_from(holds)


def _seconds(cost: Cost, device: Device) -> tuple[float, float]:  # also in formulas.js
    """Return a step's seconds of matrix arithmetic and its seconds of weight and KV traffic."""
    arithmetic = sum(flops / device.peak(name) for name, flops in matrix_flops(cost).items())
    return arithmetic, cost.memory_bytes / device.bandwidth_of(cost.memory_bytes)


def first_from(holds: Callable[[int], bool]) -> int | None:  # also in formulas.js
    """Return the smallest positive integer for which `holds` is true, assuming that it is true for all larger ones.

    Return None if that is beyond `_MAX_SEARCHED`.
    """
    over = 1
    while not holds(over):
        if over >= _MAX_SEARCHED:
            return None
        over *= 2
    return first_between(over // 2 + 1, over, holds)


def first_between(low: int, high: int, holds: Callable[[int], bool]) -> int:  # also in formulas.js
    """Return the smallest integer from `low` for which `holds` is true, or `high` if there is none below `high`.

    If it is true for an integer, it must be true for all larger ones.
    """
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
