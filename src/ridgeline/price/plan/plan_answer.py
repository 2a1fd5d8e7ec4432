"""The default summary of a plan in about ten lines: fit, users, speed, limit, improvement, cost and accuracy.

Lines for a simulated queue, hours of audio and notes appear only if the plan has them. Times, rates and costs are
followed by the interval that holds 8 of 10 measurements, such as `[9.40 .. 13.6 ms]`. The line `trust` states what the
intervals come from.
"""

from collections.abc import Iterator

from ridgeline.price.interval_text import (
    cost_with,
    describe_cases,
    describe_factors,
    describe_interval,
    durations_between,
    rates_between,
    times_between,
)
from ridgeline.price.plan.alternatives import Change
from ridgeline.price.plan.batch_job import JobEstimator, JobRun, start_disk
from ridgeline.price.plan.demand import Demand, ReplicaCount, SimulatedQueue, at_slow_end
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.energy import describe_energy
from ridgeline.price.plan.load_estimate import LoadEstimate
from ridgeline.price.plan.plan_audio import AudioWorkload, describe_cost
from ridgeline.price.plan.plan_text import (
    NOTICED,
    ROOFS,
    describe_held,
    describe_users,
    describe_work,
    lacking,
    on_each_replica,
    rate_with,
    scarcest,
    time_with,
    without_kernels,
)
from ridgeline.price.plan.scenario import PlanWorkload
from ridgeline.util.document.humanize import gib, say_duration, say_gib, say_seconds, three_digits


def answer(plan: DeploymentPlan) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line of the summary."""
    yield "fits", _fits(plan)
    if plan.demand:
        yield "users", describe_demand(plan)
    elif plan.memory.fits:
        yield "users", _users(plan)
    if plan.job is not None:
        yield "job", _job(plan, plan.job)
    yield "speed", _speed(plan)
    if plan.queue is not None:
        yield "queue", f"one replica, {plan.queue.text}" if on_each_replica(plan) else plan.queue.text
    if plan.audio is not None and plan.memory.fits:
        yield "sound", _sound(plan, plan.audio)
    yield "limit", _limit(plan)
    lever = _lever(plan)
    if lever:
        yield "lever", lever
    yield "cost", _cost(plan)
    yield "trust", _trust(plan)
    yield from (("note", note) for note in plan.notes)


def describe_targets(workload: PlanWorkload) -> str:
    """Return the latency targets as text: `TTFT 500 ms and TPOT 40 ms`."""
    wanted = (("TTFT", workload.ttft), ("TPOT", workload.tpot))
    return " and ".join(f"{name} {describe_target(seconds)}" for name, seconds in wanted if seconds is not None)


def describe_target(seconds: float) -> str:
    """Return a latency target as text, from one second on in seconds, below in milliseconds: `1.5 s`, `500 ms`."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"


def _fits(plan: DeploymentPlan) -> str:
    memory = plan.memory
    if not memory.fits:
        return f"NO: {lacking(plan)}"
    return (
        f"yes: {say_gib(gib(memory.weights))} of weights; {say_gib(gib(memory.left))} of the "
        f"{say_gib(gib(memory.budget))} usable per device are left for KV"
    )


def _users(plan: DeploymentPlan) -> str:
    capacity, targets = plan.capacity, describe_targets(plan.workload)
    if not capacity.users:
        return f"none within {targets}: {stops(plan)}"
    rate = rate_with(plan.intervals["load"], capacity.load.requests_per_second)
    within = f" within {targets}" if targets else " without latency targets (--slo sets them)"
    users = f"{capacity.users:,}{around_users(plan)} concurrent{_on_each(capacity.load)}"
    line = f"{users}, {rate} evenly spaced requests/s{within}; {stops(plan)}"
    held = plan.memory.users
    return line if held == capacity.users else f"{line}; memory holds {describe_held(plan)}"


def around_users(plan: DeploymentPlan) -> str:
    """Return the users at both ends of the interval of times, such as ` [9 .. 31]`; "" if both ends are the same."""
    least, most = plan.users_interval
    return "" if least == most else f" [{least:,} .. {most:,}]"


