"""Prediction: what the price says of a model's server under load."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.price.device import Device

if TYPE_CHECKING:
    from ridgeline.core.models import Fields

_USERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


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
    held against the users who would make X requests a second. Nothing of it was fitted to the run.
    """

    model: str
    device: str
    calibrated: bool
    input: int
    output: int
    points: tuple[LoadPoint, ...]

    @property
    def most(self) -> float:
        """The highest rate, in requests a second, that any number of users reaches."""
        return max(point.requests_per_second for point in self.points)

    def at_rate(self, rate: float) -> LoadPoint | None:
        """The fewest users who make at least `rate` requests a second; None where none do."""
        return next((point for point in self.points if point.requests_per_second >= rate), None)

    @property
    def label(self) -> str:
        """What every drawing of it says."""
        how = "calibrated" if self.calibrated else "not calibrated"
        return f"predicted by the price of {self.model} on {self.device} ({how})"


def predict(name: str, fields: "Fields", device: Device, input: int, output: int) -> Prediction:
    """What the plan expects of a model on a device, with prompts and answers of these lengths in tokens.

    Raises ModelRefused where the model cannot be built.
    """
    # Pricing builds the model, which loads torch: most runs of the load generator do without.
    from ridgeline.price.engine_profile import load_engine
    from ridgeline.price.plan.load_estimate import LoadEstimator
    from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload

    workload = PlanWorkload(max(1, input), max(1, output))
    setup = Deployment(device, engine=load_engine("ridgeline"))
    serving = LoadEstimator(ModelCache(fields).case(setup), workload)
    points = []
    for users in _USERS:
        load = serving.load(users)
        points.append(
            LoadPoint(
                users,
                load.requests_per_second.expected,
                load.tokens_per_second.expected,
                load.ttft.expected,
                load.tpot.expected,
            )
        )
    return Prediction(name, device.name, device.calibrated, workload.input, workload.output, tuple(points))
