"""The summary of a plan in five lines without technical terms: fits, users, speed, limit and cost."""

from collections.abc import Iterator

from ridgeline.price.interval_text import rate_interval, time_interval
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.plan_answer import around_cost, describe_demand, describe_target, stops, total_tokens
from ridgeline.price.plan.plan_audio import describe_cost
from ridgeline.price.plan.plan_text import ROOFS, describe_users, lacking, on_each_replica, scarcest
from ridgeline.price.plan.scenario import PlanWorkload
from ridgeline.util.document.humanize import gib, say_gib, say_seconds, three_digits


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
    return f"{plan.capacity.users:,} concurrent{_within(plan.workload)}"


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
    pace = 1 / plan.decode.seconds.expected
    at_once = f"{who}: {three_digits(pace)} {rate_interval(plan.intervals['decode'], pace)} tokens per second{each}"
    if not plan.memory.fits:
        return f"if it fitted, {at_once}"
    if not plan.capacity.users or load.users == batch == 1:
        first = plan.prefill.seconds.expected
        return f"{at_once}, the first after {say_seconds(first)} {time_interval(plan.intervals['prefill'], first)}"
    users, rate = f"{describe_users(load.users)}{on_each_replica(plan)}", plan.tokens_per_user
    around = rate_interval(plan.intervals["load"], rate)
    return f"{users}: {three_digits(rate)} {around} tokens per second each, {total_tokens(plan)}; {at_once}"


def _limit(plan: DeploymentPlan) -> str:
    """Return what limits either phase: `prompts (51% of time): arithmetic; output: memory bandwidth`."""
    prefill, decode, scarce = ROOFS[plan.prefill.limit], ROOFS[plan.workload_decode.limit], scarcest(plan)
    share = f" ({plan.reported_load.prefill_share:.0%} of time)" if plan.reported_load.users > 1 else ""
    line = f"prompts{share}: {prefill}; output: {decode}"
    if plan.capacity.users and plan.memory.fits and scarce is not None:
        line += f"; {scarce.name} helps most"
    return line


def _cost(plan: DeploymentPlan) -> str:
    price = plan.case.device.price
    if price is None:
        return "no known price; give --price"
    hourly = f"${price.dollars:.2f} per device and hour ({price.asked_by})"
    if plan.dollars_per_million is None:
        return hourly
    tokens = "" if plan.audio is not None else " output tokens"
    million = plan.dollars_per_million
    return f"{describe_cost(million, plan.audio)}{tokens} {around_cost(plan, million)}, at {hourly}"