def _job(plan: DeploymentPlan, job: JobRun) -> str:
    """Return when the batch job is done, and what it costs."""
    start = f"{say_seconds(job.start)} to load the weights from {start_disk().title} included"
    late = f"late if times are above x {three_digits(job.slack)} of the predicted ones"
    sure = job.slack >= plan.intervals["load"].high
    return f"{describe_job(plan, job)}; {start}; {'in time in the whole interval' if sure else late}"


def describe_job(plan: DeploymentPlan, job: JobRun) -> str:
    """Return the duration of a batch job and its dollars: `done in 7.21 h [4.40 .. 34.2 h] for $63.8 [$39 .. $303]`."""
    around = durations_between(*job.seconds_between(plan.intervals["load"]))
    done = f"done in {say_duration(job.seconds)} {around}"
    return done if job.dollars is None else f"{done} for {cost_with(job.dollars, plan.cost_factors)}"


def _on_each(load: LoadEstimate) -> str:
    """Return the users per device, such as `, 8 per device`, if devices have requests of their own; otherwise ""."""
    return "" if load.waits is None or load.waits.users == load.users else f", {load.waits.users:,} per device"


def stops(plan: DeploymentPlan) -> str:
    """Return a text that says what prevents more users, such as memory or a latency target."""
    capacity, workload = plan.capacity, plan.workload
    if capacity.limit == "memory":
        return "memory has no room for more"
    if capacity.limit == "step":
        return "a decode step has no room for more tokens; raise --max-batch-tokens"
    name = capacity.limit.upper()
    if capacity.users:
        return f"one more would miss {name}"
    wanted = workload.ttft if capacity.limit == "ttft" else workload.tpot
    got = capacity.load.ttft if capacity.limit == "ttft" else capacity.load.tpot
    return (
        f"a single user gets a {name} of {time_with(plan.intervals['load'], got)}, above the target of "
        f"{describe_target(wanted or 0.0)}"
    )


def describe_demand(plan: DeploymentPlan) -> str:
    """Return a text that says what serves the demand of a plan, and at what utilisation.

    If the simulated queue misses a target, the text says so instead of claiming that the replicas meet all targets.
    """
    fleet, targets, demand, queue = plan.fleet, describe_targets(plan.workload), plan.demand, plan.queue
    demand_text = describe_load(demand)
    if fleet is None or not plan.memory.fits:
        return f"{demand_text}: {_unserved(plan)}"
    within = f" within {targets} on average" if targets else ""
    capacity = "capacity"
    if queue is not None:
        within, capacity = _within_queue(plan, queue, within), "capacity for evenly spaced arrivals"
    within += _pessimism(plan)
    each = f"{describe_users(plan.users_at_a_time)} at a time{on_each_replica(plan)}{_on_each(fleet.load)}"
    if demand.within is not None:
        full = f"; {stops(plan)}" if fleet.load.users == plan.capacity.users else ""
        return f"{demand_text}: {_replicas(plan, fleet)}{within}, kept full: {each}{full}"
    share = f"at {fleet.share:.0%} of {capacity}"
    if demand.rate is not None and fleet.share * plan.intervals["load"].high > 1:
        share += f", so overloaded if times are x {three_digits(1 / fleet.share)} of the predicted ones"
    return f"{demand_text}: {_replicas(plan, fleet)}{within}, {share}; {each}"


def _unserved(plan: DeploymentPlan) -> str:
    """Return why no number of replicas serves the demand of a plan."""
    if not plan.memory.fits:
        return "no number of replicas can serve this, because the model does not fit"
    demand, devices = plan.demand, plan.case.setup.devices
    reason = stops(plan)
    if demand.within is not None and plan.capacity.users:
        single = JobEstimator(plan.serving, 1, demand.within).on(1)
        factor = plan.intervals["load"].high if demand.pessimistic else 1.0
        reason = (
            f"a single request takes {say_seconds(single.run * factor)}, and before it the weights are loaded in "
            f"{say_seconds(single.start)}; give a longer --within, or more --devices"
        )
    elif demand.pessimistic and plan.capacity.users:
        missed = at_slow_end(plan.serving, demand)[0].capacity.limit.upper()
        reason = f"a single user misses {missed}; leave out --pessimistic, give other targets or more --devices"
    of = "one device" if devices == 1 else f"{devices} devices"
    return f"no number of replicas of {of} can serve this{_at_slow_end(plan)}; {reason}"


