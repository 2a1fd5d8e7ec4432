"""The pace of a machine: how much longer things take while something else is at work on it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slowdown:
    """What launches, arithmetic and memory take: seconds of a probe, or how many times those of another."""

    launch: float
    compute: float
    memory: float

    @property
    def said(self) -> str:
        """In words, of one over the undisturbed one."""
        return (
            f"launches {self.launch - 1:.0%} longer than undisturbed, arithmetic {self.compute - 1:.0%}, memory "
            f"{self.memory - 1:.0%}"
        )

    def over(self, other: "Slowdown") -> "Slowdown":
        """How many times longer than in another one."""
        return Slowdown(self.launch / other.launch, self.compute / other.compute, self.memory / other.memory)

    def of(self, seconds: float, compute: float, memory: float) -> float:
        """How many times longer something takes that takes `seconds`, of which so many under either roof: what no roof
        explains keeps the pace of launches.
        """
        rest = max(0.0, seconds - max(compute, memory))
        total = rest + compute + memory
        if not total:
            return self.launch
        return (rest * self.launch + compute * self.compute + memory * self.memory) / total
