"""Advice: one sentence that the counts of a run give reason for, and what it would change."""

import math
from dataclasses import replace

from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.insight.simulate.load_law import saturation_rate
from ridgeline.insight.simulate.simulation_findings import SimulationFindings
from ridgeline.insight.simulate.simulation_metrics import SimulationMetrics
from ridgeline.insight.traffic.routers import BLIND
from ridgeline.util.document.humanize import percent, say_seconds, three_digits

_NOTICED = 0.05  # of the time: from which what holds requests back is worth a word
_PREEMPTED = 0.01  # preemptions a request: from which memory is short, whatever else is
_REFUSED = 0.01  # of the requests: from which what refuses them is the first thing to be said
_FREE = 0.01  # of the pages: from which it is worth a word that some are
_LONG_ENOUGH = 60.0  # seconds of requests: advice on replicas from a shorter run says how short it was
_MOSTLY = 0.5  # of the time
_NEAR = 1.05  # of the rate: a wall that is no higher is reached
_MET = 0.99  # of the requests: from which objectives are met, and gaps are as even as they need to be
_UNEVEN = 2.0  # times the median: an ITL p99 from which prompts are what users wait for


def advice(findings: SimulationFindings) -> str:
    """The first of these that there is reason for: requests cannot run; too much comes; memory is short; places are
    few; prompts hold decoding up; nothing does.
    """
    metrics, limits = findings.metrics, findings.asked.machine.limits
    if findings.verdict == "nothing answered":
        return "Nothing was answered: " + (next(iter(metrics.reasons), "no request came") + ".")
    if metrics.counts["rejected"] > _REFUSED * metrics.total:
        return (
            f"{metrics.counts['rejected']:,} of {metrics.total:,} requests cannot run (of one, "
            f"{next(iter(metrics.reasons))}): {_room(findings)}."
        )
    if findings.verdict == "overloaded":
        if findings.is_front_bound:
            return (
                f"The server's own core (--front) carries {three_digits(metrics.front_wall)} of "
                f"{three_digits(metrics.offered)} requests a second, whatever the cards do: let it do less for each "
                "token or request, or take several servers."
            )
        if findings.link_saturation_rate < metrics.offered:
            return (
                f"The link carries {three_digits(findings.link_saturation_rate)} prompts a second of "
                f"{three_digits(metrics.offered)}: take a faster --link, or leave --split out."
            )
        if _few_places(metrics):
            return _raise_requests(findings)
        positions = metrics.steps.held["positions"]
        if positions > _MOSTLY and metrics.steps.compute < _MOSTLY:  # larger steps would hardly take longer
            return (
                f"For {percent(positions)} of the time prompts wait for the {limits.tokens:,} positions of a step, "
                "which memory bandwidth limits: raise --max-batch-tokens."
            )
        return (
            f"It answers {three_digits(_answered(metrics))} of {three_digits(metrics.offered)} requests a second, "
            f"{_for(metrics)}: "
            f"{_more(findings)}, or take a faster card (ridgeline plan --compare){_front_too(metrics)}."
        )
    held = metrics.steps.held
    if held["pages"] > _NOTICED or metrics.preemptions > _PREEMPTED * metrics.total:
        return (
            f"For {percent(held['pages'])} of the time requests wait for KV pages, and {metrics.preemptions:,} "
            f"preemptions made {metrics.wasted:,} positions run again: "
            f"{_fewer_bits(findings)}take a card with more memory."
        )
    if held["requests"] > _NOTICED:
        return _raise_requests(findings)
    if said := _of_prompts(findings):
        return said
    waits = held["positions"]
    said = (
        f"Prompts wait for the {limits.tokens:,} positions of a step {percent(waits)} of the time"
        if waits > _NOTICED
        else "Nothing holds requests back"
    )
    said += f"; a step is under way {percent(metrics.steps.busy)} of the time"
    if findings.wall is None:
        return f"{said}."
    if findings.wall < _NEAR * metrics.offered:
        return (
            f"{said}, and not many more than these {three_digits(metrics.offered)} requests a second could be answered."
        )
    return f"{said}, and at {three_digits(findings.wall)} requests a second it could not keep up."


def _room(findings: SimulationFindings) -> str:
    """For requests that are too long."""
    machine = findings.asked.machine
    return "take a model that has room for them" if machine.context == machine.case.model.context else "raise --context"


def _few_places(metrics: SimulationMetrics) -> bool:
    """Whether more requests at a time would be answered: there is memory for twice as many, and steps that wait for it
    would hardly take longer.
    """
    steps = metrics.steps
    return steps.held["requests"] > _MOSTLY and steps.compute < _MOSTLY and steps.most_pages < 1 / 2


