"""The output of `ridgeline plan --list`: the models, pipelines and devices of the catalogue."""

from typing import Any

from ridgeline.core.checkpoint.catalogue import model_names, parameter_counts, pipeline_names
from ridgeline.core.models.from_transformers.installed_package import PIP, is_usable, package_name
from ridgeline.price.devices import catalogue_devices
from ridgeline.price.hourly_prices import builtin_snapshots
from ridgeline.util.document.elements import Document, DocumentTable, Paragraph, TableRow, columns
from ridgeline.util.document.humanize import gib
from ridgeline.util.json_data import json_select


def list_json() -> dict[str, Any]:
    """Return models and pipelines with their parameters, and devices with their peak rates and prices by seller."""
    sellers = builtin_snapshots()
    return {
        "models": [_counted(name) for name in model_names()],
        "pipelines": [_counted(name) for name in pipeline_names()],
        "cards": [
            {
                **json_select(device, "name", "title", "memory_bytes=memory", "bandwidth"),
                "bf16": device.peaks.get("bf16"),
                "dollars_per_hour": {s.seller: s.dollars[device.name] for s in sellers if device.name in s.dollars},
            }
            for device in catalogue_devices()
        ],
        "sellers": [{"seller": s.seller, "title": s.title, "date": s.date, "source": s.source} for s in sellers],
    }


def _counted(name: str) -> dict[str, Any]:
    total, active = parameter_counts()[name]
    return {"name": name, "parameters": total, "active_parameters": active}


def list_document(known: dict[str, Any]) -> Document:
    """Return the models, pipelines and devices of the catalogue as tables."""
    models, pipelines, device_list = known["models"], known["pipelines"], known["cards"]
    return Document(
        f"{len(models)} models, {len(pipelines)} diffusion pipelines and {len(device_list)} devices",
        (
            DocumentTable(columns("model", "parameters", "active"), tuple(_model_row(model) for model in models)),
            DocumentTable(columns("pipeline", "denoiser", "active"), tuple(_model_row(model) for model in pipelines)),
            DocumentTable(
                columns("device", "title", "GiB", "GB/s", "bf16 TFLOP/s", "$/h", words=(0, 1)),
                tuple(_device_row(device) for device in device_list),
            ),
            Paragraph(
                f"$/h: the lowest and highest price of {_listed(known)}; docs/plan.md explains --seller and --prices."
            ),
            Paragraph("MODEL may also be a config.json, --device a device file (docs/plan.md), `this` or `cuda`."),
            Paragraph(_other_architectures()),
        ),
    )


def _other_architectures() -> str:
    """Return a sentence on architectures that no family builds."""
    rule = "Of an architecture that no family builds, the class of transformers is traced (docs/models.md)"
    return f"{rule}: {package_name()}." if is_usable() else f"{rule}, after {PIP}."


def _model_row(model: dict[str, Any]) -> TableRow:
    total, active = model["parameters"], model["active_parameters"]
    return TableRow((model["name"], _billions(total), _billions(active) if active != total else ""))


def _device_row(device: dict[str, Any]) -> TableRow:
    peak, quoted = device["bf16"], sorted(device["dollars_per_hour"].values())
    memory, bandwidth = f"{gib(device['memory_bytes']):,.0f}", f"{device['bandwidth'] / 1e9:,.0f}"
    teraflops = "" if peak is None else f"{peak / 1e12:,.0f}"
    return TableRow((device["name"], device["title"], memory, bandwidth, teraflops, _range(quoted)))


def _range(dollars: list[float]) -> str:
    """Return the lowest and highest of sorted prices as text: `2.29 to 12.29`."""
    return " to ".join(f"{each:.2f}" for each in dict.fromkeys((*dollars[:1], *dollars[-1:])))


def _listed(known: dict[str, Any]) -> str:
    """Return the sellers with their dates as text: `nebius (2025), verda (2026)`."""
    return ", ".join(f"{each['seller']} ({each['date']})" for each in known["sellers"])


def _billions(count: int) -> str:
    return f"{count / 1e9:,.2f} B" if count >= 1e9 else f"{count / 1e6:,.0f} M"
