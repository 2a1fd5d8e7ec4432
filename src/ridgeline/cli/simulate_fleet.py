"""The replica options of `ridgeline simulate`: number, devices, router, autoscaling and disaggregation."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from ridgeline.cli.flags import panel
from ridgeline.cli.options import device_named, parse_seconds
from ridgeline.cli.replica_options import MAX_REPLICAS, STORAGE, ScalingFlags, check_count, pair
from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.simulated_fleet import PrefillDecodeSplit, SimulatedFleet
from ridgeline.insight.traffic.routers import BLIND, router_named
from ridgeline.insight.traffic.scaling import Scaling
from ridgeline.price.device import Device
from ridgeline.price.plan.scenario import Scenario
from ridgeline.util.times import parse_time

_fleet = panel("Replicas")

_COUNTED = re.compile(r"(?:(\d+)x)?(\S+)")
_BANDWIDTH = re.compile(r"(\d+(?:\.\d+)?)\s*(GB|MB|Gb|Mb)/s")
_BYTES = {"GB": 1e9, "MB": 1e6, "Gb": 1e9 / 8, "Mb": 1e6 / 8}
_SLOWEST = 1e6  # bytes per second


@dataclass(frozen=True, slots=True)
class FleetFlags:
    """The options for the number of replicas, their devices and the router."""

    replicas: int = _fleet("The number of replicas of the model, each on --devices devices.", default=1)
    also: str | None = _fleet(
        "Further replicas on other devices, like a100-sxm or 2xl40s,a10.", metavar="[N]xDEVICE,..."
    )
    router: str | None = _fleet(
        "How requests are assigned to replicas: two (the less loaded of two random ones; the default), least, "
        "round-robin, random, or prefix (the one that has the prompt's first block, unless it is busy)."
    )
    signal_age: str | None = _fleet(
        "The age of the load figures that the router sees, like 50ms (the default); 0s means always current."
    )
    split: str | None = _fleet(
        "Disaggregated prefill and decode: the number of replicas for each, like 1:1, connected by --link. The same "
        "devices without the split are simulated for comparison.",
        metavar="P:D",
    )
    link: str | None = _fleet(
        "The bandwidth of the link that carries the KV cache, one request after the other, like 450GB/s or 25Gb/s."
    )
    autoscaling: ScalingFlags = ScalingFlags()

    def fleet(
        self, case: Scenario, machine: Callable[[Scenario], Machine], on: Callable[[Device], Scenario], seed: int
    ) -> SimulatedFleet:
        """Return the simulated fleet of replicas that the options describe.

        Args:
            case: The scenario of one replica.
            machine: A function that returns the simulated engine for a scenario.
            on: A function that returns the scenario of the same model on another device.
            seed: The seed of the router.

        Raises:
            ValueError: If the options are invalid or cannot be combined.
        """
        split, scaling = self._split(case), self._scaling(case)
        others = tuple(machine(on(device)) for device in self._also())
        count = sum(pair(self.split, "--split")) if self.split is not None else self.replicas
        count = scaling.least if scaling is not None else count
        check_count(self.replicas)
        if count + len(others) > MAX_REPLICAS:
            raise ValueError(f"{count + len(others):,} replicas in total are too many; give at most {MAX_REPLICAS:,}")
        name, text = self.router or "two", self.signal_age or "50ms"
        router_named(name, seed)
        if name == "prefix" and scaling is not None:
            raise ValueError(
                "--router prefix depends on a fixed set of replicas, which --scale changes; give another --router"
            )
        age = 0 if text == "0" else parse_time(text)
        if age is None:
            raise ValueError(f"--signal-age is {text!r}; write a time with its unit, like 50ms, or 0")
        return SimulatedFleet(count, name, age, seed, others, split, scaling)

    def check_router(self, *, other_counts: bool) -> None:
        """Raise ValueError for router options that have no effect.

        These are any for a single replica, and --signal-age for a router that uses no load figures.

        Args:
            other_counts: Whether other numbers of replicas will be tried.
        """
        if not (self.router or self.signal_age):
            return
        apart = max(pair(self.split, "--split")) if self.split is not None else 1
        if self.replicas == apart == 1 and not (self.also or self.autoscaling.scale or other_counts):
            raise ValueError("--router and --signal-age need --replicas 2 or more; leave them out")
        if self.signal_age is not None and self.router in BLIND:
            raise ValueError(f"--router {self.router} uses no load figures; leave out --signal-age")

    def _also(self) -> list[Device]:
        found = []
        for part in () if self.also is None else self.also.split(","):
            match = _COUNTED.fullmatch(part.strip())
            count = int(match[1] or 1) if match is not None else 0
            if match is None or not 1 <= count <= MAX_REPLICAS:
                raise ValueError(
                    f"--also is {self.also!r}; write devices with the number of each, like 2xl40s,a100-sxm"
                )
            found += [device_named(match[2])] * count
        return found

    def _split(self, case: Scenario) -> PrefillDecodeSplit | None:
        if (self.split is None) != (self.link is None):
            raise ValueError("--split transfers the KV cache over --link, like 450GB/s; give both or neither")
        if self.split is None or self.link is None:
            return None
        for name, given in (("also", self.also), ("scale", self.autoscaling.scale)):
            if given is not None:
                raise ValueError(
                    f"--{name} needs replicas that run prefill and decode, but --split separates the two; leave one of "
                    "them out"
                )
        if self.replicas != 1:
            raise ValueError("--split sets the number of replicas; leave out --replicas")
        prompts, _ = pair(self.split, "--split")
        if any(spec.is_state for spec in case.model.kv_specs):
            raise ValueError(
                "--split transfers KV pages, but the model keeps a recurrent state, which is not in pages; leave out "
                "--split"
            )
        return PrefillDecodeSplit(prompts, _bandwidth(self.link, "--link"))

    def _scaling(self, case: Scenario) -> Scaling | None:
        flags = self.autoscaling
        if flags.scale is None:
            return flags.scaling()
        if self.replicas != 1 or self.also is not None:
            raise ValueError("--scale sets the number of replicas; leave out --replicas and --also")
        reading = case.price.weights_on(case.device) * case.setup.devices
        reading /= _bandwidth(flags.storage or STORAGE, "--storage")
        beside = 0.0 if flags.start_up is None else parse_seconds(flags.start_up, "--start-up")
        return flags.scaling(reading + beside)


def _bandwidth(text: str, option: str) -> float:
    """Return the bytes per second of a text such as `450GB/s` or `25Gb/s`.

    Raises:
        ValueError: If the text is malformed. The message names the option.
    """
    match = _BANDWIDTH.fullmatch(text.strip())
    bandwidth = 0.0 if match is None else float(match[1]) * _BYTES[match[2]]
    if not _SLOWEST <= bandwidth < math.inf:
        raise ValueError(f"{option} is {text!r}; write 1MB/s or more, like 450GB/s or 25Gb/s")
    return bandwidth
