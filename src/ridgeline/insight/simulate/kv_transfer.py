"""The KV transfer of disaggregated prefill: a prompt's KV cache crosses a link to its decode replica."""

from dataclasses import replace

from ridgeline.insight.simulate.replica import Machine
from ridgeline.insight.simulate.replica_state import SimulatedRequest
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.plan.scenario import Scenario


def prompt_kv_bytes(case: Scenario, positions: int) -> float:
    """Return the KV-cache bytes of a prompt of `positions` tokens, over all GPUs of a replica.

    Sliding-window layers count only the positions that the next token attends to.
    """
    kept = (spec.bytes_per_token * (positions - spec.first_seen(positions)) for spec in case.model.kv_specs)
    return sum(kept) * case.setup.devices


class KVLink:
    """A link between replicas that transfers one request's KV cache after another."""

    def __init__(self, bandwidth: float) -> None:
        """Create an idle link with a bandwidth in bytes per second."""
        self._bandwidth, self._free = bandwidth, 0

    def send(self, nbytes: float, now: int) -> int:
        """Queue a transfer at time `now` and return when it completes, in nanoseconds."""
        self._free = max(self._free, now) + round(nbytes / self._bandwidth * 1e9)
        return self._free


class SimulatedKVTransfer:
    """The requests whose KV cache is on its way from a prefill to a decode replica, by transfer number."""

    def __init__(self, machine: Machine, bandwidth: float) -> None:
        """Create the transfer state for replicas of a machine, over a link of `bandwidth` bytes per second."""
        self._case, self._link = machine.case, KVLink(bandwidth)
        self._sent: dict[int, tuple[TraceRequest, SimulatedRequest]] = {}
        self._count = 0

    def send(self, request: TraceRequest, live: SimulatedRequest, now: int) -> tuple[int, int]:
        """Start the KV transfer of a request that has its first token; return its completion time and number."""
        self._count += 1
        self._sent[self._count] = request, live
        return self._link.send(prompt_kv_bytes(self._case, request.input), now), self._count

    def received(self, number: int, now: int) -> tuple[TraceRequest, SimulatedRequest]:
        """Return the request of a completed transfer, as the decode replica sees it.

        The first token, which has no KV entry yet, becomes part of its prompt.
        """
        request, live = self._sent.pop(number)
        return replace(request, at=now, input=request.input + 1, output=request.output - 1), live