def _raise_requests(findings: SimulationFindings) -> str:
    steps, places = findings.metrics.steps, findings.asked.machine.limits.requests
    free = 1 - steps.most_pages
    room = f", while at least {percent(free)} of the pages are free" if free > _FREE else ""
    waits = percent(steps.held["requests"])
    return f"For {waits} of the time requests wait because {places:,} run{room}: raise --max-requests."


def _front_too(metrics: SimulationMetrics) -> str:
    """What else would have to change, where the front carries less than comes."""
    if not metrics.front_overloaded:
        return ""
    return f"; the server's own core (--front) carries no more than {three_digits(metrics.front_wall)} a second either"


def _fewer_bits(findings: SimulationFindings) -> str:
    """For keys and values that have more than eight."""
    wide = findings.asked.machine.case.kv in ("bf16", "fp16", "fp32")
    return "keep keys and values in fewer bits (--kv fp8), or " if wide else ""


def _for(metrics: SimulationMetrics) -> str:
    """How long it was looked at: what it answers of a few seconds of bursts is no rate to buy cards by."""
    seconds = max(0, metrics.total - metrics.left_out - 1) / metrics.offered
    shorter = seconds < _LONG_ENOUGH
    return (
        f"for {say_seconds(seconds)} alone (a longer run may say otherwise)"
        if shorter
        else f"for {say_seconds(seconds)}"
    )


def _answered(metrics: SimulationMetrics) -> float:
    """Requests a second: in all, or while they come, for after that a slow card may go on by itself for long."""
    assert metrics.steadiness is not None, "somebody has looked whether it keeps up"
    return max(metrics.requests_per_second, metrics.offered - metrics.steadiness.growth)


def _more(findings: SimulationFindings) -> str:
    """How a fleet comes to answer all that is offered, by the option that says how many it has."""
    fleet = findings.asked.fleet
    if fleet.scaling is not None:
        return "let more replicas come, or let them come sooner (--scale, --scale-at)"
    if fleet.split is not None:
        return "take more replicas for prompts, for answers or for both (--split)"
    blind = "send less to slow cards (--router two), " if fleet.others and fleet.router in BLIND else ""
    return f"{blind}take --replicas {_enough(findings)}"


def _enough(findings: SimulationFindings) -> int:
    """Replicas of the machine itself with which all that is offered is answered: other cards count for as much as the
    load law has them answer of it.
    """
    metrics, machine, fleet = findings.metrics, findings.asked.machine, findings.asked.fleet
    own, *others = (saturation_rate(each, *metrics.sizes) for each in (machine, *fleet.others))
    wanted = metrics.offered / _answered(metrics) * (fleet.replicas * own + sum(others))
    return math.ceil((wanted - sum(others)) / own)


def _of_prompts(findings: SimulationFindings) -> str:
    """Where tokens wait for prompts: what a smaller step would make of the longest gaps."""
    itl, metrics = findings.metrics.latencies["ITL"], findings.metrics
    if metrics.goodput is not None and metrics.good_share >= _MET:
        return ""
    if itl is None or (tail := itl.percentiles[99]) is None or (middle := itl.percentiles[50]) is None:
        return ""
    machine, batch = findings.asked.machine, max(1, round(findings.metrics.steps.batch))
    budget = _smaller(machine.limits.tokens, batch)
    if tail.mid < _UNEVEN * middle.mid or budget is None or not _keeps_up(findings, budget):
        return ""
    context = round(findings.metrics.input + findings.metrics.output / 2)
    reaches, own = machine.case.price.reaches, max(1, round(findings.metrics.input))
    chunk = min(budget - batch, own)
    full = Work.of([StepSegment(chunk, own)], reaches) + Work.decode([context] * batch, reaches)
    longest = machine.case.price.on(machine.case.device, full).expected
    if longest > tail.mid * 0.9:
        return ""
    return (
        f"ITL p99 is {say_seconds(tail.mid)}, its median {say_seconds(middle.mid)}, because "
        f"{percent(findings.metrics.steps.prompts)} of the time is in steps that run prompts; with --max-batch-tokens "
        f"{budget} the fullest step takes {say_seconds(longest)}, and first tokens come later."
    )


def _keeps_up(findings: SimulationFindings, tokens: int) -> bool:
    """Whether replicas would answer all that comes in steps of so many positions, as far as the load law knows."""
    if findings.law is None:
        return True
    asked, metrics = findings.asked, findings.metrics
    machine = replace(asked.machine, limits=replace(asked.machine.limits, tokens=tokens))
    return saturation_rate(machine, *metrics.sizes) * asked.fleet.replicas > _NEAR * metrics.offered


def _smaller(tokens: int, batch: int) -> int | None:
    """A quarter of the positions of a step, where that leaves room for prompts beside the batch."""
    budget = tokens // 4
    return budget if budget >= 2 * batch and budget >= 64 else None
