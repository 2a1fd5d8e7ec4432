"""Cost: what must be done for a step, whoever does it and however fast."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Cost:
    """FLOPs by number format, and bytes by where they come from.

    Compulsory figures only: a multiply-add is 2 FLOPs, a weight is read once a step at its stored width,
    activations are an op's inputs and outputs once each. A faster kernel changes the time, never the cost.
    """

    flops: Mapping[str, float] = field(default_factory=dict)
    weight_bytes: float = 0.0
    kv_read_bytes: float = 0.0
    kv_write_bytes: float = 0.0
    activation_bytes: float = 0.0
    communication_bytes: float = 0.0

    @property
    def total_flops(self) -> float:
        """FLOPs of all formats together."""
        return sum(self.flops.values())

    @property
    def memory_bytes(self) -> float:
        """Bytes of weights and KV: what no cache can save in a large model, the compulsory traffic of a floor."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def total_bytes(self) -> float:
        """All bytes through this device's memory, activations included."""
        return self.memory_bytes + self.activation_bytes

    @property
    def intensity(self) -> float:
        """FLOPs a byte; infinite for an op that moves nothing."""
        return self.total_flops / self.total_bytes if self.total_bytes else float("inf")

    def __add__(self, other: "Cost") -> "Cost":
        flops = dict(self.flops)
        for name, count in other.flops.items():
            flops[name] = flops.get(name, 0.0) + count
        return Cost(
            flops,
            self.weight_bytes + other.weight_bytes,
            self.kv_read_bytes + other.kv_read_bytes,
            self.kv_write_bytes + other.kv_write_bytes,
            self.activation_bytes + other.activation_bytes,
            self.communication_bytes + other.communication_bytes,
        )

    def __mul__(self, count: float) -> "Cost":
        return Cost(
            {name: flops * count for name, flops in self.flops.items()},
            self.weight_bytes * count,
            self.kv_read_bytes * count,
            self.kv_write_bytes * count,
            self.activation_bytes * count,
            self.communication_bytes * count,
        )
