"""What steps were predicted to take, beside what they took: of steps that have a prediction."""

from dataclasses import dataclass


@dataclass(slots=True)
class PricedSteps:
    """Sums in seconds. measured: what the steps took. floor: that nothing could have beaten."""

    predicted: float = 0.0
    floor: float = 0.0
    measured: float = 0.0

    def add(self, seconds: float, predicted: float | None, floor: float | None) -> None:
        """A step; it does not count where nothing was predicted."""
        if predicted is not None:
            self.predicted += predicted
            self.floor += floor or 0.0
            self.measured += seconds

    @property
    def share(self) -> float | None:
        """Predicted over measured; None before a step counted."""
        return self.predicted / self.measured if self.measured else None
