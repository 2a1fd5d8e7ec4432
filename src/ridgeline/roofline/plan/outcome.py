"""Outcome: a case in the handful of figures by which cases are compared."""

from dataclasses import dataclass

from ridgeline.roofline.plan.serving import Serving


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case comes to, by expected times.

    users: the most at once, by memory, step and targets; limit: what stops one more (memory, step, ttft, tpot). itl:
    seconds of a decode step at the workload's batch. tokens_per_second, dollars_per_million: in all and of output, at
    `users`; None where there is not one.
    """

    card: str
    devices: int
    weights: str
    kv: str
    fits: bool
    missing_bytes: float
    users: int
    limit: str
    ttft: float
    itl: float
    tokens_per_second: float | None
    dollars_per_million: float | None


def outcome_of(serving: Serving) -> Outcome:
    """The outcome of a case under its workload."""
    case, memory, capacity = serving.case, serving.memory, serving.capacity
    alone = serving.load(serving.workload.batch)
    rate = capacity.load.tokens_per_second.expected if capacity.users else None
    return Outcome(
        case.device.name,
        case.setup.devices,
        case.weights,
        case.kv,
        memory.fits,
        memory.missing,
        capacity.users,
        capacity.limit,
        serving.prefill.expected,
        alone.itl.expected,
        rate,
        None if rate is None else serving.dollars_per_million(rate),
    )
