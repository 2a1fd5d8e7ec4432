"""The errors of predictions compared with published measurements, by device, engine and metric (accuracy.toml).

`benchmarks/accuracy.py` writes the file from the measurements in `benchmarks/measured`. The `trust` line of a plan is
based on it.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

METRICS: Mapping[str, str] = {
    "decode": "a decode step of a batch",
    "prefill": "the prefill of a batch",
    "static": "a batch from its first prompt token to its last",
    "serving": "first tokens, tokens and throughput under load",
    "tp8": "any of these on 8 devices",
    "memory": "weights and the pages of the KV cache",
    "kernel": "single operations",
    "picture": "an image or a video: a denoising step or a pass of the model",
}
"""The metrics of the accuracy report and what each covers; a measurement counts in exactly one."""

NEAR = 0.2
"""The relative error up to which a prediction counts as close to the measurement."""


@dataclass(frozen=True, slots=True)
class AccuracyRow:
    """The errors of the predictions of one metric on one device under one engine.

    An error is expected / measured - 1.
    """

    card: str
    engine: str
    """The name of an engine profile; "" for measurements of single kernels."""
    metric: str
    """The metric, a key of `METRICS`."""
    rows: int
    """The number of published measurements that predictions were compared with."""
    within: int
    """The number of measurements whose prediction had a relative error of at most `NEAR`."""
    median: float
    """The median of the absolute prediction errors."""
    worst: float
    """The prediction error of the largest magnitude, with its sign."""


@cache
def accuracy_rows() -> tuple[AccuracyRow, ...]:
    """Return the prediction errors of all devices, engines and metrics, from accuracy.toml."""
    text = resources.files("ridgeline.price").joinpath("accuracy.toml").read_text(encoding="utf-8")
    return tuple(AccuracyRow(**row) for row in tomllib.loads(text)["row"])
