"""Cost: what must be done for a step, whoever does it and however fast."""

from collections.abc import Mapping

import msgspec


class Cost(msgspec.Struct, frozen=True, gc=False):
    """FLOPs by number format, and bytes by where they come from. A struct, because a simulator makes a dozen a step.

    Compulsory figures only: a multiply-add is 2 FLOPs, a weight is read once a step at its stored width,
    activations are an op's inputs and outputs once each. A faster kernel changes the time, never the cost.
    communication: bytes that each rank has in the end, by collective (`all_reduce`, `all_gather`, `all_to_all`).
    """

    flops: Mapping[str, float] = msgspec.field(default_factory=dict)
    weight_bytes: float = 0.0
    kv_read_bytes: float = 0.0
    kv_write_bytes: float = 0.0
    activation_bytes: float = 0.0
    communication: Mapping[str, float] = msgspec.field(default_factory=dict)

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
    def communication_bytes(self) -> float:
        """Bytes of all collectives together."""
        return sum(self.communication.values())

    @property
    def intensity(self) -> float:
        """FLOPs a byte; infinite for an op that moves nothing."""
        return self.total_flops / self.total_bytes if self.total_bytes else float("inf")

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            _sum(self.flops, other.flops),
            self.weight_bytes + other.weight_bytes,
            self.kv_read_bytes + other.kv_read_bytes,
            self.kv_write_bytes + other.kv_write_bytes,
            self.activation_bytes + other.activation_bytes,
            _sum(self.communication, other.communication),
        )

    def __mul__(self, count: float) -> "Cost":
        return Cost(
            {name: flops * count for name, flops in self.flops.items()},
            self.weight_bytes * count,
            self.kv_read_bytes * count,
            self.kv_write_bytes * count,
            self.activation_bytes * count,
            {name: nbytes * count for name, nbytes in self.communication.items()},
        )


def _sum(some: Mapping[str, float], others: Mapping[str, float]) -> Mapping[str, float]:
    """Both, name by name."""
    if not others:  # most ops neither talk nor compute in a format that the rest does not
        return some
    both = dict(some)
    for name, count in others.items():
        both[name] = both.get(name, 0.0) + count
    return both


NO_COST = Cost()

SOFTCAP_FLOPS = 3
"""Of each number that softcap x tanh(number / softcap) squashes; tanh counted as one."""
