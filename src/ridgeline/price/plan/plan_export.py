"""The plan as a JSON object, with times in seconds and sizes in bytes; some sizes are also in GiB and GB.

The figures of phases, memory and weights are those of one device. `answer`, `load` and the users that memory holds are
those of one replica, which is all devices of the deployment. `fleet` is that of all replicas for a demand.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ridgeline.core.models.common.parameter_breakdown import layers_of
from ridgeline.core.ops.number_formats import format_of
from ridgeline.price.cold_start import ColdStart
from ridgeline.price.device_basis import basis_of
from ridgeline.price.error_interval import Kind
from ridgeline.price.plan.answer_export import answer_json, sound_json
from ridgeline.price.plan.comparison import DeviceComparison, Offer
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.device_memory import DeviceMemory
from ridgeline.price.plan.load_estimate import touched_experts
from ridgeline.price.plan.plan_audio import AudioWorkload
from ridgeline.price.plan.plan_text import DEFINITIONS, verdict
from ridgeline.price.plan.scenario import Deployment
from ridgeline.price.trust_export import trust_json
from ridgeline.util.document.humanize import gb, gib
from ridgeline.util.json_data import json_data, json_object, json_select

_KIND_OF: Mapping[str, Kind] = MappingProxyType(
    {
        "fits": "memory", "missing_bytes": "memory", "users": "load", "requests_per_second": "load",
        "tokens_per_second": "load", "dollars_per_million_tokens": "load", "kwh_per_million_tokens": "load",
        "joules_per_token": "load", "ttft": "prefill", "itl": "decode", "job_seconds": "load", "job_dollars": "load",
    }
)  # fmt: skip


def plan_json(plan: DeploymentPlan, comparison: DeviceComparison | None = None) -> dict[str, Any]:
    """Return all figures of a plan, and of the devices that it was compared on, as JSON data."""
    setup, workload = plan.case.setup, plan.workload
    return {
        "model": _model(plan),
        "device": _device(setup),
        "engine": json_select(setup.engine, "name", "title")
        | {"host_known": setup.engine.host is not None, "sources": dict(setup.engine.sources)},
        **json_select(plan, "workload"),
        "answer": answer_json(plan),
        "memory": _memory(plan.memory, setup),
        **json_select(plan, "weights"),
        "ways_to_fit": [json_select(way, "devices", "weights") for way in plan.ways],
        **json_select(plan, "phases", "prefill"),
        "decode": json_object(plan.decode)
        | {
            "tokens_per_second_per_user": json_data(plan.decode.seconds.per_second(1)),
            "tokens_per_second": json_data(plan.decode.seconds.per_second(workload.batch)),
        },
        "request": json_object(plan.request)
        | {"tokens_per_second": json_data(plan.request.per_second(workload.batch * workload.output))},
        "loading": {name: _cold_start(start) for name, start in plan.loading.items()},
        **json_select(plan, "crossings", "sweep"),
        "experts_touched": _experts(plan),
        "load": json_select(plan, "asked=load", "most=capacity.load", "all_that_memory_holds=fullest"),
        **json_select(plan, "demand", "fleet", "attention=scores", "levers", "batching", "sensitivities"),
        "cards": None if comparison is None else comparison_json(comparison)["cards"],
        "trust": trust_json(setup.device, setup.engine, plan.intervals, _KIND_OF),
        "words": verdict(plan),
        "definitions": dict(DEFINITIONS),
    }


def comparison_json(comparison: DeviceComparison) -> dict[str, Any]:
    """Return the compared devices as JSON data, ranking by ranking, then those that serve no user."""
    return {
        "model": {"name": comparison.name},
        **json_select(comparison, "workload", "demand"),
        "sellers": [
            json_select(ranking, "seller", "date", "source")
            | {
                "cards": len(ranking.offers),
                "as_stored": None if ranking.as_stored is None else _offer(ranking.as_stored, comparison.sound),
            }
            for ranking in comparison.rankings
        ],
        **json_select(comparison, "unpriced"),
        "searched": json_select(comparison, "devices=counts", "stored"),
        "cards": [_offer(offer, comparison.sound) for offer in comparison.offers],
    }


def _offer(offer: Offer, sound: AudioWorkload | None) -> dict[str, Any]:
    return {
        **json_select(offer, "*outcome", "seller=outcome.price.asked_by", "load"),
        "sound": None if sound is None else sound_json(sound, offer.load, offer.outcome.dollars_per_million),
        **json_select(offer, "fleet", "margins"),
        "kernels": basis_of(offer.device),
        "interval": json_data(offer.interval),
        "factors": dict(zip(("low", "high"), offer.factors, strict=True)),
    }


def _cold_start(start: ColdStart) -> dict[str, Any]:
    totals = json_select(start, "floor=overlapped", "in_turn=sequential")
    return json_object(start) | (dict.fromkeys(totals) if start.copy is None else totals)


def _model(plan: DeploymentPlan) -> dict[str, Any]:
    model, whole = plan.case.model, plan.whole
    return {
        "name": plan.name,
        **json_select(whole, "parameters=total", "active_parameters=active", "parameters_by_part=parameters"),
        "layer_by_part": whole.layer,
        "layers": sum(layers_of(model)),
        **json_select(model, "context", "vocabulary"),
        "dtype": format_of(model.storage.dtype).name,
        **json_select(plan, "case.weights", "case.kv", "weight_bytes=whole.nbytes", "notes"),
        **json_select(plan.case, "model.traced_from", "model.priced_only", "model.undivided", "unmodelled"),
    }


def _device(setup: Deployment) -> dict[str, Any]:
    link = setup.device.link
    return {
        **json_select(setup, "device.name", "device.title", "devices", "device.peaks", "device.bandwidth"),
        "memory_bytes": setup.device.memory,
        "link": None if link is None else json_select(link, "name", "bandwidth"),
        **json_select(setup.device, "host_link", "watts", "calibrated", "price"),
        "dollars_per_hour": setup.hourly,
        "sources": dict(setup.device.sources),
    }


def _memory(memory: DeviceMemory, setup: Deployment) -> dict[str, Any]:
    fields, pages = json_object(memory), json_select(memory, "kv_tokens", "page_size")
    sizes = ("total", "budget", "weights", "activations", "overhead", "left")
    return fields | {
        "utilization": setup.utilization,
        "state_bytes": memory.state_bytes,
        # If layers have recurrent states, a page holds a state or positions, so the token capacity depends on the
        # requests.
        **(dict.fromkeys(pages) if memory.state_bytes else pages),
        **json_select(memory, "pages", "page_bytes", "request_bytes", "users", "tokens_per_user=admitted_tokens"),
        **json_select(memory, "concurrency", "fits"),
        "gib": {name: gib(fields[name]) for name in sizes},
        "gb": {name: gb(fields[name]) for name in sizes},
        "overhead_rule": setup.engine.memory.describe(),
    }


def _experts(plan: DeploymentPlan) -> dict[str, float] | None:
    touched = {str(batch): touched_experts(plan.case, batch) for batch in (1, 8, 32, 64, 128, 256)}
    return {batch: count for batch, count in touched.items() if count is not None} or None
