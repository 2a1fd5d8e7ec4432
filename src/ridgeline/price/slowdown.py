"""The slowdown of a machine on which other processes run."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Slowdown:
    """The times of kernel launches, arithmetic and memory: seconds of a probe, or factors relative to another probe."""

    launch: float
    compute: float
    memory: float

    @property
    def description(self) -> str:
        """A text that describes these slowdown factors relative to an undisturbed machine."""
        return (
            f"compared with an undisturbed machine, launches take {self.launch - 1:.0%} longer, arithmetic "
            f"{self.compute - 1:.0%} and memory traffic {self.memory - 1:.0%}"
        )

    def over(self, other: "Slowdown") -> "Slowdown":
        """Return the ratios of these three times to those of another probe, as slowdown factors."""
        return Slowdown(self.launch / other.launch, self.compute / other.compute, self.memory / other.memory)

    def factor_for(self, seconds: float, compute: float, memory: float) -> float:
        """Return the slowdown factor of a kernel, a weighted mean of the three factors.

        The weights are the kernel's compute time, its memory time and the time beyond the longer of these two, which
        slows down like launches. A kernel that takes no time gets the factor of launches.

        Args:
            seconds: The measured seconds of the kernel.
            compute: The seconds of arithmetic at peak FLOP/s.
            memory: The seconds of memory traffic at full bandwidth.
        """
        rest = max(0.0, seconds - max(compute, memory))
        total = rest + compute + memory
        if not total:
            return self.launch
        return (rest * self.launch + compute * self.compute + memory * self.memory) / total
