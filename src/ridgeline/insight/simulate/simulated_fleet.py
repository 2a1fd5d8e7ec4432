"""A fleet: the replicas under one stream of requests, how those are dealt, and what comes and goes."""

from dataclasses import dataclass

from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.serving_overhead import ApiServerOverhead
from ridgeline.insight.traffic.scaling import Scaling


@dataclass(frozen=True, slots=True)
class PrefillDecodeSplit:
    """Prompts and answers apart: the first `prompts` replicas run prompts up to their first token, the others go on.

    bandwidth: bytes a second of the one link over which all keys and values go, one request after the other.
    """

    prompts: int
    bandwidth: float


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """Replicas of the machine that is asked about, and others beside them.

    router, age, seed: of insight/traffic/routers.py, which sees what replicas published at the last of the moments that
    are `age` nanoseconds apart (0: what is so now). others: replicas on other cards. With a scaling, `replicas` are
    those at the start. front: the core before all of them, through which requests and tokens go; None for one that
    takes no time.
    """

    replicas: int = 1
    router: str = "two"
    age: int = 0
    seed: int = 0
    others: tuple[Machine, ...] = ()
    split: PrefillDecodeSplit | None = None
    scaling: Scaling | None = None
    front: ApiServerOverhead | None = None

    def machines(self, machine: Machine) -> tuple[Machine, ...]:
        """Those at the start, a machine a replica."""
        return (machine,) * self.replicas + self.others

    @property
    def size(self) -> int:
        """Replicas at the start."""
        return self.replicas + len(self.others)

    @property
    def equal(self) -> bool:
        """Whether each has its share of the same work all the time, as the load law wants it."""
        return not (self.others or self.split or self.scaling)


ALONE = SimulatedFleet()
