"""Prediction: what the price says of a model's server under load, as data; `predict.py` makes it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """What so many users who ask again at once would get: requests and tokens a second; seconds."""

    users: int
    requests_per_second: float
    tokens_per_second: float
    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The plan's closed loop of users, for prompts and answers of the measured mean lengths. An open loop at rate X is
    held against the users who would make X requests a second. Nothing of it was fitted to the run."""

    model: str
    device: str
    calibrated: bool
    input: int
    output: int
    points: tuple[LoadPoint, ...]

    @property
    def most(self) -> float:
        """Requests a second that it never reaches more of, with as many users as are looked at."""
        return max(point.requests_per_second for point in self.points)

    def at_rate(self, rate: float) -> LoadPoint | None:
        """The fewest users who make at least `rate` requests a second; None where none do."""
        return next((point for point in self.points if point.requests_per_second >= rate), None)

    @property
    def label(self) -> str:
        """What every drawing of it says."""
        how = "calibrated" if self.calibrated else "not calibrated"
        return f"predicted by the price of {self.model} on {self.device} ({how})"
