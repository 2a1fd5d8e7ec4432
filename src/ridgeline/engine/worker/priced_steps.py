"""The sums of predicted and measured step times, over steps that have a prediction."""

from dataclasses import dataclass


@dataclass(slots=True)
class PricedSteps:
    """The sums of predicted and measured step times, in seconds."""

    predicted: float = 0.0
    """The seconds that the steps should have taken according to the cost model."""
    floor: float = 0.0
    """The lower bound on the seconds of the steps, which nothing can beat."""
    measured: float = 0.0
    """The seconds that the steps took in fact."""

    def add(self, seconds: float, predicted: float | None, floor: float | None) -> None:
        """Add the times of a step; ignore a step without a prediction."""
        if predicted is not None:
            self.predicted += predicted
            self.floor += floor or 0.0
            self.measured += seconds

    @property
    def share(self) -> float | None:
        """The predicted seconds divided by the measured ones; None before the first step with a prediction."""
        return self.predicted / self.measured if self.measured else None
