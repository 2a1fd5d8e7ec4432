"""The plan as a JSON object, with times in seconds and sizes in bytes; some sizes are also in GiB and GB.

The figures of phases, memory and weights are those of one device. `answer`, `load` and the users that memory holds are
those of one replica, which is all devices of the deployment. `fleet` is that of all replicas for a demand.
"""

from typing import Any

from ridgeline.core.models.common.parameter_breakdown import layers_of
from ridgeline.core.ops.number_formats import format_of
from ridgeline.price.cold_start import ColdStart
from ridgeline.price.engine_profile import EngineProfile
from ridgeline.price.plan.comparison import DeviceComparison, Offer
from ridgeline.price.plan.demand import ReplicaCount
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.device_memory import DeviceMemory
from ridgeline.price.plan.load_estimate import LoadEstimate, touched_experts
from ridgeline.price.plan.plan_audio import AudioWorkload
from ridgeline.price.plan.plan_text import DEFINITIONS, verdict
from ridgeline.price.plan.request_phases import PhasePrice
from ridgeline.price.plan.scenario import Deployment
from ridgeline.price.plan.trust import basis_of, class_of, describe_basis
from ridgeline.util.document.humanize import gb, gib
from ridgeline.util.json_data import json_data, json_object


def plan_json(plan: DeploymentPlan, comparison: DeviceComparison | None = None) -> dict[str, Any]:
    """Return all figures of a plan, and of the devices that it was compared on, as JSON data."""
    return {
        "model": _model(plan),
        "device": _device(plan.case.setup),
        "engine": _engine(plan.case.setup.engine),
        "workload": json_object(plan.workload) | {"context": plan.workload.context},
        "answer": _answer(plan),
        "memory": _memory(plan.memory, plan.case.setup),
        "weights": json_data(plan.weights),
        "ways_to_fit": [{"devices": way.devices, "weights": way.weights} for way in plan.ways],
        "phases": [_phase(phase) for phase in plan.phases],
        "prefill": _phase(plan.prefill),
        "decode": _phase(plan.decode)
        | {
            "tokens_per_second_per_user": json_data(plan.decode.seconds.per_second(1)),
            "tokens_per_second": json_data(plan.decode.seconds.per_second(plan.workload.batch)),
        },
        "request": json_object(plan.request)
        | {"tokens_per_second": json_data(plan.request.per_second(plan.workload.batch * plan.workload.output))},
        "loading": {name: _cold_start(start) for name, start in plan.loading.items()},
        "crossings": json_data(plan.crossings),
        "sweep": json_data(plan.sweep),
        "experts_touched": _experts(plan),
        "load": {
            "asked": _load(plan.load),
            "most": _load(plan.capacity.load),
            "all_that_memory_holds": _load(plan.fullest),
        },
        "demand": json_data(plan.demand),
        "fleet": None if plan.fleet is None else _fleet(plan.fleet),
        "attention": json_data(plan.scores),
        "levers": json_data(plan.levers),
        "batching": json_data(plan.batching),
        "sensitivities": json_data(plan.sensitivities),
        "cards": None if comparison is None else comparison_json(comparison)["cards"],
        "trust": _trust(plan),
        "words": verdict(plan),
        "definitions": dict(DEFINITIONS),
    }


def comparison_json(comparison: DeviceComparison) -> dict[str, Any]:
    """Return the compared devices as JSON data, ranking by ranking, then those that serve no user."""
    return {
        "model": {"name": comparison.name},
        "workload": json_object(comparison.workload) | {"context": comparison.workload.context},
        "demand": json_data(comparison.demand),
        "sellers": [
            {"seller": ranking.seller, "date": ranking.date, "source": ranking.source, "cards": len(ranking.offers)}
            for ranking in comparison.rankings
        ],
        "unpriced": json_data(comparison.unpriced),
        "cards": [_offer(offer, comparison.sound) for offer in comparison.offers],
    }


def _offer(offer: Offer, sound: AudioWorkload | None) -> dict[str, Any]:
    outcome = offer.outcome
    return json_object(outcome) | {
        "seller": None if outcome.price is None else outcome.price.asked_by,
        "load": _load(offer.load),
        "sound": None if sound is None else _sound(sound, offer.load, outcome.dollars_per_million),
        "fleet": None if offer.fleet is None else _fleet(offer.fleet),
        "kernels": basis_of(offer.device),
        "trust": json_data(offer.trust),
    }


def _cold_start(start: ColdStart) -> dict[str, float | None]:
    known = start.copy is not None
    return json_object(start) | {
        "floor": start.overlapped if known else None,
        "in_turn": start.sequential if known else None,
    }


def _fleet(fleet: ReplicaCount) -> dict[str, Any]:
    return json_object(fleet) | {"load": _load(fleet.load)}


