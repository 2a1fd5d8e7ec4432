"""Device: a card or processor, as far as a price needs it. Facts with their sources; efficiencies apart from them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from ridgeline.price.interconnect import Interconnect
from ridgeline.price.slowdown import Slowdown

# Units that multiply numbers of a format without loss: its own, else those of a wider one.
_FLOATS = ("fp4", "fp8", "fp16", "bf16", "fp32")
_INTEGERS = ("int4", "int8", "fp16", "bf16", "fp32")
NARROW = frozenset({"fp4", "fp8", "int4", "int8"})
"""Formats that only some cards have units for."""

Basis = Literal["own", "alike", "kind", "file", "probe"]
"""Whose kernel times constants are: the card's own, a card's of the same family, nobody's (what is usual for its kind),
what a user's file says, or nobody's beside a probe of the machine at hand."""


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How a class of kernels falls short of the roofs: seconds a launch takes, and the shares of peak FLOP/s and of
    bandwidth that it reaches when only that roof matters.

    again: what further calls within an op cost, as a share of a launch: 0 where one kernel serves all that the op's
    `kernels` states, 1 where each is launched as dearly as the first. blend: the power p that joins the two roofs, (a^p
    + b^p)^(1/p): 1 where a kernel reads and computes in turn, 2 where it does both at once as far as it can, more where
    the longer one hides the other. recorded: seconds a launch takes in a decode step that is recorded
    (`backends/cpu/call_recording.py`), where nothing is asked for anew; None where that was not measured, or is not
    done.
    """

    launch: float
    compute: float
    memory: float
    again: float = 0.0
    blend: float = 2.0
    recorded: float | None = None

    def at(self, pace: Slowdown) -> "Efficiency":
        """The same while all takes so many times longer: what no roof explains keeps the pace of launches."""
        return replace(
            self,
            launch=self.launch * pace.launch,
            compute=1 / (pace.compute + (1 / self.compute - 1) * pace.launch),
            memory=1 / (pace.memory + (1 / self.memory - 1) * pace.launch),
            recorded=None if self.recorded is None else self.recorded * pace.launch,
        )

    def launches(self, calls: float) -> float:
        """As how many launches so many calls count."""
        return 1 + self.again * (calls - 1)

    def seconds(self, launches: float, compute: float, memory: float, *, recorded: bool = False) -> float:
        """Seconds of so many launches whose work would take `compute` and `memory` seconds under either roof alone.
        recorded: whether they are made again in a recorded step.
        """
        launch = self.launch if self.recorded is None or not recorded else self.recorded
        compute, memory = compute / self.compute, memory / self.memory
        if self.blend == 2.0:
            return launch * launches + math.hypot(compute, memory)
        both: float = (compute**self.blend + memory**self.blend) ** (1 / self.blend)
        return launch * launches + both


@dataclass(frozen=True, slots=True)
class HostTime:
    """Seconds of a step that no op has: for the step itself, and for each op, sequence and position in it (scheduler,
    batch, what lies between two ops, sampler); and for each byte that ops move, as far as the caches reach: so much of
    the program they have pushed out, which has to come again. overlap: whether the host prepares the next step while
    the device runs this one, which then takes the longer of the two; else it takes both. asked: what more a step takes
    that is not recorded; one that is has nothing between its ops. ahead: whether ops run while the host asks for those
    after them, as on a card: of what it takes to ask for a step's only what is longer than they take counts. prompts:
    for a step in which prompts run, or positions of which none is sampled, beside all of these.
    """

    step: float
    op: float
    sequence: float
    token: float
    byte: float
    overlap: bool = False
    asked: float = 0.0
    ahead: bool = False
    prompts: float = 0.0

    def at(self, pace: Slowdown) -> "HostTime":
        """The same while all takes so many times longer."""
        seconds = ("step", "op", "sequence", "token", "byte", "asked", "prompts")
        return replace(self, **{name: getattr(self, name) * pace.launch for name in seconds})


@dataclass(frozen=True, slots=True)
class Copies:
    """Kernels that only move a prompt's rows from one layout to another around its attention: how many there are, and
    how often they read and write all queries (results count as queries), and all keys and values.
    """

    launches: int
    queries: float
    keys: float


@dataclass(frozen=True, slots=True)
class Cache:
    """A memory nearer than the main one: its size, and bytes a second when the working set fits."""

    name: str
    nbytes: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """What a card costs an hour; prices perish, so each has a date and a source. seller: who asks it, and for what; ""
    where the source is all that is known.
    """

    dollars: float
    date: str
    source: str
    seller: str = ""

    @property
    def asked_by(self) -> str:
        """Who asks it, as far as is known: prices of two are not of one list."""
        return self.seller or self.source


