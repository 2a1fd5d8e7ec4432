"""The part `trust` of JSON exports: what the intervals of predicted figures come from."""

from collections.abc import Mapping
from typing import Any

from ridgeline.price.device import Device
from ridgeline.price.device_basis import basis_of, describe_basis
from ridgeline.price.engine_profile import EngineProfile
from ridgeline.price.error_interval import LEVELS, ErrorInterval, Kind
from ridgeline.util.json_data import json_data


def trust_json(
    device: Device, engine: EngineProfile, intervals: Mapping[Kind, ErrorInterval], kind_of: Mapping[str, Kind]
) -> dict[str, Any]:
    """Return how well a case is known, and the factors on predicted times by kind of figure, as JSON data.

    Args:
        device: The device.
        engine: The engine.
        intervals: The interval of each kind of figure.
        kind_of: The kind of each figure of the export; only the intervals of these kinds are included.
    """
    known = next(iter(intervals.values())).known
    return {
        "engine": engine.name,
        "kernels": basis_of(device),
        "kernels_in_words": describe_basis(device),
        "known": known,
        "known_in_words": LEVELS[known],
        "intervals": {kind: json_data(interval) for kind, interval in intervals.items() if kind in kind_of.values()},
        "kind_of": dict(kind_of),
    }
