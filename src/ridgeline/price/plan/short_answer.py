"""The summary of a plan in five lines without technical terms: fits, users, speed, limit and cost."""

from collections.abc import Iterator

from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.plan_answer import (
    around_users,
    describe_demand,
    describe_job,
    describe_target,
    stops,
    tokens_each,
    total_tokens,
)
from ridgeline.price.plan.plan_audio import describe_cost
from ridgeline.price.plan.plan_text import (
    ROOFS,
    describe_users,
    lacking,
    on_each_replica,
    rate_with,
    scarcest,
    time_with,
)
from ridgeline.price.plan.scenario import PlanWorkload
from ridgeline.util.document.humanize import gib, say_gib


def short_answer(plan: DeploymentPlan) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line of a plan's summary. `plan_answer.py` states the same in detail."""
    yield "fits", _fits(plan)
    if plan.demand:
        yield "users", describe_demand(plan)
    elif plan.memory.fits:
        yield "users", _users(plan)
    yield "speed", _speed(plan)
    yield "limit", _limit(plan)
    yield "cost", _cost(plan)


def _fits(plan: DeploymentPlan) -> str:
    memory = plan.memory
    if not memory.fits:
        return f"NO: {lacking(plan)}"
    each = " on each device" if plan.case.setup.devices > 1 else ""
    return f"yes: {say_gib(gib(memory.weights))} of weights, {say_gib(gib(memory.left))} left for keys and values{each}"


def _users(plan: DeploymentPlan) -> str:
    if not plan.capacity.users:
        return f"none: {stops(plan)}"
    return f"{plan.capacity.users:,}{around_users(plan)} concurrent{_within(plan.workload)}"


def _within(workload: PlanWorkload) -> str:
    """Return the latency targets, such as `: the first token within 1 s on average, the next ones every 50 ms`."""
    first = f"the first token within {describe_target(workload.ttft)} on average" if workload.ttft else ""
    later = f"the next ones every {describe_target(workload.tpot)}" if workload.tpot else ""
    targets = ", ".join(filter(None, (first, later)))
    return f": {targets}" if targets else ""


def _speed(plan: DeploymentPlan) -> str:
    load, batch = plan.reported_load, plan.workload.batch
    who = "a single user" if batch == 1 else f"{batch:,} requests at once"
    each = " each" if batch > 1 else ""
    pace = rate_with(plan.intervals["decode"], plan.decode.seconds.per_second(1))
    at_once = f"{who}: {pace} tokens per second{each}"
    if not plan.memory.fits:
        return f"if it fitted, {at_once}"
    if not plan.capacity.users or load.users == batch == 1:
        first = time_with(plan.intervals["prefill"], plan.prefill.seconds)
        return f"{at_once}, the first after {first}"
    users = f"{describe_users(plan.users_at_a_time)}{on_each_replica(plan)}"
    return f"{users}: {tokens_each(plan)} tokens per second each, {total_tokens(plan)}; {at_once}"


def _limit(plan: DeploymentPlan) -> str:
    """Return what limits either phase: `prompts (51% of time): arithmetic; output: memory bandwidth`.

    The share of time is a figure for even arrivals, so it is left out if the other lines are simulated.
    """
    prefill, decode, scarce = ROOFS[plan.prefill.limit], ROOFS[plan.workload_decode.limit], scarcest(plan)
    load = plan.reported_load
    share = f" ({load.prefill_share:.0%} of time)" if load.users > 1 and plan.queue is None else ""
    line = f"prompts{share}: {prefill}; output: {decode}"
    if plan.capacity.users and plan.memory.fits and scarce is not None:
        line += f"; {scarce.name} helps most"
    return line


def _cost(plan: DeploymentPlan) -> str:
    job = "" if plan.job is None else f"{describe_job(plan, plan.job)}; "
    return f"{job}{_price(plan)}"


def _price(plan: DeploymentPlan) -> str:
    price = plan.case.device.price
    if price is None:
        return "no known price; give --price"
    hourly = f"${price.dollars:.2f} per device and hour ({price.asked_by})"
    if plan.dollars_per_million is None:
        return hourly
    tokens = "" if plan.audio is not None else " output tokens"
    cost = describe_cost(plan.dollars_per_million, plan.audio, plan.cost_factors)
    return f"{cost}{tokens}, at {hourly}"
