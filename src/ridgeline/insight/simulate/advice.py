"""The advice of a simulation: one sentence that follows from a run's figures and names the option to change, if any."""

import math
from dataclasses import replace

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.insight.simulate.load_law import saturation_rate
from ridgeline.insight.simulate.simulation_findings import SimulationFindings
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics
from ridgeline.insight.traffic.routers import BLIND
from ridgeline.util.document.humanize import percent, say_seconds, three_digits

_NOTICED = 0.05  # the share of time that requests wait from which the advice mentions it
_PREEMPTED = 0.01  # preemptions per request from which KV memory is the bottleneck, whatever else is
_REFUSED = 0.01  # the share of rejected requests from which the advice is about them
_FREE = 0.01  # the share of free pages from which the advice mentions it
_LONG_ENOUGH = 60.0  # seconds of arrivals; advice on replicas from a shorter run states its length
_MOSTLY = 0.5  # a share of time
_NEAR = 1.05  # a saturation rate up to this multiple of the arrival rate counts as reached
_MET = 0.99  # the share of good requests from which token gaps need no improvement
_UNEVEN = 2.0  # the ratio of ITL p99 to its median from which prompts delay decoding


def advice(findings: SimulationFindings) -> str:
    """Return one sentence on the main problem of a simulated run and its remedy, or on the remaining headroom.

    The checks run in this order: requests that cannot run, overload, too little KV memory, too few request slots, and
    prompts that delay decoding. If none applies, the sentence reports how busy the GPU is and, if the load law applies,
    the rate above which the fleet would fall behind.
    """
    metrics, limits = findings.metrics, findings.query.machine.limits
    if findings.verdict == "nothing answered":
        return "No request was answered: " + (next(iter(metrics.reasons), "no request arrived") + ".")
    if metrics.counts["rejected"] > _REFUSED * metrics.total:
        return (
            f"{metrics.counts['rejected']:,} of {metrics.total:,} requests cannot run (for example: "
            f"{next(iter(metrics.reasons))}): {_room(findings)}."
        )
    if findings.verdict == "overloaded":
        if findings.is_front_bound:
            return (
                f"The API server's CPU core (--front) can handle only {three_digits(metrics.front_wall)} of "
                f"{three_digits(metrics.offered)} requests per second, whatever the GPUs do: reduce its work per token "
                "or request, or use several servers."
            )
        if findings.link_saturation_rate < metrics.offered:
            return (
                f"The link can transfer only {three_digits(findings.link_saturation_rate)} of "
                f"{three_digits(metrics.offered)} prompts per second: use a faster --link, or leave --split out."
            )
        if _few_places(metrics):
            return _raise_requests(findings)
        positions = metrics.steps.held["positions"]
        if positions > _MOSTLY and metrics.steps.compute < _MOSTLY:  # larger steps would hardly take longer
            return (
                f"For {percent(positions)} of the time prompts wait for the {limits.tokens:,} tokens of a step's "
                "budget, although steps are limited by memory bandwidth: raise --max-batch-tokens."
            )
        return (
            f"It completes {three_digits(_answered(metrics))} of {three_digits(metrics.offered)} requests per second, "
            f"{_for(metrics)}: {_more(findings)}, or use a faster GPU (ridgeline plan --compare){_front_too(metrics)}."
        )
    held = metrics.steps.held
    if held["pages"] > _NOTICED or metrics.preemptions > _PREEMPTED * metrics.total:
        return (
            f"For {percent(held['pages'])} of the time requests wait for KV pages, and {metrics.preemptions:,} "
            f"preemptions made it recompute {metrics.wasted:,} positions: {_fewer_bits(findings)}use a GPU with more "
            "memory."
        )
    if held["requests"] > _NOTICED:
        return _raise_requests(findings)
    if sentence := _of_prompts(findings):
        return sentence
    waits = held["positions"]
    sentence = "Requests do not wait for resources"
    if waits > _NOTICED:
        sentence = f"Prompts wait for the {limits.tokens:,} tokens of a step's budget {percent(waits)} of the time"
    sentence += f"; the GPU runs a step {percent(metrics.steps.busy)} of the time"
    if findings.wall is None:
        return f"{sentence}."
    if findings.wall < _NEAR * metrics.offered:
        return f"{sentence}, but the limit is not far above these {three_digits(metrics.offered)} requests per second."
    return f"{sentence}; above {three_digits(findings.wall)} requests per second it would fall behind."


def _room(findings: SimulationFindings) -> str:
    """Return the suggestion for requests that are too long for the context."""
    machine = findings.query.machine
    if machine.context < machine.case.model.context:
        return "raise --context"
    return "use a model with a longer context, or extend it with --rope"


def _few_places(metrics: SimulationMetrics) -> bool:
    """Return whether more concurrent requests would raise throughput.

    This holds if requests wait for a slot more than half of the time, less than half of the step time is compute bound
    (so larger steps hardly take longer), and less than half of the KV pages are ever in use.
    """
    steps = metrics.steps
    return steps.held["requests"] > _MOSTLY and steps.compute < _MOSTLY and steps.most_pages < 1 / 2