def _pessimism(plan: DeploymentPlan) -> str:
    """Return that the replicas suffice at the slow end of the interval, and how many do if times are as predicted."""
    queue = plan.queue
    if not plan.demand.pessimistic or (queue is not None and queue.missed):
        return ""
    formula = "" if queue is None else ", by formula"
    return f", also{_at_slow_end(plan)} (as predicted{formula}: {plan.replicas_as_predicted:,})"


def _at_slow_end(plan: DeploymentPlan) -> str:
    """Return the factor for which a pessimistic demand is planned: ` if times are x 2.04 of the predicted ones`."""
    slow = f" if times are x {three_digits(plan.intervals['load'].high)} of the predicted ones"
    return slow if plan.demand.pessimistic else ""


def describe_load(demand: Demand) -> str:
    """Return a demand as text: `200 concurrent`, `10.0 requests/s`, `1,000,000 requests within 8.00 h`."""
    if demand.within is not None:
        return f"{demand.requests:,} request{'s' * (demand.requests != 1)} within {say_duration(demand.within)}"
    return (
        f"{demand.users:,} concurrent" if demand.users is not None else f"{three_digits(demand.rate or 0.0)} requests/s"
    )


def _within_queue(plan: DeploymentPlan, queue: SimulatedQueue, within: str) -> str:
    """Return whether a simulated queue meets the targets, and the replicas for even arrivals if they are fewer.

    Args:
        plan: The plan.
        queue: The queue.
        within: The targets as text, such as ` within TTFT 1 s on average`; "" without targets.
    """
    if queue.missed:
        targets = describe_targets(plan.workload)
        return f" would miss {' and '.join(queue.missed)} because of queues{_at_slow_end(plan)} (targets: {targets})"
    fewer = queue.even.replicas
    even = f" ({fewer:,} if arrivals were evenly spaced)" if fewer < queue.fleet.replicas else ""
    scope = ", queues included" if plan.demand.requests is None else f" over {_run(plan)}"
    return f"{within}{scope}{even}"


def _run(plan: DeploymentPlan) -> str:
    """Return what was simulated: `a run of 100 requests, ramp-up and drain included`, or `a steady state`."""
    requests = plan.demand.requests
    if requests is None:
        return "a steady state"
    return f"a run of {requests:,} request{'s' * (requests > 1)}, ramp-up and drain included"


def _replicas(plan: DeploymentPlan, fleet: ReplicaCount) -> str:
    """Return the replicas and their devices as text: `3 replicas of 2 devices`."""
    devices = "one device" if plan.case.setup.devices == 1 else f"{plan.case.setup.devices} devices"
    return devices if fleet.replicas == 1 else f"{fleet.replicas:,} replicas of {devices}"


def _speed(plan: DeploymentPlan) -> str:
    load, batch = plan.reported_load, plan.workload.batch
    first, pace = plan.load.ttft_synchronised, plan.decode.seconds.per_second(1)
    alone, mean = ("a single user", "") if batch == 1 else (f"{batch:,} requests at once", "mean ")
    line = (
        f"{alone}: {mean}TTFT {time_with(plan.intervals['prefill'], first)}, then "
        f"{rate_with(plan.intervals['decode'], pace)} tok/s{' each' if batch > 1 else ''}"
    )
    if not plan.memory.fits:
        return f"if it fitted, {line}"
    if not plan.capacity.users or load.users == batch == 1:
        return line
    return (
        f"{describe_users(plan.users_at_a_time)}{on_each_replica(plan)}: mean TTFT {_ttft(plan)}, then "
        f"{tokens_each(plan)} tok/s each{_waits(load)}, {total_tokens(plan)}{_even(plan)}; {line}"
    )


def _even(plan: DeploymentPlan) -> str:
    """Return what the simulated figures of a plan stand for, and those of the formulas for even arrivals."""
    queue, load = plan.queue, plan.reported_load
    if queue is None:
        return ""
    each, every = (three_digits(rate) for rate in (load.tokens_per_user.expected, plan.even_tokens_per_second))
    return (
        f" (simulated, {_run(plan)}; by formula, if arrivals were evenly spaced: mean TTFT "
        f"{say_seconds(load.ttft.expected)}, {each} tok/s each, {every} in total, with the factors under load)"
    )


