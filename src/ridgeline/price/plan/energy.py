"""The energy of output tokens at the predicted rate, if the devices draw their power limit all the time.

The devices count with their board power limit (`Device.watts`) for the whole time, whether they compute or wait. Host,
cooling and losses of the power supply are not in it.
"""

from ridgeline.price.device import Device
from ridgeline.price.error_interval import scaled
from ridgeline.price.interval_text import rates_between
from ridgeline.price.plan.plan_audio import AudioWorkload
from ridgeline.util.document.humanize import digits, three_digits

ASSUMED = "an upper bound: all devices draw their power limit, and the rest of the machine is not counted"
"""The assumption behind the energy of a comparison."""

_JOULES_PER_KWH, _MILLION = 3.6e6, 1e6


def kwh_per_million(watts: float | None, tokens_per_second: float | None) -> float | None:
    """Return the most kWh that a million output tokens take, prompts included.

    Args:
        watts: The power limit of all devices together; None if it is unknown.
        tokens_per_second: The output tokens per second of all devices; None if they serve no user.

    Returns:
        The kWh, or None if one of the arguments is unknown.
    """
    if watts is None or tokens_per_second is None:
        return None
    return watts / tokens_per_second * _MILLION / _JOULES_PER_KWH


def joules_per_token(kwh_per_million_tokens: float | None) -> float | None:
    """Return the most joules per output token for the kWh of a million; None if those are unknown."""
    return None if kwh_per_million_tokens is None else kwh_per_million_tokens * _JOULES_PER_KWH / _MILLION


def watt_hours_cell(kwh: float) -> str:
    """Return kWh as Wh for a narrow column, with two digits, which is more than their accuracy: `19`, `1.1`, `0.08`."""
    return digits(1000 * kwh, 2 if kwh >= 1e-4 else 1)


def describe_energy(
    kwh_per_million_tokens: float, device: Device, factors: tuple[float, float], sound: AudioWorkload | None = None
) -> str:
    """Return the energy of a million tokens, or of an hour of audio: `at full board power 0.19 [0.12 .. 0.90] kWh`.

    For tokens, the joules per token follow in parentheses. `factors` are the ends of the interval, as multiples of the
    energy.
    """
    limit = "TDP" if device.kind == "cpu" else "board power"
    kwh = kwh_per_million_tokens if sound is None else sound.per_hour(kwh_per_million_tokens)
    around = rates_between(*scaled(kwh, factors))
    text = f"at full {limit} {three_digits(kwh)} {around} kWh"
    if sound is not None:
        return text
    return f"{text} ({three_digits(joules_per_token(kwh) or 0.0)} J per token)"
