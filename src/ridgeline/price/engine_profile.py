"""Engine profiles: the properties of an engine that affect a price, such as all-reduce, scheduling and memory use."""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

from ridgeline.price.device import Copies, Device, HostTime

DEFAULT_ENGINE, OWN_ENGINE, UNKNOWN_ENGINE = "vllm", "ridgeline", "other"
_GIB = 2.0**30

Admission = Literal["full", "running"]
Policy = Literal["mixed", "prefill first"]


@dataclass(frozen=True, slots=True)
class LargeDevices:
    """The rule of an engine that reserves memory for other numbers of logits on devices with much memory."""

    nbytes: float
    """The minimum memory in bytes of the devices to which the rule applies."""
    but: str
    """The name prefix of devices that are exempt from the rule, regardless of their memory."""
    rows: int
    """The number of requests whose logits a step on such a device reserves memory for."""

    def has(self, device: Device) -> bool:  # also in formulas.js
        """Return whether a device has enough memory for the rule to apply, and its name is not exempt."""
        return device.memory >= self.nbytes and not device.name.startswith(self.but)


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """The device memory that an engine uses in addition to weights, activations and KV."""

    of: Literal["total", "free"]
    """The base of the utilization: `total` device memory, or the memory that is `free` after weights and a step."""
    rows: int
    """The number of requests whose logits a step reserves memory for, unless `large` applies."""
    copies: float
    """The number of fp32 copies of the step's logits that the sampler has alive at once."""
    fixed: float
    """The bytes for driver, libraries and graphs, which no formula predicts."""
    share: float
    """The share of the device's memory that driver, libraries and graphs take in addition to `fixed`."""
    linked: float
    """The additional overhead in bytes if several devices communicate."""
    large: LargeDevices | None = None
    """The rule that replaces `rows` on devices with much memory; None if all devices use `rows`."""

    def logit_rows(self, device: Device) -> int:  # also in formulas.js
        """Return the default number of requests whose logits a step reserves memory for."""
        return self.large.rows if self.large is not None and self.large.has(device) else self.rows

    def overhead(self, device: Device, devices: int) -> float:  # also in formulas.js
        """Return the bytes per device for driver, libraries, graphs and communication."""
        return self.fixed + self.share * device.memory + (self.linked if devices > 1 else 0.0)

    def budget(self, total: float, taken: float, utilization: float) -> float:  # also in formulas.js
        """Return the bytes that may be used of a device's `total` memory.

        `taken` are the bytes of everything but KV.
        """
        return total * utilization if self.of == "total" else taken + (total - taken) * utilization

    def describe(self) -> str:
        """Return a text that describes an engine's memory overhead.

        It states the fixed bytes, the share of the device and the bytes for communication.
        """
        linked = f" (+ {self.linked / _GIB:g} GiB on several devices)" if self.linked else ""
        return f"driver, libraries, graphs: {self.fixed / _GIB:g} GiB + {self.share:.1%} of device memory{linked}"


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """The properties of an inference engine that the cost model needs."""

    name: str
    title: str
    all_reduce: Mapping[str, str]
    """The kind of all-reduce kernels, "custom" or "nccl", by connection: `NVLink`, `pair` or `other`.

    `pair` stands for two devices without NVLink. A connection that is missing uses the kind of `other`.
    """
    admission: Admission
    """Whether a request is admitted when all of it fits ("full"), or when its current tokens fit ("running")."""
    policy: Policy
    """Whether prompts and decodes share steps ("mixed"), or prompts run in steps of their own ("prefill first")."""
    memory: MemoryRule
    host: HostTime | None = None
    """The host overhead of the engine per step; None if no measurement is published."""
    rereads: bool = False
    """Whether decode attention reads keys and values again for each query head that shares them."""
    own_attention: bool = False
    """Whether attention is data-parallel: each device holds everything but the experts and has requests of its own."""
    dequantise: Mapping[str, float] = field(default_factory=dict)
    """The share of its bandwidth that a matrix product of few rows keeps, by storage format."""
    copies: Copies | None = None
    """The kernels that copy a prompt's rows around its attention; None if attention reads and writes them in place."""
    kinds: tuple[str, ...] = ()
    """The kinds of devices and the makers of GPUs that the engine runs on; empty for all."""
    one_gpu: bool = False
    """Whether the engine does not split a model over several GPUs."""
    offered: bool = True
    """Whether users can choose the engine by name in `ridgeline plan`."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """The source of every property of the engine, by its field in engines.toml."""

    def on(self, device: Device, devices: int = 1) -> Device:  # also in formulas.js
        """Return a copy of the device with this engine's properties, such as its all-reduce kernels.

        Host times that were calibrated on this machine are preserved.

        Args:
            device: The device.
            devices: The number of devices in the deployment, on which the choice of all-reduce kernels depends.
        """
        known = device.calibrated and device.host is not None
        return replace(
            device,
            host=device.host if known else self.host,
            all_reduce=self._all_reduce(device, devices),
            rereads=self.rereads,
            dequantise=self.dequantise,
            copies=self.copies,
        )

    def unsupported_note(self, device: Device, devices: int = 1) -> str:
        """Return a note that the engine does not yet run on such devices and how they are priced; "" if it does.

        A calibrated device counts as supported.

        Args:
            device: The device.
            devices: The number of devices that each layer is split over.
        """
        runs = not self.kinds or device.calibrated or {device.kind, device.maker} & set(self.kinds)
        if runs and (devices == 1 or not self.one_gpu or device.kind != "gpu"):
            return ""
        where = "split over GPUs" if runs else f"on this device yet (only on {_list_kinds(self.kinds)})"
        return f"{self.title} does not run {where}: predicted with its rules and this device's kernel times"

    def _all_reduce(self, device: Device, devices: int) -> str:  # also in formulas.js
        over = "NVLink" if device.link is not None and device.link.name.startswith("NVLink") else "other"
        case = "pair" if over == "other" and devices == 2 else over
        return self.all_reduce.get(case, self.all_reduce["other"])


def engines() -> tuple[str, ...]:
    """Return the names of the engines that `ridgeline plan` accepts, the default first."""
    offered = [name for name, values in _engines().items() if values["offered"]]
    return tuple(sorted(offered, key=lambda name: name != DEFAULT_ENGINE))


def load_engine(name: str = DEFAULT_ENGINE) -> EngineProfile:
    """Return the profile of the engine called `name`, including those that only published measurements use.

    Raises:
        ValueError: If there is no such engine. The message lists the names that `ridgeline plan` accepts.
    """
    if name not in _engines():
        raise _unknown(name)
    return _loaded(name)


def offered_engine(name: str) -> EngineProfile:
    """Return the profile called `name`, of the engines that `ridgeline plan` accepts.

    The other profiles do not state everything that a plan needs.

    Raises:
        ValueError: If it is not one of them. The message lists the known names.
    """
    if name not in engines():
        raise _unknown(name)
    return _loaded(name)


def with_own_attention(engine: EngineProfile) -> EngineProfile:
    """Return the profile of the same engine with data-parallel attention.

    Raises:
        ValueError: If the engine has no such profile.
    """
    able = _with_own_attention()
    if engine.name not in able:
        raise ValueError(
            f"{engine.title} has no profile with data-parallel attention; give --engine {' or '.join(able)}, or leave "
            "out --enable-dp-attention"
        )
    return _loaded(able[engine.name])


def engines_with_own_attention() -> tuple[str, ...]:
    """Return the names of the profiles with data-parallel attention whose base engine `ridgeline plan` accepts.

    They are selected by an option of their own.
    """
    offered = engines()
    return tuple(name for like, name in _with_own_attention().items() if like in offered)


def _with_own_attention() -> Mapping[str, str]:
    """Return the names of the profiles with data-parallel attention, by the name of the base engine."""
    return {values["like"]: name for name, values in _engines().items() if values.get("own_attention")}


def _unknown(name: str) -> ValueError:
    near = difflib.get_close_matches(name, engines(), 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return ValueError(f"unknown engine {name!r}; {hint}the known engines are {', '.join(engines())}")


def default_engine(device: Device) -> EngineProfile:
    """Return the default engine for a device: Ridgeline for this machine, otherwise vLLM.

    This machine is one that was calibrated or probed with Ridgeline.
    """
    return load_engine(OWN_ENGINE if device.calibrated or device.basis == "probe" else DEFAULT_ENGINE)


def _list_kinds(kinds: Sequence[str]) -> str:
    """Return kinds of devices and makers of GPUs as words: `CPUs and NVIDIA GPUs`."""
    return " and ".join(f"{kind.upper()}s" if kind.islower() else f"{kind} GPUs" for kind in kinds)


@cache
def _loaded(name: str) -> EngineProfile:
    return _profile(name, _whole(name))


@cache
def _engines() -> Mapping[str, dict[str, Any]]:
    text = resources.files("ridgeline.price").joinpath("engines.toml").read_text(encoding="utf-8")
    engines: Mapping[str, dict[str, Any]] = tomllib.loads(text)["engines"]
    return engines


def _whole(name: str) -> dict[str, Any]:
    """Return the fields of an engine, with those that it does not state taken from the engine named by `like`."""
    own = _engines()[name]
    if "like" not in own:
        return own
    base, as_there = _whole(own["like"]), f"as of [engines.{own['like']}]"
    memory, sources = own.get("memory", {}), dict.fromkeys(base["sources"], as_there) | own["sources"]
    if memory and memory.keys() < base["memory"].keys():
        sources["memory"] += f"; the rest {as_there}"
    return base | own | {"memory": base["memory"] | memory, "sources": sources}


def _profile(name: str, values: Mapping[str, Any]) -> EngineProfile:
    fields = {key: value for key, value in values.items() if key != "like"}
    fields |= {"memory": _memory(values["memory"]), "kinds": tuple(values.get("kinds", ()))}
    if host := values.get("host"):
        fields["host"] = HostTime(host["step"] * 1e-6, 0.0, host["sequence"] * 1e-6, 0.0, 0.0, host["overlap"])
    if "copies" in values:
        fields["copies"] = Copies(**values["copies"])
    return EngineProfile(name, **fields)


def _memory(rule: Mapping[str, Any]) -> MemoryRule:
    fields = {**rule, "fixed": rule["fixed"] * _GIB, "linked": rule["linked"] * _GIB}
    if large := rule.get("large"):
        fields["large"] = LargeDevices(large["gib"] * _GIB, large["but"], large["rows"])
    return MemoryRule(**fields)
