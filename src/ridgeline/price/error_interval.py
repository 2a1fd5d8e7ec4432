"""The interval in which eight of ten measurements lie, around a predicted figure (error_intervals.toml).

`benchmarks/accuracy.py` writes the file from published measurements of test sources, and from steps that were measured
on calibrated machines. No constant of a price comes from these rows, except that the memory overhead of engines was
chosen with the rows of `memory` in view. Figures under load consist of prefills and decodes, and may be as far off as
either of the two. An interval is asymmetric: most systems are slower than predicted. It ends at
the physical floor of a time, or at the ceiling of a rate.

No row is of a model that is traced from its class (`Model.traced_from`). `intervals_of_class` widens the interval for
such a model, without a constant of its own.
"""

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources
from typing import Literal

from ridgeline.core.ops.number_formats import WEIGHT_FORMATS
from ridgeline.price.device import Device
from ridgeline.price.engine_profile import OWN_ENGINE, UNKNOWN_ENGINE, EngineProfile, load_engine

Kind = Literal["decode", "prefill", "static", "load", "memory", "image"]
KINDS: dict[Kind, str] = {
    "decode": "a decode step of a batch",
    "prefill": "the prefill of prompts",
    "static": "a batch from its first prompt token to its last output token",
    "load": "prompts and decodes together: first tokens, tokens and throughput under load, and their cost",
    "memory": "weights and the pages of the KV cache",
    "image": "an image or a video: a denoising step or a pass of the model",
}
"""The kinds of predicted figures, and what each covers."""

Known = Literal["measured", "timed", "family", "unknown"]
LEVELS: dict[Known, str] = {
    "measured": "calibrated on this machine, with Ridgeline's own kernels",
    "timed": "kernel times of this device in this format, and a profile of this engine",
    "family": "kernel times of a device of the same family, of another format, or of another engine on this device",
    "unknown": "no kernel times of this device or its family, or no profile of this engine",
}
"""How well a device, an engine and a format are known, from best to worst."""


UNBOUNDED = math.inf
"""The upper end of an interval that has none, or the ceiling of a rate if it is unknown."""

_ACTIVATIONS = {each.name: each.activations for each in WEIGHT_FORMATS}
"""The format of the activations in a product with each weight format; None if the weights are dequantised instead."""


@dataclass(frozen=True, slots=True)
class ErrorInterval:
    """The factors on a predicted time between which eight of ten measurements lie."""

    kind: Kind
    known: Known
    low: float
    high: float
    rows: int
    """The number of measurements that the factors come from."""
    sources: int
    """The number of independent sources of these measurements; each has the same weight."""
    pooled: str = ""
    """A description of what was taken together because the level has too few sources of its own; "" if they suffice."""
    development: bool = False
    """Whether the measurements were seen while the prices were developed, so that the interval may be too narrow."""
    traced_from: str = ""
    """The package whose class defines the model, although no measurement is of one; "" for a model of a family."""

    def around_time(self, seconds: float, floor: float = 0.0) -> tuple[float, float]:  # also in interval_formulas.js
        """Return the interval of a time, or of a cost, which is proportional to a time.

        Args:
            seconds: The predicted time.
            floor: The least time that is physically possible; 0 if it is unknown.
        """
        return at_least_floor(seconds * self.low, seconds, floor), seconds * self.high

    def around_rate(
        self, rate: float, ceiling: float = UNBOUNDED
    ) -> tuple[float, float]:  # also in interval_formulas.js
        """Return the interval of a rate, which is low where the time is high.

        Args:
            rate: The predicted rate.
            ceiling: The highest rate that is physically possible; infinite if it is unknown.
        """
        return rate / self.high, min(rate / self.low, max(rate, ceiling))

    @property
    def measurements(self) -> str:  # also in interval_formulas.js
        """The measurements as text: `26 measurements of 6 sources`, with what was taken together to have enough."""
        seen = ", seen in development" if self.development else ""
        together = f" {self.pooled}" if self.pooled else ""
        none = f", none of a model traced from {self.traced_from}" if self.traced_from else ""
        return f"{self.rows} measurements of {self.sources} sources{together}{seen}{none}"


