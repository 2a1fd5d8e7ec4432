"""The parsing of replica options that `simulate` and `serve` have in common."""

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ridgeline.cli.flags import given_flags, panel
from ridgeline.cli.options import parse_seconds
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.util.host import available_memory, cores

if TYPE_CHECKING:  # a simulation must not import the engine
    from ridgeline.engine.engine_settings import EngineSettings

MAX_REPLICAS = 1024
STORAGE = "2GB/s"
_EVERY, _CALM = "10s", "60s"
_LEAST_PERIOD = 1e-3  # seconds

_replicas = panel("Replicas")

_PAIR = re.compile(r"(\d+):(\d+)")


def pair(text: str, option: str) -> tuple[int, int]:
    """Return the two numbers of a text such as `1:2`.

    Raises:
        ValueError: If the text is malformed or a number is out of range. The message names the option.
    """
    match = _PAIR.fullmatch(text.strip())
    if match is None or not (1 <= int(match[1]) <= MAX_REPLICAS and 1 <= int(match[2]) <= MAX_REPLICAS):
        raise ValueError(f"{option} is {text!r}; write two numbers of replicas from 1 to {MAX_REPLICAS}, like 1:2")
    return int(match[1]), int(match[2])


def check_count(replicas: int) -> None:
    """Raise ValueError for a number of replicas that is out of range."""
    if not 1 <= replicas <= MAX_REPLICAS:
        raise ValueError(f"--replicas is {replicas}; it must be from 1 to {MAX_REPLICAS}")


def check_cores(engines: int, threads: int, ranks: int = 1) -> None:
    """Raise ValueError if this machine has fewer cores than its engines need.

    Args:
        engines: The number of engines.
        threads: The threads per process.
        ranks: The processes per engine.
    """
    processes, there, own = engines * ranks, cores(), threads * ranks
    if processes * threads <= there:
        return
    give = f"--threads {there // processes}, or fewer engines" if processes <= there else "fewer engines"
    raise ValueError(
        f"{engines} engines of {own} thread{'s' * (own > 1)} each need {engines * own} cores, but this machine has "
        f"{there}; give {give}"
    )


def split_memory(settings: "EngineSettings", engines: int) -> "EngineSettings":
    """Return the settings of each of several engines on this machine, with an equal share of the available memory.

    Settings that already state a memory limit are unchanged.
    """
    if settings.kv_bytes is None and settings.memory_share is None and settings.memory is None:
        return replace(settings, memory=available_memory() / engines)
    return settings


@dataclass(frozen=True, slots=True)
class ScalingFlags:
    """The options for autoscaling."""

    scale: str | None = _replicas(
        "Autoscale between a minimum and a maximum number of replicas, like 1:4.", metavar="A:B"
    )
    scale_at: int | None = _replicas("The number of running requests per replica that --scale aims at.")
    scale_every: str | None = _replicas(f"The time between two decisions of --scale; {_EVERY} by default.")
    scale_calm: str | None = _replicas(
        f"The time without a change before --scale removes a replica; {_CALM} by default."
    )
    storage: str | None = _replicas(
        {"simulate": f"The bandwidth at which a starting replica loads its weights; {STORAGE} by default."}
    )
    start_up: str | None = _replicas(
        {"simulate": "The time that a replica takes to start, without loading its weights, like 20s; 0 by default."}
    )

    def scaling(self, start_up: float = 0.0) -> Scaling | None:
        """Return the autoscaling that the options describe, or None without --scale.

        Args:
            start_up: The seconds that a new replica takes to start.

        Raises:
            ValueError: If an option is missing or malformed.
        """
        if self.scale is None:
            for option in given_flags(self):
                raise ValueError(f"{option} applies only with --scale; give both")
            return None
        if self.scale_at is None or self.scale_at < 1:
            raise ValueError("--scale needs --scale-at, the number of running requests to aim at per replica, like 32")
        least, most = pair(self.scale, "--scale")
        if least > most:
            raise ValueError(f"--scale is {self.scale!r}; write the smaller number first, like 1:8")
        period = parse_seconds(self.scale_every or _EVERY, "--scale-every")
        if period < _LEAST_PERIOD:
            raise ValueError(f"--scale-every is {self.scale_every!r}; give {_LEAST_PERIOD * 1e3:g}ms or more")
        seconds = (period, parse_seconds(self.scale_calm or _CALM, "--scale-calm"), start_up)
        return Scaling(least, most, self.scale_at, *(round(each * 1e9) for each in seconds))
