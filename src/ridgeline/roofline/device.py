"""Device: a card or processor, as far as a price needs it. Facts with their sources; efficiencies apart from them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Efficiency:
    """How a class of kernels falls short of the roofs: seconds a launch takes, and the shares of peak FLOP/s and of
    bandwidth that it reaches when only that roof matters."""

    launch: float
    compute: float
    memory: float


@dataclass(frozen=True, slots=True)
class Cache:
    """A memory nearer than the main one: its size, and bytes a second when the working set fits."""

    name: str
    nbytes: float
    bandwidth: float


@dataclass(frozen=True, slots=True)
class Link:
    """What joins cards. bandwidth: bytes a second and direction, of one card. all_reduce: by number of cards, seconds
    before the first byte and bytes of the message a second after that (alpha and beta)."""

    name: str
    bandwidth: float
    all_reduce: Mapping[int, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HourlyPrice:
    """What a card costs an hour; prices perish, so each has a date and a source."""

    dollars: float
    date: str
    source: str


@dataclass(frozen=True, slots=True)
class Device:
    """One card.

    peaks: dense FLOP/s by number format. bandwidth: bytes a second of its main memory. memory: bytes as the driver
    shows them. efficiency: by kernel class (an op's `kind`), from calibration or measured kernels; `default` for the
    others. calibrated: whether those come from this very machine.
    """

    name: str
    title: str
    kind: str
    peaks: Mapping[str, float]
    bandwidth: float
    memory: float
    caches: tuple[Cache, ...] = ()
    link: Link | None = None
    watts: float | None = None
    price: HourlyPrice | None = None
    efficiency: Mapping[str, Efficiency] = field(default_factory=dict)
    calibrated: bool = False
    sources: Mapping[str, str] = field(default_factory=dict)

    def peak(self, number: str) -> float:
        """FLOP/s in a number format. One the card has no units for runs at the next wider format's speed.

        Raises ValueError if there is none wider either.
        """
        order = ("int4", "fp4", "int8", "fp8", "fp16", "bf16", "fp32")
        candidates = order[order.index(number) :] if number in order else (number,)
        for name in candidates:
            if name in self.peaks:
                return self.peaks[name]
        raise ValueError(f"{self.name} has no peak for {number}; it has {', '.join(self.peaks)}")

    def bandwidth_of(self, working_set: float) -> float:
        """Bytes a second when a step goes over `working_set` bytes again and again: of the nearest cache that holds
        them, else of the main memory."""
        fitting = [cache for cache in self.caches if cache.nbytes >= working_set]
        return max((cache.bandwidth for cache in fitting), default=self.bandwidth)

    def place_of(self, working_set: float) -> str:
        """The name of the memory that `bandwidth_of` means."""
        fitting = [cache for cache in self.caches if cache.nbytes >= working_set]
        return max(fitting, key=lambda cache: cache.bandwidth).name if fitting else "memory"

    def efficiency_of(self, kind: str) -> Efficiency:
        """The efficiency of a kernel class."""
        return self.efficiency.get(kind) or self.efficiency["default"]

    def ridge(self, number: str) -> float:
        """FLOPs a byte at which compute and memory take equally long."""
        return self.peak(number) / self.bandwidth