def at_least_floor(seconds: float, predicted: float, floor: float) -> float:  # also in interval_formulas.js
    """Return a shorter time than predicted, or the physical floor if that is longer.

    Args:
        seconds: The time.
        predicted: The predicted time, which an interval always holds.
        floor: The least time that is physically possible.
    """
    return max(seconds, min(predicted, floor))


def scaled(value: float, factors: tuple[float, float]) -> tuple[float, float]:
    """Return a value multiplied by both factors of an interval."""
    return value * factors[0], value * factors[1]


def factors_on_cost(rate: float, interval: tuple[float, float]) -> tuple[float, float]:
    """Return the interval of a rate as factors on the cost or the energy of a token, which falls as the rate rises."""
    low, high = interval
    return rate / high, rate / low


@cache
def error_intervals() -> dict[tuple[str, str], ErrorInterval]:
    """Return the intervals by kind and level of knowledge."""
    text = resources.files("ridgeline.price").joinpath("error_intervals.toml").read_text(encoding="utf-8")
    found = [ErrorInterval(**row) for row in tomllib.loads(text)["interval"]]
    return {(each.kind, each.known): each for each in found}


def intervals_for(device: Device, engine: EngineProfile, weights: str) -> dict[Kind, ErrorInterval]:
    """Return the interval of each kind of figure for a device, an engine and a weight format (see `known_of`)."""
    known = known_of(device, engine, weights)
    return {kind: error_intervals()[kind, known] for kind in KINDS}


def own_intervals(device: Device, weights: str) -> dict[Kind, ErrorInterval]:
    """Return the interval of each kind of figure for Ridgeline's own engine on a device, with a weight format."""
    return intervals_for(device, load_engine(OWN_ENGINE), weights)


def intervals_of_class(
    found: Mapping[Kind, ErrorInterval], traced_from: str, fused: Mapping[Kind, float]
) -> dict[Kind, ErrorInterval]:
    """Return the intervals of a model that is traced from its class, from those of a family's model.

    They hold the intervals of another engine on the device, because the model is not among those that were measured.
    Predicted figures count operations that are not modelled in full. An engine may fuse most of them into other
    kernels. So at the lower end the bytes of these count as zero.

    Args:
        found: The intervals for the device, the engine and the weight format.
        traced_from: The package with the class.
        fused: The share of bytes in operations that are not modelled and may be fused, by kind of figure.
    """
    widened = {}
    for kind, own in found.items():
        other = error_intervals()[kind, known_of_class(own.known)]
        low = low_of_class(own.low, other.low, fused.get(kind, 0.0))
        widened[kind] = replace(other, low=low, high=max(own.high, other.high), traced_from=traced_from)
    return widened


def known_of_class(known: Known) -> Known:  # also in interval_formulas.js
    """Return how well a case is known with a model that is traced from its class, from how well it is otherwise."""
    return "family" if known in ("measured", "timed") else known


def low_of_class(own: float, other: float, fused: float) -> float:  # also in interval_formulas.js
    """Return the lower factor on the times of a model that is traced from its class.

    Args:
        own: The lower factor for a family's model.
        other: The lower factor of the level `known_of_class`.
        fused: The share of bytes in operations that are not modelled and may be fused into other kernels.
    """
    return min(own, other) * (1 - fused)


def known_of(device: Device, engine: EngineProfile, weights: str) -> Known:  # also in interval_formulas.js
    """Return how well a device, an engine and a weight format are known together.

    Args:
        device: The device.
        engine: The engine.
        weights: The name of the weight format; that of the model's dtype if the weights are not quantized.
    """
    if device.calibrated:
        return "measured" if engine.name == OWN_ENGINE else "family"
    if device.basis not in ("own", "alike") or engine.name == UNKNOWN_ENGINE:
        return "unknown"
    return "timed" if device.basis == "own" and _times_format(device, engine, weights) else "family"


def _times_format(device: Device, engine: EngineProfile, weights: str) -> bool:  # also in interval_formulas.js
    """Return whether kernels of a weight format were timed: products on this device, or the engine's dequantization."""
    if weights in ("fp16", "bf16"):
        return True
    if weights == "fp32":
        return "linear/fp32" in device.efficiency
    if weights in _ACTIVATIONS and _ACTIVATIONS[weights] is not None:
        return f"linear/{_ACTIVATIONS[weights]}" in device.efficiency
    return len([name for name in engine.dequantise if weights.startswith(name)]) > 0
