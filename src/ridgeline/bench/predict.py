"""Predict: the plan's users on a model, as a prediction of what its server does under load."""

from ridgeline.bench.prediction import LoadPoint, Prediction
from ridgeline.models import Fields
from ridgeline.roofline.device import Device
from ridgeline.roofline.plan.case import ModelCache, Setup, Workload
from ridgeline.roofline.plan.serving import Serving

_USERS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)


def predict(name: str, fields: Fields, device: Device, input: int, output: int, step_tokens: int = 2048) -> Prediction:
    """What the plan expects of a model on a device, its prompts and answers being of these lengths.

    Raises ModelRefused where the model cannot be built.
    """
    workload = Workload(max(1, input), max(1, output), step_tokens=step_tokens)
    serving = Serving(ModelCache(fields).case(Setup(device)), workload)
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