def _trust(plan: DeploymentPlan) -> dict[str, Any]:
    """Return the prediction errors by metric, and the metric of each figure of the answer."""
    devices = plan.case.setup.devices
    figures = {
        "fits": "memory", "missing_bytes": "memory", "users": "serving", "requests_per_second": "serving",
        "tokens_per_second": "serving", "dollars_per_million_tokens": "serving", "ttft": "prefill", "itl": "decode",
    }  # fmt: skip
    return {
        "engine": plan.engine,
        "kernels": basis_of(plan.case.setup.device),
        "kernels_in_words": describe_basis(plan.case.setup.device),
        "classes": {trust.metric: json_data(trust) for trust in plan.trust},
        "class_of": {figure: class_of(metric, devices) for figure, metric in figures.items()},
    }


def _model(plan: DeploymentPlan) -> dict[str, Any]:
    case, whole = plan.case, plan.whole
    return {
        "name": plan.name,
        "parameters": whole.total,
        "active_parameters": whole.active,
        "parameters_by_part": whole.parameters,
        "layer_by_part": whole.layer,
        "layers": sum(layers_of(case.model)),
        "context": case.model.context,
        "vocabulary": case.model.vocabulary,
        "dtype": format_of(case.model.storage.dtype).name,
        "weights": case.weights,
        "kv": case.kv,
        "weight_bytes": whole.nbytes,
        "notes": list(plan.notes),
    }


def _device(setup: Deployment) -> dict[str, Any]:
    device, price = setup.device, setup.device.price
    return {
        "name": device.name,
        "title": device.title,
        "devices": setup.devices,
        "peaks": dict(device.peaks),
        "bandwidth": device.bandwidth,
        "memory_bytes": device.memory,
        "link": None if device.link is None else {"name": device.link.name, "bandwidth": device.link.bandwidth},
        "host_link": device.host_link,
        "calibrated": device.calibrated,
        "price": json_data(price),
        "dollars_per_hour": setup.hourly,
        "sources": dict(device.sources),
    }


def _engine(engine: EngineProfile) -> dict[str, Any]:
    return {
        "name": engine.name,
        "title": engine.title,
        "host_known": engine.host is not None,
        "sources": dict(engine.sources),
    }


def _answer(plan: DeploymentPlan) -> dict[str, Any]:
    users = plan.capacity.users
    load = plan.capacity.load
    return {
        "fits": plan.memory.fits,
        "missing_bytes": plan.memory.missing,
        "users": users,
        "users_limited_by": plan.capacity.limit,
        "requests_per_second": json_data(load.requests_per_second) if users else None,
        "tokens_per_second": json_data(load.tokens_per_second) if users else None,
        "ttft": json_data(plan.prefill.seconds),
        "itl": json_data(plan.decode.seconds),
        "limit": plan.decode.limit,
        "limits": {"prefill": plan.prefill.limit, "decode": plan.workload_decode.limit},
        "dollars_per_million_tokens": plan.dollars_per_million,
        "sound": None if plan.audio is None else _sound(plan.audio, load, plan.dollars_per_million),
    }


def _sound(sound: AudioWorkload, load: LoadEstimate, million: float | None) -> dict[str, Any]:
    """Return the hours of audio per hour for all users, and the price of one."""
    return {
        "window_seconds": sound.window,
        "hours_per_hour": sound.rate(load.tokens_per_second.expected),
        "dollars_per_hour": None if million is None else sound.dollars(million),
    }


def _memory(memory: DeviceMemory, setup: Deployment) -> dict[str, Any]:
    fields = json_object(memory)
    del fields["layout"]
    sizes = ("total", "budget", "weights", "activations", "overhead", "left")
    return fields | {
        "utilization": setup.utilization,
        "state_bytes": memory.state_bytes,
        # If layers have recurrent states, a page holds a state or positions, so the token capacity depends on the
        # requests.
        "kv_tokens": None if memory.state_bytes else memory.kv_tokens,
        "page_size": None if memory.state_bytes else memory.page_size,
        "pages": memory.pages,
        "page_bytes": memory.page_bytes,
        "request_bytes": memory.request_bytes,
        "users": memory.users,
        "tokens_per_user": memory.admitted_tokens,
        "concurrency": memory.concurrency,
        "fits": memory.fits,
        "gib": {name: gib(fields[name]) for name in sizes},
        "gb": {name: gb(fields[name]) for name in sizes},
        "overhead_rule": setup.engine.memory.describe(),
    }


def _phase(phase: PhasePrice) -> dict[str, Any]:
    return json_object(phase) | {
        "memory_bytes": phase.memory_bytes,
        "communication_bytes": sum(phase.communication.values()),
    }


def _load(load: LoadEstimate) -> dict[str, Any]:
    return json_object(load) | {"tokens_per_second_per_user": json_data(load.tokens_per_user)}


def _experts(plan: DeploymentPlan) -> dict[str, float] | None:
    touched = {str(batch): touched_experts(plan.case, batch) for batch in (1, 8, 32, 64, 128, 256)}
    return {batch: count for batch, count in touched.items() if count is not None} or None
