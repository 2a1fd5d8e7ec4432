"""The answer of a plan as a JSON object, with what a replica could do and what the demand takes under separate keys.

`capacity` is of one replica with the most users within the targets. `demand` is of all replicas that serve the load of
--users or --rate, and the simulated result if the plan has one. The keys next to them are older. Their users and rates
are those of the capacity, but their cost and energy are those of the demand, if there is one.
"""

from typing import Any

from ridgeline.price.error_interval import factors_on_cost, scaled
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.energy import joules_per_token
from ridgeline.price.plan.load_estimate import LoadEstimate
from ridgeline.price.plan.plan_audio import AudioWorkload
from ridgeline.util.json_data import json_select


def answer_json(plan: DeploymentPlan) -> dict[str, Any]:
    """Return the answer of a plan as JSON data."""
    load, users = plan.capacity.load, plan.capacity.users
    rates = json_select(load, "requests_per_second", "tokens_per_second")
    return {
        **json_select(plan, "memory.fits", "missing_bytes=memory.missing", "capacity.users"),
        "users_limited_by": plan.capacity.limit,
        **(rates if users else dict.fromkeys(rates)),
        **json_select(plan, "ttft=prefill.seconds", "itl=decode.seconds", "decode.limit"),
        "limits": {"prefill": plan.prefill.limit, "decode": plan.workload_decode.limit},
        **_cost(plan.dollars_per_million, plan.kwh_per_million_tokens),
        **json_select(plan, "job_seconds=job.seconds", "job_dollars=job.dollars", "replicas_as_predicted"),
        "sound": None if plan.audio is None else sound_json(plan.audio, load, plan.dollars_per_million),
        "intervals": _intervals(plan),
        "capacity": _capacity(plan),
        "demand": _demand(plan),
    }


def sound_json(sound: AudioWorkload, load: LoadEstimate, million: float | None) -> dict[str, Any]:
    """Return the hours of audio per hour for all users, and the price of one."""
    return {
        "window_seconds": sound.window,
        "hours_per_hour": sound.rate(load.tokens_per_second.expected),
        "dollars_per_hour": None if million is None else sound.per_hour(million),
    }


def _capacity(plan: DeploymentPlan) -> dict[str, Any] | None:
    """Return the most users of a replica within the targets, with their expected figures; None if it serves none."""
    load, outcome, around = plan.capacity.load, plan.outcome, plan.intervals["load"]
    if not plan.capacity.users or not plan.memory.fits:
        return None
    times = {"ttft": load.ttft, "tpot": load.tpot}
    rates = {"requests_per_second": load.requests_per_second, "tokens_per_second": load.tokens_per_second}
    costs = _cost(outcome.dollars_per_million, outcome.kwh_per_million_tokens)
    tokens = load.tokens_per_second
    factors = factors_on_cost(tokens.expected, around.around_rate(tokens.expected, tokens.floor))
    return {
        **json_select(plan, "capacity.users", "limited_by=capacity.limit"),
        **{name: figure.expected for name, figure in (times | rates).items()},
        **costs,
        "intervals": {name: around.around_rate(rate.expected, rate.floor) for name, rate in rates.items()}
        | {name: around.around_time(seconds.expected, seconds.floor) for name, seconds in times.items()}
        | {name: None if cost is None else scaled(cost, factors) for name, cost in costs.items()},
    }


def _demand(plan: DeploymentPlan) -> dict[str, Any] | None:
    """Return the replicas for the demand, with the expected figures of all of them; None without a demand."""
    fleet, queue, load = plan.fleet, plan.queue, plan.intervals["load"]
    if not plan.demand:
        return None
    if fleet is None:
        return {"served": False}
    first, step = fleet.load.ttft, fleet.load.tpot
    if queue is not None:
        times = {"ttft": queue.ttft, "tpot": queue.tpot}
        around = {"ttft": queue.ttft_interval, "tpot": queue.tpot_interval}
    else:
        times = {"ttft": first.expected, "tpot": step.expected}
        around = {
            "ttft": load.around_time(first.expected, first.floor),
            "tpot": load.around_time(step.expected, step.floor),
        }
    costs = _cost(plan.dollars_per_million, plan.kwh_per_million_tokens)
    return {
        "served": queue is None or not queue.missed,
        "missed": [] if queue is None else list(queue.missed),
        "simulated": queue is not None,
        **json_select(fleet, "replicas", "cards=devices", "capacity_share=share"),
        "users_per_replica": plan.users_at_a_time,
        **times,
        **json_select(fleet, "requests_per_second", "tokens_per_second", "dollars_per_hour"),
        **costs,
        "intervals": {
            "tokens_per_second": plan.tokens_interval,
            **around,
            **{name: None if cost is None else scaled(cost, plan.cost_factors) for name, cost in costs.items()},
        },
    }


def _cost(million: float | None, kwh: float | None) -> dict[str, float | None]:
    return {
        "dollars_per_million_tokens": million,
        "kwh_per_million_tokens": kwh,
        "joules_per_token": joules_per_token(kwh),
    }


def _intervals(plan: DeploymentPlan) -> dict[str, tuple[float, float] | None]:
    """Return the interval of each figure of the answer that has one, in the figure's unit."""
    load, million, found = plan.capacity.load, plan.dollars_per_million, plan.intervals
    kwh, job = plan.kwh_per_million_tokens, plan.job
    rates = {"requests_per_second": load.requests_per_second, "tokens_per_second": load.tokens_per_second}
    serves, first, step = bool(plan.capacity.users), plan.prefill.seconds, plan.decode.seconds
    around = found["load"]
    return {
        "users": plan.users_interval,
        **{name: around.around_rate(rate.expected, rate.floor) if serves else None for name, rate in rates.items()},
        "ttft": found["prefill"].around_time(first.expected, first.floor),
        "itl": found["decode"].around_time(step.expected, step.floor),
        "dollars_per_million_tokens": None if million is None else scaled(million, plan.cost_factors),
        "kwh_per_million_tokens": None if kwh is None else scaled(kwh, plan.cost_factors),
        "job_seconds": None if job is None else job.seconds_between(around),
        "job_dollars": None if job is None or job.dollars is None else scaled(job.dollars, plan.cost_factors),
    }
