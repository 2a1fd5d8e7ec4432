"""EngineProfile: what decides a price besides the card - how an engine adds up, admits, schedules and keeps memory."""

import difflib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from typing import Any, Literal

from ridgeline.price.device import Copies, Device, HostTime

DEFAULT_ENGINE, OWN_ENGINE = "vllm", "ridgeline"
_GIB = 2.0**30

Admission = Literal["full", "running"]
Policy = Literal["mixed", "prefill first"]


@dataclass(frozen=True, slots=True)
class LargeDevices:
    """Cards of so many bytes and more, but those whose name begins with `but`: a step has `rows` of logits on them."""

    nbytes: float
    but: str
    rows: int

    def has(self, device: Device) -> bool:
        """Whether a card is one of them."""
        return device.memory >= self.nbytes and not device.name.startswith(self.but)


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """What an engine takes of a card beside weights, a step's activations and KV.

    of: whether the share that may be used is of the card's `total`, or of what is `free` after weights and a step.
    rows: requests whose logits a step has room for, where `large` says no other number; copies: how many fp32 copies
    of them its sampler has alive at once. fixed, share, linked: bytes, a share of the card, and bytes where cards talk,
    for what no formula knows (driver, libraries, graphs).
    """

    of: Literal["total", "free"]
    rows: int
    copies: float
    fixed: float
    share: float
    linked: float
    large: LargeDevices | None = None

    def logit_rows(self, device: Device) -> int:
        """Requests whose logits a step has room for by default."""
        return self.large.rows if self.large is not None and self.large.has(device) else self.rows

    def overhead(self, device: Device, devices: int) -> float:
        """Bytes a card for what no formula knows."""
        return self.fixed + self.share * device.memory + (self.linked if devices > 1 else 0.0)

    def describe(self) -> str:
        """The rule in words."""
        linked = f" (+ {self.linked / _GIB:g} GiB between cards)" if self.linked else ""
        return f"driver, libraries, graphs: {self.fixed / _GIB:g} GiB + {self.share:.1%} of the card{linked}"


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """An engine, as far as a price needs it.

    all_reduce: custom or nccl, over `NVLink`, of a `pair` of cards, and in any `other` case. admission: whether a
    request is let in where all of it fits (full) or what it has so far (running). policy: how prompts and decodes share
    steps. host: None where nobody has published it. rereads: whether decode attention reads keys and values anew for
    each query head that shares them. own_attention: whether each of several cards has all but the experts whole, and
    requests of its own (attention data-parallel). dequantise: by storage format, the share of its bandwidth that a
    product of few rows keeps. copies: the kernels that move a prompt's rows around its attention; None where attention
    reads and writes what is before and after it. kinds: of the devices that it runs on, all of them where none is
    named. offered: whether plan takes it by name. sources: of every figure, by its field in engines.toml.
    """

    name: str
    title: str
    all_reduce: Mapping[str, str]
    admission: Admission
    policy: Policy
    memory: MemoryRule
    host: HostTime | None = None
    rereads: bool = False
    own_attention: bool = False
    dequantise: Mapping[str, float] = field(default_factory=dict)
    copies: Copies | None = None
    kinds: tuple[str, ...] = ()
    offered: bool = True
    sources: Mapping[str, str] = field(default_factory=dict)

    def on(self, device: Device, devices: int = 1) -> Device:
        """One of so many cards as this engine drives it. What was measured on this very machine stays as it was."""
        known = device.calibrated and device.host is not None
        return replace(
            device,
            host=device.host if known else self.host,
            all_reduce=self._all_reduce(device, devices),
            rereads=self.rereads,
            dequantise=self.dequantise,
            copies=self.copies,
        )

    def not_on(self, device: Device) -> str:
        """That it does not run on such a device yet, and what its price is then; "" where it does, as on one that was
        calibrated.
        """
        if not self.kinds or device.kind in self.kinds or device.calibrated:
            return ""
        alone = " and ".join(self.kinds)
        return f"{self.title} does not run on such a card yet ({alone} alone): its rules, with the card's kernel times"

    def _all_reduce(self, device: Device, devices: int) -> str:
        over = "NVLink" if device.link is not None and device.link.name.startswith("NVLink") else "other"
        case = "pair" if over == "other" and devices == 2 else over
        return self.all_reduce.get(case, self.all_reduce["other"])


