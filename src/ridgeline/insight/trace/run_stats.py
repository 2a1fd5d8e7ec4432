"""Statistics of a run: the time and bandwidth of prefill and decode, and how close they came to the roofline."""

from dataclasses import dataclass

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.events import StepRecord
from ridgeline.price.device import Device
from ridgeline.price.physics_guard import under_floor
from ridgeline.price.price import Price
from ridgeline.price.roof_share import explains
from ridgeline.util.document import humanize
from ridgeline.util.json_data import json_shape


@json_shape("tokens", "seconds", "tokens_per_second", "bytes_per_second", "flops_per_second")
@dataclass(slots=True)
class PhaseThroughput:
    """The totals over all steps of one kind, prefill or decode; a prefill step may also run decoding requests."""

    steps: int = 0
    tokens: int = 0
    """The number of positions that prefill steps ran, or of tokens that decode steps sampled."""
    seconds: float = 0.0
    nbytes: float = 0.0
    """The bytes of weights and KV cache that the steps had to read and write."""
    flops: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """The positions run (prefill steps) or tokens sampled (decode steps) per second; 0 if nothing ran."""
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def bytes_per_second(self) -> float:
        """The compulsory memory traffic per second, a lower bound of the actual one; 0 if nothing ran."""
        return self.nbytes / self.seconds if self.seconds else 0.0

    @property
    def flops_per_second(self) -> float:
        """The FLOPs per second over all steps of the phase; 0 if nothing ran."""
        return self.flops / self.seconds if self.seconds else 0.0


class RunStats:
    """The throughput of prefill and decode, accumulated from the records of a run's steps.

    A step counts as prefill if a request ran several positions in it that were not speculative.
    """

    def __init__(self, price: Price) -> None:
        """Start with empty statistics for a model's price."""
        self.price = price
        self.prefill, self.decode = PhaseThroughput(), PhaseThroughput()

    def add(self, record: StepRecord) -> None:
        """Add the record of a step that ran to the statistics of its phase."""
        phase = self.decode if record.decodes_only else self.prefill
        cost = self.price.step(record.work)
        phase.steps += 1
        phase.tokens += record.sampled if record.decodes_only else record.work.tokens
        phase.seconds += record.seconds
        phase.nbytes += cost.memory_bytes
        phase.flops += cost.total_flops


def verdict(account: RunStats, device: Device) -> list[str]:
    """Return two sentences on a run: the share of the hardware limit that it reached, and which limit that is.

    If the phase is far below its roof, the second sentence says that no hardware limit explains its time. The list is
    empty if nothing ran.
    """
    phases = {"decode": account.decode, "prefill": account.prefill}
    ran = {name: phase for name, phase in phases.items() if phase.steps and phase.seconds}
    if not ran:
        return []
    number_format = _number_format(account.price)
    reached = "; ".join(_reached(name, phase, device, number_format) for name, phase in ran.items())
    name, phase = next(iter(ran.items()))
    return [reached, _bound(name, phase, device, number_format)]


def _number_format(price: Price) -> str:
    """Return the number format of most of a token's arithmetic."""
    flops = price.step(Work.of([StepSegment(1, 1)], price.reaches)).flops
    return max(flops, key=lambda name: flops[name])


def _roofs(phase: PhaseThroughput, device: Device, number_format: str) -> tuple[float, float]:
    """Return a phase's seconds at peak FLOP/s, and at the bandwidth of the memory that holds a step's data."""
    working_set = phase.nbytes / phase.steps
    return phase.flops / device.peak(number_format), phase.nbytes / device.bandwidth_of(working_set)


def _reached(name: str, phase: PhaseThroughput, device: Device, number_format: str) -> str:
    floor = max(_roofs(phase, device, number_format))
    rates = f"{humanize.say(phase.bytes_per_second, 'B/s')} and {humanize.say(phase.flops_per_second, 'FLOP/s')}"
    text = f"{name} reached {rates}, {humanize.percent(floor / phase.seconds)} of its roof"
    if under_floor(phase.seconds, floor):
        text += ", which is impossible: the device's figures, the model's shape or the timer is wrong"
    return text


def _bound(name: str, phase: PhaseThroughput, device: Device, number_format: str) -> str:
    compute, memory = _roofs(phase, device, number_format)
    working_set = phase.nbytes / phase.steps
    bandwidth = humanize.say(device.bandwidth_of(working_set), "B/s")
    peak = humanize.say(device.peak(number_format), "FLOP/s")
    place = device.memory_level_of(working_set).replace("memory", "main memory")
    calibrated = "" if device.calibrated else f"; roofs not calibrated{_advice(device)}"
    if not explains(max(compute, memory), phase.seconds):
        moved, computed = (humanize.percent(floor / phase.seconds) for floor in (memory, compute))
        return (
            f"neither memory nor arithmetic limited {name}: {moved} of the bandwidth of {place} ({bandwidth}), "
            f"{computed} of the arithmetic ({number_format}, {peak}); `ridgeline trace` shows where the time went"
            f"{calibrated}"
        )
    where = f"{humanize.say(working_set, 'B')} of weights and KV per step are in {place}"
    if memory >= compute:
        idle = humanize.percent(compute / memory)
        return f"{name} is memory-bound ({bandwidth}): {where}; arithmetic needs {idle} of that time{calibrated}"
    return f"{name} is compute-bound ({number_format}, {peak}): {where}{calibrated}"


def _advice(device: Device) -> str:
    """Return why a device is not calibrated and how to calibrate it; "" if it is no machine at hand."""
    if device.stale_calibration:
        return f": {device.stale_calibration}"
    return " (run `ridgeline calibrate`)" if device.basis == "probe" else ""
