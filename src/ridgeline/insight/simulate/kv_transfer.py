"""Prompts and answers apart: keys and values of a prompt go over a link to where its answer is made."""

from dataclasses import replace

from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.replica_state import SimulatedRequest
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.plan.scenario import Scenario


def prompt_kv_bytes(case: Scenario, positions: int) -> float:
    """Of keys and values of so many positions, on all cards of a replica: of a window those that the next position
    sees.
    """
    kept = (spec.bytes_per_token * (positions - spec.first_seen(positions)) for spec in case.model.kv_specs)
    return sum(kept) * case.setup.devices


class KVLink:
    """What joins replicas: one request's keys and values go after another's."""

    def __init__(self, bandwidth: float) -> None:
        """Bytes a second."""
        self._bandwidth, self._free = bandwidth, 0

    def send(self, nbytes: float, now: int) -> int:
        """When so many bytes are there that are to go from now on."""
        self._free = max(self._free, now) + round(nbytes / self._bandwidth * 1e9)
        return self._free


class SimulatedKVTransfer:
    """The requests whose keys and values are under way, by their numbers."""

    def __init__(self, machine: Machine, bandwidth: float) -> None:
        """machine: a replica's. bandwidth: of the link, bytes a second."""
        self._case, self._link = machine.case, KVLink(bandwidth)
        self._sent: dict[int, tuple[TraceRequest, SimulatedRequest]] = {}
        self._count = 0

    def send(self, request: TraceRequest, live: SimulatedRequest, now: int) -> tuple[int, int]:
        """A prompt has its first token; when its keys and values are there, and under which number."""
        self._count += 1
        self._sent[self._count] = request, live
        return self._link.send(prompt_kv_bytes(self._case, request.input), now), self._count

    def received(self, number: int, now: int) -> tuple[TraceRequest, SimulatedRequest]:
        """What remains of a request once they are there: its first token, which has none yet, is one of its prompt."""
        request, live = self._sent.pop(number)
        return replace(request, at=now, input=request.input + 1, output=request.output - 1), live
