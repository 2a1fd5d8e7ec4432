"""The hardware catalogue: it turns cards.toml, or a user's file with the same fields, into Device objects."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from ridgeline.price.device import Basis, Cache, Device, Efficiency, HourlyPrice
from ridgeline.price.device_aliases import resolve_device_name
from ridgeline.price.device_fields import OPTIONAL, REQUIRED, TableReader, memory_instead
from ridgeline.price.interconnect import KINDS as KERNELS
from ridgeline.price.interconnect import Curve, Interconnect, latency_bandwidth_curve
from ridgeline.util.untrusted import read_json, read_toml

FORMATS = ("fp4", "int4", "fp8", "int8", "fp16", "bf16", "fp32")
KINDS = ("gpu", "cpu", "accelerator")
CLASSES = ("linear", "head", "experts", "attention", "elementwise", "norm", "embedding", "default")

# A class without constants of its own uses those of another one.
ALIKE = {"head": "linear", "norm": "elementwise", "embedding": "elementwise"}


@dataclass(frozen=True, slots=True)
class _Kernels:
    """The efficiency constants by kernel class before they are parsed, with their origin."""

    table: TableReader
    """The efficiency constants as stated, by kernel class."""
    source: str
    basis: Basis
    of: str = ""
    """The name of the device that the constants were measured on."""


def device_names() -> tuple[str, ...]:
    """Return the names of all devices in the catalogue, in its order."""
    return tuple(_catalogue()["cards"])


def catalogue_devices() -> tuple[Device, ...]:
    """Return every device of the hardware catalogue, in its order."""
    catalogue = _catalogue()
    return tuple(_device(name, TableReader(values, name), catalogue) for name, values in catalogue["cards"].items())


def load_device(name: str) -> Device:
    """Return the catalogue device called `name`, or the one described by the .json or .toml file at that path.

    Raises:
        ValueError: If the name is unknown or ambiguous (`resolve_device_name`), or the file is invalid. The message has
            one line; it lists the nearest names, or the exact ones for an ambiguous name such as `a100`.
    """
    catalogue = _catalogue()
    if name.endswith((".json", ".toml")):
        path = Path(name)
        return _device(*_own(path), catalogue)
    known = resolve_device_name(name, tuple(catalogue["cards"]))
    return _device(known, TableReader(catalogue["cards"][known], known), catalogue)


@cache
def _catalogue() -> dict[str, Any]:
    return tomllib.loads(resources.files("ridgeline.price").joinpath("cards.toml").read_text(encoding="utf-8"))


def _read(path: Path) -> object:
    try:
        return read_json(path) if path.suffix == ".json" else read_toml(path)
    except ValueError as error:
        raise ValueError(f"{error}; give the name of a device, or a .json or .toml file") from None


def _own(path: Path) -> tuple[str, TableReader]:
    """Return the name and the fields of the single device in a user's file.

    The file holds the fields themselves, or [cards.NAME] as in the catalogue.
    """
    values = _read(path)
    if not isinstance(values, dict) or not isinstance(values.get("cards"), dict):
        return path.stem, TableReader(values, str(path))
    if len(values) > 1 or len(values["cards"]) != 1:
        raise ValueError(
            f"{path}: it must describe one device, as [cards.NAME] or as the fields alone, and nothing else"
        )
    ((name, fields),) = values["cards"].items()
    return name, TableReader(fields, str(path))


def _device(name: str, table: TableReader, catalogue: Mapping[str, Any]) -> Device:
    table.require(REQUIRED)
    table.forbid_unknown(*REQUIRED, *OPTIONAL)
    kind = table.text("kind")
    if kind not in KINDS:
        raise table.field_error("kind", kind, f"one of {', '.join(KINDS)}")
    peaks, price = _peaks(table.table("tflops")), _price(table)
    link, reduction = _link(table.table("link"), name, catalogue) if table.has("link") else (None, "")
    kernels = _kernels(name, table, kind, catalogue)
    sources = _sources(table, catalogue) | {"efficiency": kernels.source}
    if price is not None:
        sources["price"] = price.source
    if link is not None:
        sources["link.all_reduce"] = "; ".join(filter(None, (sources.get("link.all_reduce"), reduction)))
    return Device(
        name=name,
        title=table.text("title"),
        kind=kind,
        peaks=peaks,
        bandwidth=table.positive("bandwidth") * 1e9,
        memory=_memory(table.table("memory")),
        caches=_caches(table),
        link=link,
        host_link=_host_link(table, link),
        watts=table.positive("watts") if table.has("watts") else None,
        price=price,
        efficiency=_efficiency(kernels.table, table, kind),
        basis=kernels.basis,
        measured_on=kernels.of,
        sources=sources,
    )


def _peaks(table: TableReader) -> dict[str, float]:
    table.forbid_unknown(*FORMATS)
    if not table.values:
        raise table.field_error("", {}, f"TFLOP/s by number format, one or more of {', '.join(FORMATS)}")
    return {name: table.positive(name) * 1e12 for name in table.values}


def _memory(table: TableReader) -> float:
    for unit, size in table.values.items():
        instead = memory_instead(unit, size)
        if instead:
            raise ValueError(f"{table.source}: unknown field memory.{unit}; write memory = {{ {instead} }}")
    table.forbid_unknown("mib", "gb")
    if len(table.values) != 1:
        raise table.field_error("", table.values, "{ mib = ... } as the driver shows it, or { gb = ... } as sold")
    return table.positive("mib") * 2**20 if table.has("mib") else table.positive("gb") * 1e9


def _caches(device_table: TableReader) -> tuple[Cache, ...]:
    entries = device_table.values.get("caches", [])
    if not isinstance(entries, list):
        raise device_table.field_error("caches", entries, "a list of { name, mib, bandwidth }")
    caches = []
    for entry in entries:
        table = TableReader(entry, device_table.source, "caches.")
        table.forbid_unknown("name", "mib", "bandwidth")
        caches.append(Cache(table.text("name"), table.positive("mib") * 2**20, table.positive("bandwidth") * 1e9))
    return tuple(caches)


def _link(table: TableReader, device: str, catalogue: Mapping[str, Any]) -> tuple[Interconnect, str]:
    """Return the interconnect of a device, and the source of the all-reduce times that are not its own."""
    table.forbid_unknown("name", "bandwidth", "all_reduce")
    name, bandwidth = table.text("name"), table.positive("bandwidth") * 1e9
    measured = _measured(table, name, catalogue)
    curves = {kind: _curves(measured.table(kind)) for kind in KERNELS if measured.has(kind)}
    there = Interconnect(name, measured.positive("bandwidth") * 1e9, curves)
    here = there.over(bandwidth / there.bandwidth).all_reduce
    own = _curves(table.table("all_reduce")) if isinstance(table.values.get("all_reduce"), dict) else {}
    # For device counts without custom kernels, an engine falls back to NCCL.
    both = {"custom": {**here["nccl"], **here.get("custom", {}), **own}, "nccl": {**here["nccl"], **own}}
    source = catalogue["sources"].get(measured.text("source"), measured.text("source"))
    source += _elsewhere(measured.values.get("card", device), device)
    return Interconnect(name, bandwidth, both), f"other numbers of devices: {source}" if own else source


def _host_link(table: TableReader, link: Interconnect | None) -> float | None:
    """Return the stated host bandwidth. A device with a PCIe interconnect reaches its host over that same link."""
    if table.has("host_link"):
        return table.positive("host_link") * 1e9
    return link.bandwidth if link is not None and link.name.startswith("PCIe") else None


def _measured(table: TableReader, name: str, catalogue: Mapping[str, Any]) -> TableReader:
    """Return the set of all-reduce measurements that a link names, or the usual set for its kind of link."""
    sets, usual = catalogue["all_reduce"], catalogue["all_reduce_of"]
    stated = table.values.get("all_reduce")
    kind = next((kind for kind in usual if name.startswith(kind)), "other")
    chosen = stated if isinstance(stated, str) else usual[kind]
    if chosen not in sets:
        raise table.field_error("all_reduce", chosen, f"one of {', '.join(sets)}, or a table by number of devices")
    return TableReader(sets[chosen], f"all_reduce {chosen}")


def _curves(entries: TableReader) -> dict[int, Curve]:
    """Parse all-reduce times by number of devices.

    An entry is [us, GB/s], a latency and a bandwidth, or [[KiB, us], ...], a curve.
    """
    curves: dict[int, Curve] = {}
    for count, entry in entries.values.items():
        if not count.isdecimal() or int(count) < 2:
            raise entries.field_error("", count, "a number of devices, 2 or more")
        curves[int(count)] = _curve(entries, count) if _is_curve(entry) else _straight(entries, count)
    return curves


def _is_curve(entry: object) -> bool:
    return isinstance(entry, list) and bool(entry) and isinstance(entry[0], list)


def _straight(entries: TableReader, count: str) -> Curve:
    latency, bandwidth = entries.numbers(count, 2)
    if not bandwidth:
        raise entries.field_error(
            count, entries.values[count], "a list of the latency in microseconds and the bandwidth in GB/s above 0"
        )
    return latency_bandwidth_curve(latency * 1e-6, bandwidth * 1e9)


def _curve(entries: TableReader, count: str) -> Curve:
    pairs = (TableReader({count: pair}, entries.source, entries.path) for pair in entries.values[count])
    sizes, times = zip(*(pair.numbers(count, 2) for pair in pairs), strict=True)
    if min(sizes[0], times[0]) <= 0 or not _rise(sizes, strictly=True) or not _rise(times):
        raise entries.field_error(
            count, entries.values[count], "pairs of KiB and microseconds, both above 0 and rising"
        )
    return Curve(tuple(size * 1024 for size in sizes), tuple(time * 1e-6 for time in times))


def _rise(values: tuple[float, ...], *, strictly: bool = False) -> bool:
    return all(low < high or (low == high and not strictly) for low, high in pairwise(values))


def _elsewhere(measured: str, device: str) -> str:
    """Return a remark to append to a source if its figures were measured on another device, otherwise ""."""
    return "" if measured == device else f", measured on {measured}, not on this device"


def _price(device_table: TableReader) -> HourlyPrice | None:
    """Return the price stated in a user's device file. Prices of the catalogue's devices are in prices.toml."""
    if not device_table.has("price"):
        return None
    table = device_table.table("price")
    table.forbid_unknown("dollars", "date", "source")
    return HourlyPrice(table.positive("dollars"), table.text("date"), table.text("source"))


def _kernels(name: str, table: TableReader, kind: str, catalogue: Mapping[str, Any]) -> _Kernels:
    """Return the efficiency constants that a device states or names, by default those of its kind."""
    sets = catalogue["efficiency"]
    chosen = table.values.get("efficiency", kind)
    if isinstance(chosen, dict):
        return _Kernels(table.table("efficiency"), f"stated in {table.source}", "file")
    if not isinstance(chosen, str) or chosen not in sets:
        raise table.field_error("efficiency", chosen, f"one of {', '.join(sets)}, or a table of classes")
    classes = {key: value for key, value in sets[chosen].items() if key not in ("source", "card")}
    # A set that names no device was not measured on any.
    of, source = sets[chosen].get("card", ""), catalogue["sources"].get(sets[chosen]["source"], sets[chosen]["source"])
    basis: Basis = "kind" if not of else "own" if of == name else "alike"
    source += _elsewhere(of or name, name)
    return _Kernels(TableReader(classes, f"efficiency {chosen}"), source, basis, of)


def _efficiency(table: TableReader, device_table: TableReader, kind: str) -> dict[str, Efficiency]:
    """Parse the efficiency constants of each kernel class."""
    if not table.has("default"):
        raise ValueError(
            f"{device_table.source}: efficiency.default is missing; give [launch in us, share of peak, "
            "share of bandwidth]"
        )
    constants: dict[str, Efficiency] = {}
    for key in table.values:
        kernel, _, number_format = key.partition("/")
        if kernel.partition(".")[0] not in CLASSES or (number_format and number_format not in FORMATS):
            raise ValueError(
                f"{device_table.source}: unknown class efficiency.{key}; the known classes are {', '.join(CLASSES)}, "
                "each also as class.kernel and class/format"
            )
        launch, compute, memory = table.numbers(key, 3)
        if not 0 < compute <= 1 or not 0 < memory <= 1:
            raise table.field_error(
                key,
                table.values[key],
                "[launch in us, share of peak, share of bandwidth], shares above 0 and at most 1",
            )
        # On a GPU, engines fuse the repeated calls of an op into one kernel; on a CPU, each is called in turn.
        constants[key] = Efficiency(launch * 1e-6, compute, memory, again=1.0 if kind == "cpu" else 0.0)
    for other, base in ALIKE.items():
        for key in [key for key in constants if re.split("[./]", key)[0] == base]:
            constants.setdefault(key.replace(base, other, 1), constants[key])
    return constants


def _sources(table: TableReader, catalogue: Mapping[str, Any]) -> dict[str, str]:
    """Return the source of each field: its own, else that of its parent field, else `all`.

    A user's file needs no sources, and its texts are taken literally. Only the catalogue's devices refer to ids of
    [sources].
    """
    ids: Mapping[str, str] = catalogue["sources"] if table.source in catalogue["cards"] else {}
    own = table.table("sources").values if table.has("sources") else {"all": f"stated in {table.source}"}
    fields = [field for field in ("bandwidth", "memory", "caches", "link", "host_link", "watts") if table.has(field)]
    fields += [f"tflops.{name}" for name in table.values["tflops"]]
    if table.has("link") and isinstance(table.values["link"].get("all_reduce"), dict):
        fields.append("link.all_reduce")
    for field in own:
        if field != "all" and field not in (*fields, "tflops"):
            raise ValueError(
                f"{table.source}: sources.{field} has no matching field in the device description; remove it"
            )
    named = {field: own.get(field) or own.get(field.partition(".")[0]) or own.get("all") for field in fields}
    for field, source in named.items():
        if not isinstance(source, str):
            raise ValueError(
                f"{table.source}: sources.{field} is missing; state where the value is from, or give sources.all"
            )
    return {field: ids.get(str(source), str(source)) for field, source in named.items()}
