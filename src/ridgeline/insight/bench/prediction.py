"""The predicted performance of a model's server under load."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ridgeline.price.device import Device

if TYPE_CHECKING:
    from ridgeline.core.models import Fields

_USERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """The predicted performance of a closed loop: requests and tokens per second, TTFT and TPOT in seconds."""

    users: int
    requests_per_second: float
    tokens_per_second: float
    ttft: float
    tpot: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted performance of closed loops, for prompts and responses of the measured mean lengths.

    An open loop of rate X is compared with the smallest predicted number of users that produces X requests per second.
    Nothing is fitted to the run.
    """

    model: str
    device: str
    calibrated: bool
    input: int
    output: int
    points: tuple[LoadPoint, ...]

    @property
    def most(self) -> float:
        """The highest request rate per second that any of the predicted numbers of users reaches."""
        return max(point.requests_per_second for point in self.points)

    def at_rate(self, rate: float) -> LoadPoint | None:
        """Return the predicted performance with the fewest users that reach `rate` requests per second, or None."""
        return next((point for point in self.points if point.requests_per_second >= rate), None)

    @property
    def label(self) -> str:
        """A label of the prediction for charts and tables, with the model, the device and whether it is calibrated."""
        how = "calibrated" if self.calibrated else "not calibrated"
        return f"predicted by the cost model for {self.model} on {self.device} ({how})"


def predict(name: str, fields: "Fields", device: Device, input: int, output: int) -> Prediction:
    """Predict the performance of a model on a device, for given prompt and response lengths in tokens.

    Raises:
        ModelRefused: If the model cannot be built.
    """
    # Imported here because pricing builds the model and loads torch, which most benchmark runs do not need.
    from ridgeline.price.engine_profile import load_engine
    from ridgeline.price.plan.load_estimate import LoadEstimator
    from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload

    workload = PlanWorkload(max(1, input), max(1, output))
    setup = Deployment(device, engine=load_engine("ridgeline"))
    serving = LoadEstimator(ModelCache(fields).scenario(setup), workload)
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