def engines() -> tuple[str, ...]:
    """The engines that plan takes, the default first."""
    offered = [name for name, values in _engines().items() if values["offered"]]
    return tuple(sorted(offered, key=lambda name: name != DEFAULT_ENGINE))


def load_engine(name: str = DEFAULT_ENGINE) -> EngineProfile:
    """The engine called `name`, of those that plan takes or of published measurements. Raises ValueError with the names
    there are.
    """
    if name not in _engines():
        raise _unknown(name)
    return _loaded(name)


def offered_engine(name: str) -> EngineProfile:
    """The same of those that plan takes alone: the others leave open what a plan says."""
    if name not in engines():
        raise _unknown(name)
    return _loaded(name)


def with_own_attention(engine: EngineProfile) -> EngineProfile:
    """The profile of the same engine with data-parallel attention. Raises ValueError where there is none."""
    able = _with_own_attention()
    if engine.name not in able:
        raise ValueError(
            f"no profile of {engine.title} has data-parallel attention; give --engine {' or '.join(able)}, or leave "
            f"--enable-dp-attention out"
        )
    return _loaded(able[engine.name])


def engines_with_own_attention() -> tuple[str, ...]:
    """The profiles that engines have with data-parallel attention, by name; plan takes them by an option of its own."""
    offered = engines()
    return tuple(name for like, name in _with_own_attention().items() if like in offered)


def _with_own_attention() -> Mapping[str, str]:
    """By the name of the engine that it is like."""
    return {values["like"]: name for name, values in _engines().items() if values.get("own_attention")}


def _unknown(name: str) -> ValueError:
    near = difflib.get_close_matches(name, engines(), 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return ValueError(f"unknown engine {name!r}; {hint}known are {', '.join(engines())}")


def usual_engine(device: Device) -> EngineProfile:
    """The engine of a card of which nobody says what drives it: the default one, and Ridgeline on this machine, which
    was measured with it or probed for it.
    """
    return load_engine(OWN_ENGINE if device.calibrated or device.basis == "probe" else DEFAULT_ENGINE)


@cache
def _loaded(name: str) -> EngineProfile:
    return _profile(name, _whole(name))


@cache
def _engines() -> Mapping[str, dict[str, Any]]:
    text = resources.files("ridgeline.price").joinpath("engines.toml").read_text(encoding="utf-8")
    engines: Mapping[str, dict[str, Any]] = tomllib.loads(text)["engines"]
    return engines


def _whole(name: str) -> dict[str, Any]:
    """The fields of an engine: its own, and for what it does not state those of the engine that it is like."""
    own = _engines()[name]
    if "like" not in own:
        return own
    base, as_there = _whole(own["like"]), f"as of [engines.{own['like']}]"
    memory, sources = own.get("memory", {}), dict.fromkeys(base["sources"], as_there) | own["sources"]
    if memory and memory.keys() < base["memory"].keys():
        sources["memory"] += f"; the rest {as_there}"
    return base | own | {"memory": base["memory"] | memory, "sources": sources}


def _profile(name: str, values: Mapping[str, Any]) -> EngineProfile:
    host = values.get("host")
    return EngineProfile(
        name,
        values["title"],
        values["all_reduce"],
        values["admission"],
        values["policy"],
        _memory(values["memory"]),
        None
        if host is None
        else HostTime(host["step"] * 1e-6, 0.0, host["sequence"] * 1e-6, 0.0, 0.0, host["overlap"]),
        values.get("rereads", False),
        values.get("own_attention", False),
        values.get("dequantise", {}),
        Copies(**values["copies"]) if "copies" in values else None,
        tuple(values.get("kinds", ())),
        values["offered"],
        values["sources"],
    )


def _memory(rule: Mapping[str, Any]) -> MemoryRule:
    large = rule.get("large")
    return MemoryRule(
        rule["of"],
        rule["rows"],
        rule["copies"],
        rule["fixed"] * _GIB,
        rule["share"],
        rule["linked"] * _GIB,
        None if large is None else LargeDevices(large["gib"] * _GIB, large["but"], large["rows"]),
    )
