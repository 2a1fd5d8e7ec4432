"""Where a model on a card turns: from memory-bound to compute-bound, and from reading weights to reading KV.

All of it against the floor, so of the card and not of its kernels. The arithmetic is that of the matrices, each number
format at its own peak: elementwise operations run on units of their own.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping

from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.price.device import Device
from ridgeline.price.price import Price

# Beyond any batch or context there is: what has not turned here never does.
_MAX_SEARCHED = 2**40


def balance(costs: Iterable[Cost], device: Device) -> float:
    """Seconds of arithmetic over seconds of memory, of steps of these costs one after the other: compute-bound from 1
    on. The one definition of which side of the ridge something is on, and of how far.
    """
    arithmetic, memory = both_seconds(costs, device)
    return arithmetic / memory


def both_seconds(costs: Iterable[Cost], device: Device) -> tuple[float, float]:
    """Seconds of the matrices' arithmetic, and of reading and writing weights and KV, of steps of these costs."""
    seconds = [_seconds(cost, device) for cost in costs]
    return sum(arithmetic for arithmetic, _ in seconds), sum(memory for _, memory in seconds)


def matrix_flops(cost: Cost) -> Mapping[str, float]:
    """The FLOPs of matrices, by format. Elementwise operations count in fp32: where a narrower format computes too,
    the matrices are in that one.
    """
    narrow = {name: flops for name, flops in cost.flops.items() if name != "fp32"}
    return narrow or cost.flops


def critical_batch(price: Price, device: Device, context: int, encoded: int = 0) -> float | None:
    """The batch from which a decode step at this context is compute-bound; None if no batch ever is.

    Weights are read once a step and shared, KV is each sequence's own: where a token's KV takes longer to read than
    the token takes to compute, no batch helps. `context`: positions of each sequence, the new one included; `encoded`:
    of its encoder.
    """
    one = Work.of([StepSegment(1, context, encoded)], price.reaches)

    def excess(batch: int) -> float:
        arithmetic, memory = _seconds(price.step(one * batch), device)
        return arithmetic - memory

    batch = _first(lambda batch: excess(batch) >= 0)
    if batch is None or batch == 1:
        return None if batch is None else 1.0
    under, over = excess(batch - 1), excess(batch)
    return batch - over / (over - under)


def compute_bound_prompt(
    price: Price, device: Device, prompt: Callable[[int], StepSegment] = lambda length: StepSegment(length, length)
) -> int | None:
    """The prompt length from which one prompt's prefill is compute-bound; None if none is. prompt: what attention sees
    of one of so many tokens, which an encoder may read.
    """

    def holds(length: int) -> bool:
        return balance([price.step(Work.of([prompt(length)], price.reaches))], device) >= 1

    return _first(holds)


def context_where_kv_outweighs_weights(price: Price, batch: int = 1, encoded: int = 0) -> int | None:
    """The context from which a decode step of `batch` sequences, each beside so many positions of its encoder, reads
    more KV than weights; None where windows keep it below for good.
    """

    def holds(context: int) -> bool:
        cost = price.step(Work.of([StepSegment(1, context, encoded)], price.reaches) * batch)
        return cost.kv_read_bytes > cost.weight_bytes

    return _first(holds)


def _seconds(cost: Cost, device: Device) -> tuple[float, float]:
    """Of a step: seconds of arithmetic, and of reading and writing weights and KV."""
    arithmetic = sum(flops / device.peak(name) for name, flops in matrix_flops(cost).items())
    return arithmetic, cost.memory_bytes / device.bandwidth_of(cost.memory_bytes)


def _first(holds: Callable[[int], bool]) -> int | None:
    """The smallest positive integer for which `holds`, given that it holds for all greater ones."""
    over = 1
    while not holds(over):
        if over >= _MAX_SEARCHED:
            return None
        over *= 2
    between = range(over // 2 + 1, over)
    return between.start + bisect_left(between, True, key=holds)
