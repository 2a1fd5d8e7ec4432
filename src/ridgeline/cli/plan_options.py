"""The options of `ridgeline plan`, and what they ask for."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from ridgeline.cli import options
from ridgeline.cli.options import device_named, parse_dollars, parse_seconds, parse_tokens
from ridgeline.core.checkpoint.adapter import adapt, read_adapters
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models import family_of
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.device_aliases import similar_device_names
from ridgeline.price.devices import catalogue_devices, names
from ridgeline.price.engine_profile import (
    DEFAULT_ENGINE,
    EngineProfile,
    engines,
    offered_engine,
    usual_engine,
    with_own_attention,
)
from ridgeline.price.hourly_prices import PriceSnapshot, priced, quotes, read_prices, seller_named, seller_of, snapshots
from ridgeline.price.plan import Demand, Deployment, PlanWorkload
from ridgeline.price.plan.comparison import Unpriced
from ridgeline.price.plan.plan_document import SECTIONS, check_sections
from ridgeline.price.plan.scenario import Beside

# What somebody who reads along hardly waits for: a second, then 20 tokens a second.
INTERACTIVE_TTFT, INTERACTIVE_TPOT = 1.0, 0.05

_MAX_BATCH = 1 << 40  # far above any there is

_OFFERED = 3  # names for one that is not known

_IMAGES = "The number of images in a prompt, for models that read images; their tokens count as part of --input."
_BATCH = "The batch size. With several, like 1,8,64, a decode step of each, and a plan of the first."
_ENGINE = (
    f"The engine whose speed is predicted: {', '.join(engines())}. Default: {DEFAULT_ENGINE}, and ridgeline for `this`."
)
_SLO = (
    "Latency targets, like ttft=500ms,tpot=40ms; a target that is not named does not apply. `none`: "
    "as many users as fit into memory."
)
_TTFT = "The target for the mean time to first token (TTFT), like 500ms; 1s by default."
_SECTION = f"Show only these sections, like memory,time; repeatable: {', '.join(SECTIONS)}."
_TPOT = (
    "The target for the mean time per output token after the first (TPOT), prefills of other users "
    "included; 50ms by default."
)


def beside_of(source: ModelSource, lora: Sequence[str] | None) -> Beside | None:
    """What puts the adapters of --lora beside each model of a source that is built. Raises ValueError."""
    adapters = read_adapters(options.adapters_of(lora, "--lora"))
    return None if not adapters else lambda model: adapt(model, family_of(source.config), adapters)


_setup, _workload, _pictures, _money, _shown = map(
    options.panel, ("Deployment", "Workload", "Diffusion", "Cost", "Display")
)


@dataclass(frozen=True, slots=True)
class SetupFlags:
    """Where the model is put, and how it is stored."""

    device: Annotated[str | None, _setup(options.DEVICE, "--device", "--card")] = None
    devices: options.Devices = 1
    weights: options.Weights = None
    kv: options.KV = None
    engine: Annotated[str | None, _setup(_ENGINE)] = None
    enable_dp_attention: options.DpAttention = False
    memory_utilization: Annotated[float, _setup("The share of a device's memory that may be used.")] = 0.9
    max_batch_tokens: options.MaxBatchTokens = "2k"

    def setup(self, device: Device) -> Deployment:
        """The same on a card. Raises ValueError."""
        usual = self.engine is None and not self.enable_dp_attention
        return Deployment(
            device, self.devices, self.weights, self.kv, self.memory_utilization, self._driven(device), usual
        )

    def _driven(self, device: Device) -> EngineProfile:
        engine = usual_engine(device) if self.engine is None else offered_engine(self.engine)
        if not self.enable_dp_attention:
            return engine
        if self.devices == 1:
            raise ValueError("--enable-dp-attention divides requests among cards; give --devices 2 or more")
        return with_own_attention(engine)


@dataclass(frozen=True, slots=True)
class WorkloadFlags:
    """What requests are like, what they may take, and how many there are."""

    input: options.Input = "1k"
    output: Annotated[str, _workload("The number of tokens to generate.")] = "256"
    images: Annotated[int, _workload(_IMAGES)] = 0
    batch: Annotated[str, _workload(_BATCH)] = "1"
    users: Annotated[
        int | None,
        _workload("The number of requests that always run: shows what each gets, and how many replicas that takes."),
    ] = None
    rate: Annotated[
        float | None, _workload("The requests per second: shows the devices and replicas that can serve them.")
    ] = None
    slo: Annotated[str | None, _workload(_SLO)] = None
    ttft: Annotated[str | None, _workload(_TTFT)] = None
    tpot: Annotated[str | None, _workload(_TPOT)] = None

    def workload(self, max_batch_tokens: str) -> PlanWorkload:
        """Raises ValueError naming the option."""
        ttft, tpot = self._targets()
        return PlanWorkload(
            parse_tokens(self.input, "--input"),
            parse_tokens(self.output, "--output"),
            self.batches()[0],
            ttft,
            tpot,
            parse_tokens(max_batch_tokens, "--max-batch-tokens"),
            images=self.images,
        )

    def batches(self) -> tuple[int, ...]:
        """The batches asked for, in their order. Raises ValueError naming the option."""
        parts = [part.strip() for part in self.batch.split(",")]
        if not all(part.isdecimal() and 0 < int(part) < _MAX_BATCH for part in parts):
            raise ValueError(f"--batch is {self.batch!r}; write requests above 0, like 8, or several, like 1,8,64")
        return tuple(dict.fromkeys(map(int, parts)))

    def demand(self) -> Demand:
        """Raises ValueError naming the option."""
        return Demand(self.users, self.rate)

    def _targets(self) -> tuple[float | None, float | None]:
        """Seconds to the first token and a token after it."""
        if self.slo is None:
            ttft = INTERACTIVE_TTFT if self.ttft is None else parse_seconds(self.ttft, "--ttft")
            return ttft, INTERACTIVE_TPOT if self.tpot is None else parse_seconds(self.tpot, "--tpot")
        if self.ttft is not None or self.tpot is not None:
            raise ValueError("--slo states both targets; leave --ttft and --tpot out")
        if self.slo.strip() == "none":
            return None, None
        slo = parse_slo(self.slo, ("ttft", "tpot"))
        return _in_seconds(slo.ttft), _in_seconds(slo.tpot)


def _in_seconds(limit: int | None) -> float | None:
    """Of nanoseconds."""
    return None if limit is None else limit / 1e9


@dataclass(frozen=True, slots=True)
class DiffusionFlags:
    """What is asked of a pipeline that draws."""

    size: Annotated[str | None, _pictures("WIDTHxHEIGHT in pixels, one of the model's sizes, like 1024x1024.")] = None
    steps: Annotated[int | None, _pictures("The number of denoising steps; with guidance each is two passes.")] = None
    guidance: Annotated[float | None, _pictures("The guidance scale, as the release states it.")] = None
    frames: Annotated[int | None, _pictures("The number of frames of a video, like 81.")] = None
    count: Annotated[int, _pictures("The number of images of one prompt, one after the other.")] = 1
    eager: Annotated[
        bool, _pictures("Price without fused kernels, as diffusers runs without torch.compile.", "--eager")
    ] = False
    compile: Annotated[
        bool, _pictures("Price with torch.compile's fused kernels (the default; --eager turns it off).", "--compile")
    ] = False

    def check(self) -> None:
        """Raises ValueError for options that contradict each other."""
        if self.eager and self.compile:
            raise ValueError("--eager prices what is not compiled, and --compile what is; give one of them")


def given_flags(group: Any, *but: str) -> list[str]:
    """The options of a group that were given, as they are typed, without those of the fields `but`."""
    given = (each.name for each in fields(group) if getattr(group, each.name) != each.default)
    return [f"--{name.replace('_', '-')}" for name in given if name not in but]


def listed_options(names: Sequence[str]) -> str:
    """`--batch is`, `--batch and --users are`."""
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"


@dataclass(frozen=True, slots=True)
class MoneyFlags:
    """What a card costs an hour."""

    price: Annotated[
        str | None, _money("The price of one device per hour in dollars, like 2.5, instead of a seller's.")
    ] = None
    seller: Annotated[
        str | None, _money("The seller whose prices count, like nebius; by default the device's first.")
    ] = None
    prices: Annotated[
        Path | None, _money("A TOML file with prices of your own sellers, instead of the built-in ones.", "--prices")
    ] = None

    def given(self) -> HourlyPrice | None:
        """The price that stands whatever a seller asks."""
        return None if self.price is None else HourlyPrice(parse_dollars(self.price, "--price"), "as given", "--price")

    @property
    def of_others(self) -> "MoneyFlags":
        """Of other cards than the one that a price was given for."""
        return replace(self, price=None)

    def sellers(self) -> tuple[PriceSnapshot, ...]:
        """Those of the file, else those of the package. Raises ValueError."""
        return snapshots() if self.prices is None else read_prices(self.prices)

    def unknown(self, asked: Iterable[str]) -> str:
        """What to say of prices in the file that are of no card: neither one of the catalogue nor one that was `asked`
        about; "" where there are none. A slip of the hand would cost the card its price in silence.
        """
        known, others = (*names(), *asked), list[str]()
        for card in dict.fromkeys(card for each in self.sellers() for card in each.dollars if card not in known):
            near = similar_device_names(card, known)[:_OFFERED]
            others.append(f"{card} (did you mean {' or '.join(near)}?)" if near else card)
        return f"{self.prices}: prices of cards that are not known here: {', '.join(others)}" if others else ""


@dataclass(frozen=True, slots=True)
class DisplayFlags:
    """What of it is shown."""

    short: Annotated[bool, _shown("Show five lines in plain words.", "--short")] = False
    full: Annotated[bool, _shown("Show every section.", "--full")] = False
    section: Annotated[list[str] | None, _shown(_SECTION)] = None
    compare: Annotated[
        bool, _shown("Compare all devices of the catalogue, and those of --compare-devices.", "--compare")
    ] = False
    compare_devices: Annotated[
        str | None, _shown("Compare these devices: names or files, like l40s,h100-sxm,my.toml.")
    ] = None
    listed: Annotated[bool, _shown("List the models and devices of the catalogue instead of a plan.", "--list")] = False


def check_short(shown: DisplayFlags, *, as_json: bool) -> None:
    """Refuse options that show what --short leaves out. Raises ValueError."""
    others = [*given_flags(shown, "short"), *["--json"] * as_json]
    if shown.short and others:
        raise ValueError(f"--short shows five lines and nothing else; leave it out, or {' and '.join(others)}")


def sections_of(shown: DisplayFlags, known: Iterable[str]) -> tuple[str, ...] | None:
    """The sections asked for, None for the answer. Raises ValueError for one that is not known."""
    return tuple(known) if shown.full else named_sections(shown.section, known)


def named_sections(parts: Sequence[str] | None, known: Iterable[str]) -> tuple[str, ...] | None:
    """The sections that the parts of an option name, several in one or one each; None for none. Raises ValueError."""
    if not parts:
        return None
    return check_sections((name.strip() for part in parts for name in part.split(",") if name.strip()), known)


def compared_cards(shown: DisplayFlags, device: str | None) -> tuple[Device, ...] | None:
    """The cards to be compared: those named and, with --compare, the catalogue and a card file; None for no comparison.

    Raises ValueError as `device_named`.
    """
    if not shown.compare and shown.compare_devices is None:
        return None
    names = (
        []
        if shown.compare_devices is None
        else [name.strip() for name in shown.compare_devices.split(",") if name.strip()]
    )
    if device is not None:
        names.insert(0, device)
    named = {card.name: card for card in map(device_named, names)}
    return tuple(((named if not shown.compare else {c.name: c for c in catalogue_devices()}) | named).values())


def quoted_cards(
    devices: Sequence[Device], money: MoneyFlags, named: str | None
) -> tuple[tuple[Device, ...], Unpriced]:
    """The cards to be ranked, each as often as a seller has it (all of them, or the one asked for), and what to say of
    those that none of these has. The card `named` costs the price that was given, if one was. Raises ValueError for a
    price without a `named` card.
    """
    given, sellers = money.given(), money.sellers()
    if given is not None and named is None:
        raise ValueError(
            "--price is for the GPU of --device, which is missing: give --device, or --prices FILE for several GPUs"
        )
    asked = sellers if money.seller is None else (seller_named(sellers, money.seller),)
    quoted = [
        quote
        for device in devices
        for quote in (
            [replace(device, price=given)]
            if given is not None and device.name == named
            else quotes((device,), asked, over=money.prices is not None)
        )
    ]
    lacking = {quote.name for quote in quoted if quote.price is None}
    elsewhere = tuple(each.seller for each in sellers if lacking & each.dollars.keys())
    return tuple(quoted), Unpriced(_unpriced(money, asked[0].title), elsewhere)


def _unpriced(money: MoneyFlags, title: str) -> str:
    if money.seller is not None:
        return f"No price at {title}"
    return "No price known" if money.prices is None else f"No price in {money.prices}"


def with_price(device: Device, money: MoneyFlags) -> Device:
    """A card at the price that was given, else that of a file of prices, that of its own file, that of a seller."""
    given, stated = money.given(), money.prices is not None
    if given is not None:
        return replace(device, price=given)
    wanted = [] if device.price is not None and not stated else [device.name]
    return priced((device,), seller_of(money.sellers(), wanted, money.seller), over=stated)[0]
