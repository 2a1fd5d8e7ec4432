"""A simulated fleet: the replicas that share one stream of requests, with their router and autoscaler."""

from dataclasses import dataclass

from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.serving_overhead import ApiServerOverhead
from ridgeline.insight.traffic.scaling import Scaling


@dataclass(frozen=True, slots=True)
class PrefillDecodeSplit:
    """A disaggregated fleet: prefill replicas run prompts up to the first token, the others decode."""

    prompts: int
    """The number of prefill replicas."""
    bandwidth: float
    """The bytes per second of the one link that transfers all KV caches, one request after another."""


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """The replicas of a simulation and how requests are distributed over them."""

    replicas: int = 1
    """The number of replicas of the main machine; with autoscaling, the number at the start."""
    router: str = "two"
    """The name of a router in insight/traffic/routers.py."""
    age: int = 0
    """The nanoseconds between two publications of the replicas' load to the router; 0 for always current."""
    seed: int = 0
    """The seed of the router's random choices."""
    others: tuple[Machine, ...] = ()
    """The machines of replicas on other GPUs."""
    split: PrefillDecodeSplit | None = None
    scaling: Scaling | None = None
    api_server: ApiServerOverhead | None = None
    """The API server core that all requests and tokens pass through; None if it takes no time."""

    def machines(self, machine: Machine) -> tuple[Machine, ...]:
        """Return the machine of each replica at the start."""
        return (machine,) * self.replicas + self.others

    @property
    def size(self) -> int:
        """The number of replicas at the start."""
        return self.replicas + len(self.others)

    @property
    def equal(self) -> bool:
        """Whether all replicas do an equal share of the same work all the time, as the load law assumes."""
        return not (self.others or self.split or self.scaling)


ALONE = SimulatedFleet()
