"""The FLOPs and bytes of a step, independent of the kernels and the device that run it."""

from collections.abc import Mapping

import msgspec

from ridgeline.util.json_data import json_shape


@json_shape(
    "flops=total_flops", "flops_by_format=flops", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "activation_bytes",
    "communication_bytes", "bytes=total_bytes",
)  # fmt: skip
class Cost(msgspec.Struct, frozen=True, gc=False):  # also in step_formulas.js
    """The minimum FLOPs, memory traffic and communication of an op, a model or a step.

    It counts compulsory work only: a multiply-add is 2 FLOPs, each weight is read once per step in the format in which
    it is stored, and the inputs and outputs of an op are moved once each. A faster kernel changes the time, never the
    cost. The class is a struct because the simulator creates a dozen per step.
    """

    flops: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The FLOPs of an op or step, by number format."""
    weight_bytes: float = 0.0
    """The bytes of weights that an op or step reads."""
    kv_read_bytes: float = 0.0
    """The bytes of keys, values and recurrent states that an op or step reads."""
    kv_write_bytes: float = 0.0
    """The bytes of keys, values and recurrent states that an op or step writes."""
    activation_bytes: float = 0.0
    """The bytes of activations that an op or step reads and writes."""
    communication: Mapping[str, float] = msgspec.field(default_factory=dict)
    """The bytes that each rank has after a collective, by kind (`all_reduce`, `all_gather`, `all_to_all`)."""

    @property
    def total_flops(self) -> float:  # also in step_formulas.js
        """The FLOPs of an op or step in all number formats together."""
        return sum(self.flops.values())

    @property
    def memory_bytes(self) -> float:  # also in step_formulas.js
        """The bytes of weights, keys and values: the traffic that, in a large model, no hardware cache can avoid."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes

    @property
    def total_bytes(self) -> float:  # also in step_formulas.js
        """All bytes that pass through this device's memory, activations included."""
        return self.memory_bytes + self.activation_bytes

    @property
    def communication_bytes(self) -> float:  # also in step_formulas.js
        """The bytes of all tensor-parallel collectives of a step together."""
        return sum(self.communication.values())

    @property
    def intensity(self) -> float:
        """The arithmetic intensity in FLOPs per byte; infinite for an op that moves no bytes."""
        return self.total_flops / self.total_bytes if self.total_bytes else float("inf")

    def __add__(self, other: "Cost") -> "Cost":  # also in step_formulas.js
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


def _sum(some: Mapping[str, float], others: Mapping[str, float]) -> Mapping[str, float]:  # also in step_formulas.js
    """Return the sum of two mappings, key by key."""
    if not others:  # most ops have no communication, and the same number format as the rest
        return some
    both = {**some}
    for name, count in others.items():
        both[name] = both.get(name, 0.0) + count
    return both


NO_COST = Cost()
"""The cost (zero FLOPs and bytes) of an op without rows."""

SOFTCAP_FLOPS = 3
"""FLOPs per number for soft-capping, softcap x tanh(number / softcap), with tanh counted as one."""
