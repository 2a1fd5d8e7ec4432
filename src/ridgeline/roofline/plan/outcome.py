"""Outcome: a case in the handful of figures by which cases are compared."""

from dataclasses import dataclass

from ridgeline.roofline.device import HourlyPrice
from ridgeline.roofline.plan.serving import Serving


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a case comes to, by expected times.

    users: the most at once, by memory, step and targets; limit: what stops one more (memory, step, ttft, tpot).

    Of the workload's batch, all asking at once, as in `Plan.prefill` and `Plan.decode`: ttft, until all have their
    first token; itl, a decode step of all. What stands beside it for another batch is `Serving.together` and
    `Serving.itl` of that batch, not the times of a Load, whose users ask at different moments, with the prefills of
    others between two tokens.

    linked: whether a link to other cards is known. dollars_per_hour: of all cards; price: of one, with date and source.

    Of `users` users under way: tokens_per_second and dollars_per_million, in all and of output; None where there is not
    one user.
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
    linked: bool
    dollars_per_hour: float | None
    price: HourlyPrice | None


def outcome_of(serving: Serving) -> Outcome:
    """The outcome of a case under its workload."""
    case, memory, capacity = serving.case, serving.memory, serving.capacity
    batch = serving.workload.batch
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
        serving.together(batch).expected,
        serving.itl(batch).expected,
        rate,
        None if rate is None else serving.dollars_per_million(rate),
        case.device.link is not None,
        case.setup.hourly,
        case.setup.price or case.device.price,
    )