def total_tokens(plan: DeploymentPlan) -> str:
    """Return the tokens per second of all users: `2,147 [1,240 .. 2,560] in total`, with the replicas if several."""
    count = 1 if plan.fleet is None else plan.fleet.replicas
    total = f"{three_digits(plan.tokens_per_second)} {rates_between(*plan.tokens_interval)}"
    return f"{total} in total{f' on {count:,} replicas' * (count > 1)}"


def tokens_each(plan: DeploymentPlan) -> str:
    """Return the tokens per second of each user with their interval: `33.1 [21.8 .. 38.0]`."""
    queue = plan.queue
    if queue is None or queue.tpot_interval is None:
        return rate_with(plan.intervals["load"], plan.reported_load.tokens_per_user)
    low, high = queue.tpot_interval
    return f"{three_digits(plan.tokens_per_user)} {rates_between(1 / high, 1 / low)}"


def _sound(plan: DeploymentPlan, sound: AudioWorkload) -> str:
    """Return the speech throughput: `512 hours of audio per hour for 8 users, 60.1 for a single user: ...`."""
    loads = plan.reported_load, plan.serving.load(1)
    around = plan.intervals["load"]
    most, alone = (rate_with(around, load.tokens_per_second.map(sound.rate)) for load in loads)
    users = f"{describe_users(plan.reported_load.users)}{' on one replica' * bool(on_each_replica(plan))}"
    both = f"{most} hours of audio per hour for {users}, {alone} for a single user"
    return f"{both}: windows of {sound.window:g} s, {sound.tokens:,} tokens each"


def _ttft(plan: DeploymentPlan) -> str:
    """Return the mean time to first token and its maximum, `88.8 ms [70.1 .. 190 ms] (1.40 s if all arrive at once)`.

    Both are means over the requests. The arrivals determine the actual mean between the two.
    """
    load = plan.reported_load
    if plan.queue is not None:
        return f"{say_seconds(plan.queue.ttft)} {times_between(*plan.queue.ttft_interval)}"
    steady, marching = (time_with(plan.intervals["load"], each) for each in (load.ttft, load.ttft_synchronised))
    return steady if steady == marching else f"{steady} ({marching} if all arrive at once)"


def _waits(load: LoadEstimate) -> str:
    """Return the range of tokens per second if devices wait for each other's prefills, in parentheses; otherwise ""."""
    if load.waits is None:
        return ""
    least, most = (three_digits(1 / tpot.expected) for tpot in (load.waits.tpot_apart, load.waits.tpot_together))
    if least == most:
        return ""
    return f" ({least} if prompts reach one device after the other, {most} if all at once; same factors)"


def _limit(plan: DeploymentPlan) -> str:
    prefill, decode, scarce, load = plan.prefill, plan.workload_decode, scarcest(plan), plan.reported_load
    share = f" ({load.prefill_share:.0%} of the time)" if load.users > 1 else ""
    who = f"{describe_users(plan.users_at_a_time)}{on_each_replica(plan)}"
    line = (
        f"prefill{share}: {ROOFS[prefill.limit]}; decode: {ROOFS[decode.limit]} (a step for {who}: "
        f"{describe_work(decode)})"
    )
    if not plan.capacity.users or not plan.memory.fits:
        return line
    if scarce is None:
        return f"{line}; doubling any single resource would not help noticeably"
    full = f" with {describe_users(plan.capacity.users)}{on_each_replica(plan)}"
    most = "" if load.users == plan.capacity.users else full
    return f"{line}; {scarce.name} would help most, x {three_digits(scarce.throughput or 1)} tokens{most}"


def _lever(plan: DeploymentPlan) -> str:
    """Return the best improvement that costs no money, and a device with cheaper tokens."""
    if not plan.memory.fits:
        return ""
    helps = [change for change in plan.narrower if change.outcome.fits and _worth(change) >= NOTICED]
    best = max(helps, key=lambda change: change.benefit, default=None)
    parts = [] if best is None else [_narrower(plan, best)]
    cheaper = plan.cheaper_device
    if cheaper is not None and (cheaper.cost or 1.0) <= 1 / NOTICED:
        parts.append(_cheaper(plan, cheaper))
    if plan.demand and any("$" in part for part in parts):
        parts.append("dollars per token are those at full load")
    return "; ".join(parts)


