"""The hardware description that the cost model uses: peak rates with their sources, and measured efficiencies."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ridgeline.price.host_parts import HostParts
from ridgeline.price.interconnect import Interconnect
from ridgeline.price.slowdown import Slowdown

# Formats by increasing width. Units of a wider format can multiply numbers of a narrower one without loss.
_FLOATS = ("fp4", "fp8", "fp16", "bf16", "fp32")
_INTEGERS = ("int4", "int8", "fp16", "bf16", "fp32")
NARROW = frozenset({"fp4", "fp8", "int4", "int8"})
"""The number formats that only some devices have arithmetic units for."""

Basis = Literal["own", "alike", "kind", "file", "probe"]
"""The origin of a device's kernel-efficiency constants.

- own: measured on this very device model
- alike: measured on another device of the same family
- kind: typical for this kind of device, without a measurement
- file: stated in a user's device file
- probe: typical constants, combined with a probe of this machine's peak rates
"""


@dataclass(frozen=True, slots=True)
class Efficiency:  # also in formulas.js
    """The constants of one kernel class: its launch latency, and the shares of peak FLOP/s and bandwidth it reaches."""

    launch: float
    """The launch latency in seconds of a kernel of this class."""
    compute: float
    """The share of peak FLOP/s that the kernels reach if they are purely compute-bound."""
    memory: float
    """The share of the memory bandwidth that the kernels reach if they are purely memory-bound."""
    again: float = 0.0
    """The cost of each further launch within one op, as a share of `launch`.

    It is 0 if one kernel does the work of all `calls` of a `Launch`, and 1 if each call costs as much as the first.
    """
    blend: float = 2.0
    """The power p that combines compute time a and memory time b into one time, (a^p + b^p)^(1/p).

    It is 1 for a kernel that alternates between reading and computing, 2 for one that overlaps them as far as it can,
    and larger if the longer of the two hides the other.
    """
    recorded: float | None = None
    """The seconds per launch in a decode step that was recorded and is replayed, not issued op by op.

    `backends/cpu/call_recording.py` records steps. None if this was not measured, or if the backend records no steps.
    """

    def slowed_by(self, pace: Slowdown) -> "Efficiency":
        """Return the constants of a kernel class for a machine slowed down by `pace`.

        Time that neither roof explains slows down like launches.
        """
        return replace(
            self,
            launch=self.launch * pace.launch,
            compute=1 / (pace.compute + (1 / self.compute - 1) * pace.launch),
            memory=1 / (pace.memory + (1 / self.memory - 1) * pace.launch),
            recorded=None if self.recorded is None else self.recorded * pace.launch,
        )

    def launches(self, calls: float) -> float:  # also in formulas.js
        """Return the number of full-cost launches that `calls` calls within one op amount to."""
        return 1 + self.again * (calls - 1)

    def seconds(
        self, launches: float, compute: float, memory: float, *, recorded: bool = False
    ) -> float:  # also in formulas.js
        """Return the expected seconds of kernels with the given ideal compute time and memory time.

        Args:
            launches: The number of launches, as `launches()` counts them.
            compute: The seconds that the arithmetic takes at peak FLOP/s.
            memory: The seconds that the memory traffic takes at full bandwidth.
            recorded: Whether the launches are replayed from a recorded step.
        """
        launch = self.launch if self.recorded is None or not recorded else self.recorded
        compute, memory = compute / self.compute, memory / self.memory
        if self.blend == 2.0:
            return launch * launches + math.hypot(compute, memory)
        both: float = (compute**self.blend + memory**self.blend) ** (1 / self.blend)
        return launch * launches + both


@dataclass(frozen=True, slots=True)
class HostTime:
    """The host overhead of a step, in seconds: scheduler, batch preparation, gaps between ops and sampler."""

    step: float
    """The host seconds per step, regardless of its content."""
    op: float
    """The host seconds per op of a step that is issued op by op, not replayed from a recording."""
    sequence: float
    """The host seconds per sequence in a step."""
    token: float
    """The host seconds per position in a step."""
    byte: float
    """The host seconds per byte that the ops of a step move, counted up to the size of the largest cache.

    The ops evict the host program from the caches, so that it must be loaded again.
    """
    overlap: bool = False
    """Whether the host prepares the next step while the device runs this one.

    If so, a step takes the longer of the two times, otherwise their sum.
    """
    asked: float = 0.0
    """The additional host seconds of a step that is issued op by op; a replayed step has no gaps between ops."""
    ahead: bool = False
    """Whether ops execute asynchronously, as on a GPU, while the host issues the ops that follow.

    If so, only the part of the issuing time that exceeds the ops' execution time counts.
    """
    prompts: float = 0.0
    """The additional host seconds of a step that runs prompts, an encoder, or positions without a sampled token."""
    parts: HostParts | None = None
    """The constants of the scheduler, the batch and the sampler, if they were measured one by one.

    The other constants then hold for what remains; otherwise they include these parts.
    """

    def slowed_by(self, pace: Slowdown) -> "HostTime":
        """Return the host overhead of steps for a machine slowed down by `pace`."""
        seconds = ("step", "op", "sequence", "token", "byte", "asked", "prompts")
        parts = None if self.parts is None else self.parts.slowed(pace.launch)
        return replace(self, parts=parts, **{name: getattr(self, name) * pace.launch for name in seconds})


@dataclass(frozen=True, slots=True)
class Copies:
    """The copy kernels around a prompt's attention, which only convert rows from one layout to another."""

    launches: int
    """The number of copy kernels per attention call."""
    queries: float
    """The number of times that the kernels copy all queries (attention results count as queries)."""
    keys: float
    """The number of times that the kernels copy all keys and values."""


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache of a device, such as its L2."""

    name: str
    nbytes: float
    """The capacity of the cache in bytes."""
    bandwidth: float
    """The bandwidth in bytes per second if the working set fits in the cache."""


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """The price of renting a device for an hour, with its date and source because prices change."""

    dollars: float
    date: str
    source: str
    seller: str = ""
    """The seller and the offer, such as "on demand"; "" if only the source is known."""

    @property
    def asked_by(self) -> str:
        """The seller, or the source if the seller is unknown. Prices are comparable only within one seller."""
        return self.seller or self.source


@dataclass(frozen=True, slots=True)
class Device:
    """The specifications and efficiency constants of one GPU, CPU or accelerator, as an engine drives it."""

    name: str
    title: str
    kind: str
    peaks: Mapping[str, float]
    """The dense peak FLOP/s by number format."""
    bandwidth: float
    """The bandwidth of the device's main memory in bytes per second."""
    memory: float
    """The size of the device's main memory in bytes, as the driver reports it or as sold."""
    caches: tuple[Cache, ...] = ()
    link: Interconnect | None = None
    host_link: float | None = None
    """The bytes per second between host memory and one device in one direction; None if unknown or not connected."""
    watts: float | None = None
    price: HourlyPrice | None = None
    efficiency: Mapping[str, Efficiency] = field(default_factory=dict)
    """The efficiency constants by kernel class, from a calibration or from measured kernels.

    A key is a prefix of a kernel's name, or `prefix/format` if a number format has kernels of its own. `default` covers
    all other kernels.
    """
    host: HostTime | None = None
    """The host overhead per step and op; None if unknown."""
    all_reduce: str = "custom"
    """The kind of kernels for all-reduce between devices: "custom" (an engine's own) or "nccl"."""
    rereads: bool = False
    """Whether decode attention reads keys and values again for each query head that shares them."""
    dequantise: Mapping[str, float] = field(default_factory=dict)
    """The share of its bandwidth that a matrix product of few rows keeps, by weight storage format."""
    copies: Copies | None = None
    """The kernels that copy a prompt's rows around its attention; None if attention reads them in place."""
    calibrated: bool = False
    """Whether `efficiency` and `host` were measured on this very machine."""
    disturbed: Slowdown | None = None
    """The average slowdown that other load caused during calibration; None if not measured or already applied.

    `efficiency` and `host` hold for an undisturbed machine until `with_calibration_slowdown` applies the slowdown.
    """
    basis: Basis = "file"
    """The origin of the efficiency constants of a device that is not calibrated."""
    measured_on: str = ""
    """The name of the device that the efficiency constants were measured on; "" if they were not measured."""
    native: bool = False
    """Whether this is a machine that runs Ridgeline's own kernels (`backends/`), so that the kernel classes are theirs.

    Otherwise the classes are those of PyTorch, or of the engine that drives the device.
    """
    sources: Mapping[str, str] = field(default_factory=dict)
    """The source of every specification of the device, by its field name in cards.toml."""
    stale_calibration: str = ""
    """The message of StaleCalibration, with its remedy, if this machine's calibration no longer holds; otherwise ""."""

    @property
    def maker(self) -> str:
        """The maker, which is the first word of the title."""
        return self.title.partition(" ")[0]

    def with_calibration_slowdown(self) -> "Device":
        """Return this device with the average slowdown of its calibration, for predictions of runs of minutes."""
        if self.disturbed is None:
            return self
        slowed = {name: each.slowed_by(self.disturbed) for name, each in self.efficiency.items()}
        host = None if self.host is None else self.host.slowed_by(self.disturbed)
        description = f"{self.disturbed.description}, the average while this machine was calibrated"
        sources = {**self.sources, "disturbed": description}
        return replace(self, efficiency=slowed, host=host, disturbed=None, sources=sources)

    def peak(self, number_format: str) -> float:  # also in formulas.js
        """Return the peak FLOP/s in a number format.

        A format without units of its own runs at the speed of the next wider format. If no wider one is known (fp32 on
        many accelerators), the next narrower format gives an upper bound.

        Raises:
            ValueError: If the format is unknown, or the device states a peak neither for it nor for a wider or narrower
                format.
        """
        if number_format in self.peaks:
            return self.peaks[number_format]
        by_width = _INTEGERS if number_format in _INTEGERS[:2] else _FLOATS
        if number_format in by_width:
            at = by_width.index(number_format)
            for name in (*by_width[at:], *reversed(by_width[:at])):
                if name in self.peaks:
                    return self.peaks[name]
        raise ValueError(f"{self.name} has no peak FLOP/s for {number_format}; it has {', '.join(self.peaks)}")

    def bandwidth_of(self, working_set: float) -> float:  # also in formulas.js
        """Return the bytes per second when a step repeatedly reads `working_set` bytes.

        This is the bandwidth of the fastest cache that holds them, otherwise of the main memory.
        """
        bandwidth = self.bandwidth
        for cache in self.caches:  # a plain loop is fast: a simulator calls this several times per step
            if cache.nbytes >= working_set and cache.bandwidth > bandwidth:
                bandwidth = cache.bandwidth
        return bandwidth

    @property
    def cached_bytes(self) -> float:  # also in formulas.js
        """The capacity of the largest cache in bytes; 0 if no cache is known."""
        return max((cache.nbytes for cache in self.caches), default=0.0)

    def memory_level_of(self, working_set: float) -> str:
        """Return the name of the cache or memory from which a step reads `working_set` bytes repeatedly."""
        fitting = [cache for cache in self.caches if cache.nbytes >= working_set]
        return max(fitting, key=lambda cache: cache.bandwidth).name if fitting else "memory"

    def efficiency_of(self, kernel: str, number_format: str = "") -> Efficiency:  # also in formulas.js
        """Return the efficiency constants of the most specific known class of a kernel.

        `linear.vector` on bf16 looks for `linear.vector/bf16`, `linear.vector`, `linear/bf16`, `linear` and `default`,
        in that order.
        """
        known = self.efficiency
        while kernel:
            found = known.get(f"{kernel}/{number_format}") or known.get(kernel)
            if found is not None:
                return found
            kernel = kernel.rpartition(".")[0]
        return known["default"]

    def ridge(self, number_format: str) -> float:
        """Return the ridge point in FLOPs per byte, at which compute and memory take equally long."""
        return self.peak(number_format) / self.bandwidth
