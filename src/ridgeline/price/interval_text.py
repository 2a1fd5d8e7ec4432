"""Intervals of predicted figures as text, such as `[9.40 .. 13.6 ms]`."""

from ridgeline.price.device import Device
from ridgeline.price.device_basis import describe_basis
from ridgeline.price.error_interval import LEVELS, UNBOUNDED, ErrorInterval, scaled
from ridgeline.util.document.humanize import say_duration, say_seconds, three_digits


def time_interval(interval: ErrorInterval, seconds: float, floor: float = 0.0) -> str:  # also in interval_formulas.js
    """Return the interval of a time, which does not reach below its physical floor: `[9.40 .. 13.6 ms]`."""
    low, high = interval.around_time(seconds, floor)
    return times_between(low, high)


def rate_interval(
    interval: ErrorInterval, rate: float, ceiling: float = UNBOUNDED
) -> str:  # also in interval_formulas.js
    """Return the interval of a rate, without its unit, which does not exceed its ceiling: `[73.5 .. 106]`."""
    low, high = interval.around_rate(rate, ceiling)
    return rates_between(low, high)


def cost_interval(interval: ErrorInterval, dollars: float, floor: float = 0.0) -> str:  # also in interval_formulas.js
    """Return the interval of a cost, which does not reach below that of the physical floor: `[$0.31 .. $0.52]`."""
    low, high = interval.around_time(dollars, floor)
    return costs_between(low, high)


def cost_with(dollars: float, factors: tuple[float, float]) -> str:
    """Return a cost with its interval, whose ends are factors on the cost: `$0.48 [$0.31 .. $0.90]`."""
    return f"${three_digits(dollars)} {costs_between(*scaled(dollars, factors))}"


def times_between(low: float, high: float) -> str:  # also in interval_formulas.js
    """Return two bounds of a time: `[9.40 .. 13.6 ms]`, or without an upper bound `[9.40 ms .. unbounded]`."""
    return _between(say_seconds(low), say_seconds(high) if high < UNBOUNDED else "unbounded")


def rates_between(low: float, high: float) -> str:  # also in interval_formulas.js
    """Return two bounds of a rate: `[73.5 .. 106]`."""
    return _between(three_digits(low), three_digits(high))


def costs_between(low: float, high: float) -> str:  # also in interval_formulas.js
    """Return two bounds of a cost: `[$0.31 .. $0.52]`."""
    return _between(f"${three_digits(low)}", f"${three_digits(high)}")


def factors_between(low: float, high: float) -> str:
    """Return the two factors of an interval: `x 0.70 to x 2.10`."""
    return f"x {three_digits(low)} to x {three_digits(high)}"


def durations_between(low: float, high: float) -> str:
    """Return two bounds of a duration in seconds: `[4.40 .. 34.2 h]`."""
    return _between(say_duration(low), say_duration(high))


def describe_factors(name: str, interval: ErrorInterval) -> str:
    """Return a sentence on all times of a kind: `under load x 0.70 to x 2.10 of predicted times (40 ...)`."""
    return f"{name} {factors_between(interval.low, interval.high)} of predicted times ({interval.measurements})"


def describe_interval(name: str, interval: ErrorInterval, seconds: float, floor: float = 0.0) -> str:
    """Return a sentence on a time: `decode 11.1 ms, 9.40 to 13.6 ms in 8 of 10 cases like this one (26 ...)`."""
    low, high = map(say_seconds, interval.around_time(seconds, floor))
    return (
        f"{name} {say_seconds(seconds)}, {_short(low, high)} to {high} in 8 of 10 cases like this one "
        f"({interval.measurements})"
    )


def describe_cases(interval: ErrorInterval, device: Device) -> str:
    """Return what `cases like this one` are: how well device, engine and format are known, and by which kernels."""
    origin = f"a model traced from {interval.traced_from}; " if interval.traced_from else ""
    known = f"cases like this one: {origin}{LEVELS[interval.known]}"
    return known if interval.known in ("measured", "timed") else f"{known}; {describe_basis(device)}"


def _between(low: str, high: str) -> str:  # also in interval_formulas.js
    return f"[{_short(low, high)} .. {high}]"


def _short(low: str, high: str) -> str:  # also in interval_formulas.js
    """Return the lower end without its unit if the upper end has the same unit."""
    number, space, unit = low.rpartition(" ")
    return number if space and unit == high.rpartition(" ")[2] else low