def _raise_requests(findings: SimulationFindings) -> str:
    """Return the advice to raise `--max-requests`, with the share of free pages that supports it."""
    steps, places = findings.metrics.steps, findings.query.machine.limits.requests
    free = 1 - steps.most_pages
    room = f", while at least {percent(free)} of the KV pages are free" if free > _FREE else ""
    waits = percent(steps.held["requests"])
    return f"For {waits} of the time requests wait because {places:,} are already running{room}: raise --max-requests."


def _front_too(metrics: SimulationMetrics) -> str:
    """Return a note that the API server is overloaded too, or "" if it is not."""
    if not metrics.front_overloaded:
        return ""
    return (
        f"; the API server's CPU core (--front) cannot handle more than {three_digits(metrics.front_wall)} per second "
        "either"
    )


def _fewer_bits(findings: SimulationFindings) -> str:
    """Return the suggestion to quantize the KV cache to 8 bits, or "" if it already has 8 bits or fewer."""
    wide = findings.query.machine.case.kv in ("bf16", "fp16", "fp32")
    return "store keys and values in 8 bits (--kv fp8), or " if wide else ""


def _for(metrics: SimulationMetrics) -> str:
    """Return how long requests arrived, with a warning if less than a minute: a burst is no basis for buying GPUs."""
    seconds = max(0, metrics.total - metrics.left_out - 1) / metrics.offered
    doubt = " only (a longer run may give another result)" if seconds < _LONG_ENOUGH else ""
    return f"for {say_seconds(seconds)}{doubt}"


def _answered(metrics: SimulationMetrics) -> float:
    """Return the requests per second that a simulated fleet completes.

    This is the larger of the average from the first counted arrival to the last token, and the arrival rate minus the
    backlog's growth: after the last arrival, a slow replica may take long to drain its backlog, which lowers the
    average.
    """
    assert metrics.stationarity is not None, "a run without a stationarity measurement has no completion rate"
    return max(metrics.requests_per_second, metrics.offered - metrics.stationarity.growth)


def _more(findings: SimulationFindings) -> str:
    """Return the suggestion for adding capacity, in terms of the option that sets the number of replicas."""
    fleet = findings.query.fleet
    if fleet.scaling is not None:
        return "allow more replicas, or start them earlier (--scale, --scale-at)"
    if fleet.split is not None:
        return "use more replicas for prefill, for decode or for both (--split)"
    blind = "send fewer requests to slow GPUs (--router two), " if fleet.others and fleet.router in BLIND else ""
    return f"{blind}use --replicas {_enough(findings)}"


def _enough(findings: SimulationFindings) -> int:
    """Return the number of replicas of the main machine that would complete all offered requests.

    Replicas on other GPUs count in proportion to their saturation rate by the load law.
    """
    metrics, machine, fleet = findings.metrics, findings.query.machine, findings.query.fleet
    own, *others = (saturation_rate(each, *metrics.sizes) for each in (machine, *fleet.others))
    wanted = metrics.offered / _answered(metrics) * (fleet.replicas * own + sum(others))
    return math.ceil((wanted - sum(others)) / own)


def _of_prompts(findings: SimulationFindings) -> str:
    """Return the advice to lower the token budget of a step if prompts cause long inter-token gaps, else "".

    It is also "" if nearly all requests meet their objectives, or if a quarter of the budget would be too small, would
    overload the replicas, or would hardly shorten the longest step.
    """
    itl, metrics = findings.metrics.latencies["ITL"], findings.metrics
    if metrics.goodput is not None and metrics.good_share >= _MET:
        return ""
    if itl is None or (tail := itl.percentiles[99]) is None or (middle := itl.percentiles[50]) is None:
        return ""
    machine, batch = findings.query.machine, max(1, round(findings.metrics.steps.batch))
    budget = _smaller(machine.limits.tokens, batch)
    if tail.mid < _UNEVEN * middle.mid or budget is None or not _keeps_up(findings, budget):
        return ""
    context = round(findings.metrics.input + findings.metrics.output / 2)
    reaches, own = machine.case.price.reaches, max(1, round(findings.metrics.input))
    chunk = min(budget - batch, own)
    full = Work.of([StepSegment(chunk, own)], reaches) + Work.decode([context] * batch, reaches)
    longest = machine.case.price.price_step(machine.case.device, full).expected
    if longest > tail.mid * 0.9:
        return ""
    return (
        f"ITL p99 is {say_seconds(tail.mid)} but its median {say_seconds(middle.mid)}, because "
        f"{percent(findings.metrics.steps.prompts)} of the time is in steps that run prompts; with --max-batch-tokens "
        f"{budget} the longest step would take {say_seconds(longest)}, but first tokens would come later."
    )


def _keeps_up(findings: SimulationFindings, tokens: int) -> bool:
    """Return whether the replicas keep up with `tokens` per step by the load law; True if the law does not apply."""
    if findings.law is None:
        return True
    query, metrics = findings.query, findings.metrics
    machine = replace(query.machine, limits=replace(query.machine.limits, tokens=tokens))
    return saturation_rate(machine, *metrics.sizes) * query.fleet.replicas > _NEAR * metrics.offered


def _smaller(tokens: int, batch: int) -> int | None:
    """Return a quarter of a step's token budget, or None if that leaves too little for prompts next to the batch."""
    budget = tokens // 4
    return budget if budget >= 2 * batch and budget >= 64 else None
