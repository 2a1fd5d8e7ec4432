"""The CSV export of a comparison (RFC 4180): a line per offer, with the figures of the JSON export, in SI units.

An empty field is a figure that is unknown or does not apply.
"""

import csv
import io
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ridgeline.price.plan.comparison import DeviceComparison
from ridgeline.price.plan.energy import joules_per_token
from ridgeline.price.plan.plan_export import comparison_json

_FIGURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "seller": ("seller",),
        "price_date": ("price.date",),
        "device": ("card",),
        "weights": ("weights",),
        "kv": ("kv",),
        "fits": ("fits",),
        "missing_bytes": ("missing_bytes",),
        "devices_per_replica": ("devices",),
        "replicas": ("fleet.replicas",),
        "max_users_per_replica": ("users",),
        "users_limited_by": ("limit",),
        "users_per_replica": ("load.users",),
        "ttft_seconds": ("load.ttft.expected",),
        "tpot_seconds": ("load.tpot.expected",),
        "ttft_margin": ("margins.ttft",),
        "tpot_margin": ("margins.tpot",),
        "tokens_per_second_per_user": ("load.tokens_per_second_per_user.expected",),
        "tokens_per_second": ("fleet.tokens_per_second", "tokens_per_second"),
        "requests_per_second": ("fleet.requests_per_second", "load.requests_per_second.expected"),
        "utilization": ("fleet.share",),
        "dollars_per_hour": ("fleet.dollars_per_hour", "dollars_per_hour"),
        "dollars_per_million_tokens": ("fleet.dollars_per_million", "dollars_per_million"),
        "kwh_per_million_tokens": ("fleet.kwh_per_million_tokens", "kwh_per_million_tokens"),
        "audio_hours_per_hour": ("sound.hours_per_hour",),
        "dollars_per_audio_hour": ("sound.dollars_per_hour",),
        "kernels": ("kernels",),
        "known": ("interval.known",),
        "time_factor_low": ("factors.low",),
        "time_factor_high": ("factors.high",),
        "measurements": ("interval.rows",),
        "sources": ("interval.sources",),
    }
)
"""The columns. Each has paths in the JSON of an offer; the first path that exists gives the figure."""

_JOB_FIGURES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"job_seconds": ("fleet.job.seconds",), "job_dollars": ("fleet.job.dollars",)}
)
"""The columns of batch jobs, at the end because they are newer."""

_CLASS_FIGURES: Mapping[str, tuple[str, ...]] = MappingProxyType({"traced_from": ("interval.traced_from",)})
"""The column on models that are traced from a class of another package."""

COLUMNS = ("choice", *_FIGURES, "joules_per_token", *_JOB_FIGURES, *_CLASS_FIGURES)
"""The names of the columns, in order. New ones are only added at the end.

`choice` is `cheapest` for the best deployment of a device, and `as stored` for the best of a seller in the formats of
the model's config, if that is another one.
"""


def comparison_csv(comparison: DeviceComparison) -> str:
    """Return the offers as CSV: per seller the best of each device, then the best in the stored formats.

    Devices that serve no user come last.
    """
    told = comparison_json(comparison)
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    first = 0
    for seller in told["sellers"]:
        own = told["cards"][first : first + seller["cards"]]
        first += seller["cards"]
        stored = seller["as_stored"]
        writer.writerows(_line("cheapest", card) for card in own)
        if stored is not None and stored not in own:
            writer.writerow(_line("as stored", stored))
    writer.writerows(_line("cheapest", card) for card in told["cards"][first:])
    return text.getvalue()


def _line(choice: str, offer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an offer; those of a demand are of all its replicas."""
    figures = {**_FIGURES, **_JOB_FIGURES, **_CLASS_FIGURES}
    found = {column: _written(_figure(offer, paths)) for column, paths in figures.items()}
    joules = joules_per_token(_figure(offer, _FIGURES["kwh_per_million_tokens"]))
    return {"choice": choice, **found, "joules_per_token": joules}


def _figure(offer: Mapping[str, Any], paths: tuple[str, ...]) -> Any:
    """Return the figure under the first path whose first part exists in the JSON of an offer; otherwise None."""
    for path in paths:
        first, *others = path.split(".")
        if offer[first] is None:
            continue
        value = offer[first]
        for name in others:
            value = None if value is None else value[name]
        return value
    return None


def _written(figure: Any) -> Any:
    """Return a figure as it is written; truth values are as in JSON."""
    return str(figure).lower() if isinstance(figure, bool) else figure