def _narrower(plan: DeploymentPlan, change: Change) -> str:
    """Return the effect of a narrower format: `fp8 weights: x 1.90 users, x 1.85 tokens, x 0.54 dollars (...)`.

    These are ratios of two predictions, whose errors largely cancel.
    """
    outcome = change.outcome
    remark = f"({_saved(plan, change)}; quality is not predicted)"
    if change.throughput is None:
        return f"{change.name}: {describe_users(outcome.users)} within the targets {remark}"
    dollars = "" if change.cost is None else f", x {three_digits(change.cost)} dollars"
    users = f"x {three_digits(change.users)} users, " if change.users is not None else ""
    return f"{change.name}: {users}x {three_digits(change.throughput)} tokens{dollars} {remark}"


def _saved(plan: DeploymentPlan, change: Change) -> str:
    """Return what a narrower format saves, such as `saves memory and bandwidth, not FLOP/s`.

    If it does not save the resource that the line `limit` names, the text says so.
    """
    saved = ["memory", "bandwidth"]
    if plan.prefill.limit == "compute" and change.first >= NOTICED:
        saved = ["memory, bandwidth", "FLOP/s"]
    text, scarce = f"saves {' and '.join(saved)}", scarcest(plan)
    resource = "" if scarce is None else scarce.name.removeprefix("twice the ")
    return text if not resource or resource in ", ".join(saved).split(", ") else f"{text}, not {resource}"


def _cheaper(plan: DeploymentPlan, change: Change) -> str:
    """Return a cheaper device as text, such as `b200: $0.13 [$0.09 .. $0.27] per million (Nebius, on demand)`.

    A remark follows if its kernels were never timed.
    """
    cost, price = change.outcome.dollars_per_million, change.outcome.price
    assert cost is not None
    assert price is not None
    unknown = "; no kernel times" if without_kernels(plan, change) else ""
    return f"{change.name}: {describe_cost(cost, plan.audio, change.cost_factors)} ({price.asked_by}{unknown})"


def _worth(change: Change) -> float:
    """Return the factor on total tokens per second, or the number of users if there were none before."""
    return float(change.outcome.users) if change.throughput is None else change.throughput


def _trust(plan: DeploymentPlan) -> str:
    """Return what the intervals come from: measurements, and how well device, engine and format are known."""
    setup, device, found = plan.case.setup, plan.case.device, plan.intervals
    decode, load = found["decode"], found["load"]
    step = plan.decode.seconds
    parts = [describe_interval("decode", decode, step.expected, step.floor), describe_factors("under load", load)]
    parts.append(describe_cases(decode, setup.device))
    if device.host is None and not device.calibrated and device.kind != "cpu":
        parts.append("the engine's own time per step is unknown and not included")
    return "; ".join(parts)


def _cost(plan: DeploymentPlan) -> str:
    """Return the dollars per million output tokens or hour of audio, and the energy if the power limit is known."""
    price, audio, fleet, kwh = plan.case.device.price, plan.audio, plan.fleet, plan.kwh_per_million_tokens
    energy = "" if kwh is None else describe_energy(kwh, plan.case.device, plan.cost_factors, audio)
    if price is None:
        what = "million output tokens, prompts included" if audio is None else "hour of audio"
        lacking_price = "no known seller offers this device; give --price or --prices FILE"
        return f"{lacking_price}; per {what}: {energy}" if energy else lacking_price
    hourly = f"${price.dollars:.2f} per device and hour ({price.asked_by}, {price.date})"
    if plan.dollars_per_million is None:
        return hourly
    whole = "" if fleet is None or fleet.dollars_per_hour is None else _hourly(fleet, fleet.dollars_per_hour)
    tokens = describe_cost(plan.dollars_per_million, audio, plan.cost_factors)
    tokens += " output tokens, prompts included" if audio is None else ""
    return f"{whole}{tokens}{f', and {energy}' if energy else ''}; {hourly}"


def _hourly(fleet: ReplicaCount, dollars: float) -> str:
    """Return the dollars per hour of all replicas: `$35.4 per hour for 3 replicas, `."""
    replicas = f" for {fleet.replicas:,} replicas" if fleet.replicas > 1 else ""
    return f"${three_digits(dollars)} per hour{replicas}, "