@dataclass(frozen=True, slots=True)
class Device:
    """One card, as an engine drives it.

    peaks: dense FLOP/s by number format. bandwidth: bytes a second of its main memory. memory: bytes as the driver
    shows them. host_link: bytes a second between the host's memory and one card, in one direction; None where that is
    not known, or there is no way between them. efficiency: by kernel class (a prefix of a kernel's name, or
    `prefix/format` where a number format has kernels of its own), from calibration or measured kernels; `default` for
    the others. host: what lies between ops, where it is known. all_reduce, rereads, dequantise, copies: as in
    EngineProfile; what no engine has said is what a good one does. calibrated: whether efficiency and host come from
    this very machine; disturbed: how many times longer things took on average while it was calibrated, for what else
    was at work on it, of which efficiency and host know nothing; None where nobody has looked. sources: of every
    figure, by its field in cards.toml. basis: whose kernel times the efficiencies are, where they are not calibrated;
    measured_on: the card that they were measured on, if they were. native: whether it is a processor that runs our
    kernels (`backends/`), so that the classes are theirs; else they are torch's, or those of the engine that drives
    the card.
    """

    name: str
    title: str
    kind: str
    peaks: Mapping[str, float]
    bandwidth: float
    memory: float
    caches: tuple[Cache, ...] = ()
    link: Interconnect | None = None
    host_link: float | None = None
    watts: float | None = None
    price: HourlyPrice | None = None
    efficiency: Mapping[str, Efficiency] = field(default_factory=dict)
    host: HostTime | None = None
    all_reduce: str = "custom"
    rereads: bool = False
    dequantise: Mapping[str, float] = field(default_factory=dict)
    copies: Copies | None = None
    calibrated: bool = False
    disturbed: Slowdown | None = None
    basis: Basis = "file"
    measured_on: str = ""
    native: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    def as_disturbed(self) -> "Device":
        """As it is on average, with what else is at work on it: what runs for minutes meets that too."""
        if self.disturbed is None:
            return self
        slowed = {name: each.at(self.disturbed) for name, each in self.efficiency.items()}
        host = None if self.host is None else self.host.at(self.disturbed)
        said = f"{self.disturbed.said}, as on average while this machine was calibrated"
        sources = {**self.sources, "disturbed": said}
        return replace(self, efficiency=slowed, host=host, disturbed=None, sources=sources)

    def peak(self, number_format: str) -> float:
        """FLOP/s in a number format. One the card has no units for runs at the next wider format's speed; where none
        wider is known (fp32 of many accelerators) the next narrower one's is a roof that it cannot beat.

        Raises ValueError for what is no number format.
        """
        if number_format in self.peaks:
            return self.peaks[number_format]
        by_width = _INTEGERS if number_format in _INTEGERS[:2] else _FLOATS
        if number_format in by_width:
            at = by_width.index(number_format)
            for name in (*by_width[at:], *reversed(by_width[:at])):
                if name in self.peaks:
                    return self.peaks[name]
        raise ValueError(f"{self.name} has no peak for {number_format}; it has {', '.join(self.peaks)}")

    def bandwidth_of(self, working_set: float) -> float:
        """Bytes a second when a step goes over `working_set` bytes again and again: of the nearest cache that holds
        them, else of the main memory.
        """
        bandwidth = self.bandwidth
        for cache in self.caches:  # a plain loop: a simulator asks several times a step
            if cache.nbytes >= working_set and cache.bandwidth > bandwidth:
                bandwidth = cache.bandwidth
        return bandwidth

    @property
    def cached_bytes(self) -> float:
        """Bytes that its largest cache holds; 0 where no cache is known."""
        return max((cache.nbytes for cache in self.caches), default=0.0)

    def place_of(self, working_set: float) -> str:
        """The name of the memory that `bandwidth_of` means."""
        fitting = [cache for cache in self.caches if cache.nbytes >= working_set]
        return max(fitting, key=lambda cache: cache.bandwidth).name if fitting else "memory"

    def efficiency_of(self, kernel: str, number_format: str = "") -> Efficiency:
        """The efficiency of a kernel: of the most particular class that is known. `linear.vector` on bf16 looks for
        `linear.vector/bf16`, `linear.vector`, `linear/bf16`, `linear` and `default`, in that order.
        """
        known = self.efficiency
        while kernel:
            found = known.get(f"{kernel}/{number_format}") or known.get(kernel)
            if found is not None:
                return found
            kernel = kernel.rpartition(".")[0]
        return known["default"]

    def ridge(self, number_format: str) -> float:
        """FLOPs a byte at which compute and memory take equally long."""
        return self.peak(number_format) / self.bandwidth
