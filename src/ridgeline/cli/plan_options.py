"""The options of `ridgeline plan`, and their conversion into the planner's input."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ridgeline.cli import options
from ridgeline.cli.flags import given_flags, panel
from ridgeline.cli.options import (
    device_named,
    parse_count,
    parse_dollars,
    parse_seconds,
    parse_share,
    parse_tokens,
)
from ridgeline.cli.plan_files import PlanFileFlags
from ridgeline.core.checkpoint.adapter import adapt, read_adapters
from ridgeline.core.checkpoint.source import ModelSource, catalogue_name, open_source
from ridgeline.core.models import family_of
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.price.device import Device, HourlyPrice
from ridgeline.price.device_aliases import similar_device_names
from ridgeline.price.devices import catalogue_devices, device_names
from ridgeline.price.engine_profile import (
    DEFAULT_ENGINE,
    EngineProfile,
    default_engine,
    engines,
    offered_engine,
    with_own_attention,
)
from ridgeline.price.hourly_prices import (
    PriceSnapshot,
    builtin_snapshots,
    quotes,
    read_prices,
    seller_named,
    seller_of,
    with_prices,
)
from ridgeline.price.plan import Demand, Deployment, PlanWorkload
from ridgeline.price.plan.alternatives import DEVICES
from ridgeline.price.plan.comparison import Unpriced
from ridgeline.price.plan.plan_document import SECTIONS, check_sections
from ridgeline.price.plan.scenario import AddAdapters

# Interactive latency for a user who reads along: one second, then 20 tokens per second.
INTERACTIVE_TTFT, INTERACTIVE_TPOT = 1.0, 0.05

_MAX_BATCH = 1 << 40  # far above any real batch

_OFFERED = 3  # suggestions for an unknown name


def add_adapters_of(source: ModelSource, lora: Sequence[str] | None) -> AddAdapters | None:
    """Return a function that adds the adapters of --lora to each model that is built, or None without adapters.

    Raises:
        ValueError: If an adapter cannot be read.
    """
    adapters = read_adapters(options.adapters_of(lora, "--lora"))
    return None if not adapters else lambda model: adapt(model, family_of(source.config), adapters)


_setup, _workload, _diffusion, _money, _shown = map(panel, ("Deployment", "Workload", "Diffusion", "Cost", "Display"))


@dataclass(frozen=True, slots=True)
class SetupFlags:
    """The options for the deployment: device, formats and engine."""

    device: str | None = _setup(options.DEVICE, "--device", "--card")
    devices: int | None = _setup(
        "The number of devices that every layer is split over: 1, 2, 4 or 8. Default: 1; a comparison of models that "
        "generate text tries all four."
    )
    weights: options.Weights = None
    kv: options.KV = None
    rope: options.Rope = None
    engine: str | None = _setup(
        f"The engine whose speed is predicted: {', '.join(engines())}. Default: {DEFAULT_ENGINE}, and ridgeline for "
        "`this`."
    )
    enable_dp_attention: options.DpAttention = False
    memory_utilization: float = _setup("The share of a device's memory that may be used.", default=0.9)
    max_batch_tokens: options.MaxBatchTokens = "2k"

    def source(self, model: str) -> ModelSource:
        """Return the model that the user names, with the context that --rope gives it.

        Raises:
            ModelRefused: If there is no such model.
            ValueError: If --rope is malformed or does not suit the model.
        """
        return open_source(catalogue_name(model) or model).with_rope(self.rope)

    @property
    def device_count(self) -> int:
        """The number of devices of a replica, one unless --devices is given."""
        return 1 if self.devices is None else self.devices

    @property
    def compared_counts(self) -> tuple[int, ...]:
        """The numbers of devices per replica that a comparison tries: that of --devices, or all."""
        return DEVICES if self.devices is None else (self.devices,)

    def setup(self, device: Device) -> Deployment:
        """Return the deployment on a given device.

        Raises:
            ValueError: If an option is invalid.
        """
        usual = self.engine is None and not self.enable_dp_attention
        return Deployment(
            device, self.device_count, self.weights, self.kv, self.memory_utilization, self._driven(device), usual
        )

    def _driven(self, device: Device) -> EngineProfile:
        engine = default_engine(device) if self.engine is None else offered_engine(self.engine)
        if not self.enable_dp_attention:
            return engine
        if self.device_count == 1:
            raise ValueError("--enable-dp-attention divides requests among devices; give --devices 2 or more")
        return with_own_attention(engine)


@dataclass(frozen=True, slots=True)
class WorkloadFlags:
    """The options for the requests, their latency targets and the demand."""

    input: options.Input = "1k"
    output: str = _workload("The number of tokens to generate.", default="256")
    cached: str = _workload(
        "The part of each prompt that is found in the prefix cache, like 70% or 1.5k tokens (vLLM's prefix cache hit "
        "rate). It is part of --input; its KV is read, but not computed.",
        default="0",
    )
    images: int = _workload(
        "The number of images in a prompt, for models that read images; their tokens count as part of --input.",
        default=0,
    )
    batch: str = _workload(
        "The batch size. With several, like 1,8,64, a decode step of each, and a plan of the first.", default="1"
    )
    users: int | None = _workload(
        "The number of requests that always run: shows what each gets, and how many replicas that takes."
    )
    rate: float | None = _workload("The requests per second: shows the devices and replicas that can serve them.")
    requests: str | None = _workload(
        "The number of requests of a whole run, like 500, 10k or 1M (decimal). With --users or --rate, the run is like "
        "that of a benchmark, whose ramp-up and drain count. With --within, it is a batch job. By default, a steady "
        "state is priced.",
        "--requests",
        "--num-prompts",
    )
    within: str | None = _workload(
        "The time in which a batch job of --requests has to be done, like 8h: shows the replicas that do it if they "
        "are kept full, when they are done, and the dollars of the job. Latency targets only apply if given."
    )
    pessimistic: bool = _workload(
        "Choose the number of replicas for the slow end of the interval that holds 8 of 10 measurements, instead of "
        "for the predicted times. For --users, --rate and --within.",
        default=False,
    )
    slo: str | None = _workload(
        "Latency targets, like ttft=500ms,tpot=40ms; a target that is not named does not apply. `none`: as many users "
        "as fit into memory."
    )
    ttft: str | None = _workload("The target for the mean time to first token (TTFT), like 500ms; 1s by default.")
    tpot: str | None = _workload(
        "The target for the mean time per output token after the first (TPOT), prefills of other users included; 50ms "
        "by default."
    )

    def workload(self, max_batch_tokens: str) -> PlanWorkload:
        """Return the workload that the options describe.

        Raises:
            ValueError: If an option is invalid. The message names it.
        """
        ttft, tpot = self._targets()
        given = parse_tokens(self.input, "--input")
        return PlanWorkload(
            given,
            parse_tokens(self.output, "--output"),
            self.batches()[0],
            ttft,
            tpot,
            parse_tokens(max_batch_tokens, "--max-batch-tokens"),
            images=self.images,
            cached=parse_share(self.cached, given, "--cached"),
        )

    def batches(self) -> tuple[int, ...]:
        """Return the batch sizes in the given order.

        Raises:
            ValueError: If --batch is malformed.
        """
        parts = [part.strip() for part in self.batch.split(",")]
        if not all(part.isdecimal() and 0 < int(part) < _MAX_BATCH for part in parts):
            raise ValueError(
                f"--batch is {self.batch!r}; write a number of requests above 0, like 8, or several, like 1,8,64"
            )
        return tuple(dict.fromkeys(map(int, parts)))

    def demand(self) -> Demand:
        """Return the demand that the options describe, which may be empty.

        Raises:
            ValueError: If an option is invalid. The message names it.
        """
        requests = None if self.requests is None else parse_count(self.requests, "--requests")
        within = None if self.within is None else parse_seconds(self.within, "--within")
        return Demand(self.users, self.rate, requests, within, self.pessimistic)

    def _targets(self) -> tuple[float | None, float | None]:
        """Return the target seconds for the first token and for each further token; None for no target."""
        if self.within is not None and self.slo is self.ttft is self.tpot is None:
            return None, None  # users do not wait for the responses of a batch job
        if self.slo is None:
            ttft = INTERACTIVE_TTFT if self.ttft is None else parse_seconds(self.ttft, "--ttft")
            return ttft, INTERACTIVE_TPOT if self.tpot is None else parse_seconds(self.tpot, "--tpot")
        if self.ttft is not None or self.tpot is not None:
            raise ValueError("--slo already sets both targets; leave out --ttft and --tpot")
        if self.slo.strip() == "none":
            return None, None
        slo = parse_slo(self.slo, ("ttft", "tpot"))
        return _in_seconds(slo.ttft), _in_seconds(slo.tpot)


def _in_seconds(limit: int | None) -> float | None:
    """Convert nanoseconds to seconds, passing None through."""
    return None if limit is None else limit / 1e9


@dataclass(frozen=True, slots=True)
class DiffusionFlags:
    """The options for a request to a diffusion pipeline."""

    size: str | None = _diffusion("WIDTHxHEIGHT in pixels, one of the model's sizes, like 1024x1024.")
    steps: int | None = _diffusion("The number of denoising steps; with guidance each is two passes.")
    guidance: float | None = _diffusion("The guidance scale, as the release states it.")
    frames: int | None = _diffusion("The number of frames of a video, like 81.")
    count: int = _diffusion("The number of images of one prompt, one after the other.", default=1)
    eager: bool = _diffusion("Price without fused kernels, as diffusers runs without torch.compile.", default=False)
    compile: bool = _diffusion(
        "Price with torch.compile's fused kernels (the default; --eager turns it off).", default=False
    )

    def check(self) -> None:
        """Raise ValueError for diffusion options that contradict each other."""
        if self.eager and self.compile:
            raise ValueError("--eager predicts without compilation, and --compile with it; give one of them")


def listed_options(names: Sequence[str]) -> str:
    """Return options as the subject of a sentence with its verb: `--batch is`, `--batch and --users are`."""
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'}"


@dataclass(frozen=True, slots=True)
class MoneyFlags:
    """The options for the hourly price of devices."""

    price: str | None = _money("The price of one device per hour in dollars, like 2.5, instead of a seller's.")
    seller: str | None = _money("The seller whose prices count, like nebius; by default the device's first.")
    prices: Path | None = _money("A TOML file with prices of your own sellers, instead of the built-in ones.")

    def given(self) -> HourlyPrice | None:
        """Return the price that the user stated, which overrides all sellers; None if there is none."""
        return None if self.price is None else HourlyPrice(parse_dollars(self.price, "--price"), "as given", "--price")

    @property
    def of_others(self) -> "MoneyFlags":
        """The price options without the stated price, for all devices but the one that the price is for."""
        return replace(self, price=None)

    def sellers(self) -> tuple[PriceSnapshot, ...]:
        """Return the price snapshots of the user's file, or those of the package.

        Raises:
            ValueError: If the file is invalid.
        """
        return builtin_snapshots() if self.prices is None else read_prices(self.prices)

    def unknown(self, names: Iterable[str]) -> str:
        """Return a warning about prices in the user's file that belong to no known device; "" if there are none.

        A typo would otherwise silently leave a device without its price.

        Args:
            names: The names of devices that are known in addition to the catalogue.
        """
        known, others = (*device_names(), *names), list[str]()
        for name in dict.fromkeys(name for each in self.sellers() for name in each.dollars if name not in known):
            near = similar_device_names(name, known)[:_OFFERED]
            others.append(f"{name} (did you mean {' or '.join(near)}?)" if near else name)
        return f"{self.prices} has prices of unknown devices: {', '.join(others)}" if others else ""


@dataclass(frozen=True, slots=True)
class DisplayFlags:
    """The options for the parts of the plan to show."""

    short: bool = _shown("Show five lines in plain words.", default=False)
    full: bool = _shown("Show every section.", default=False)
    section: list[str] | None = _shown(
        f"Show only these sections, like memory,time; repeatable: {', '.join(SECTIONS)}."
    )
    compare: bool = _shown("Compare all devices of the catalogue, and those of --compare-devices.", default=False)
    compare_devices: str | None = _shown("Compare these devices: names or files, like l40s,h100-sxm,my.toml.")
    emit: options.Emit = None
    listed: bool = _shown("List the models and devices of the catalogue instead of a plan.", "--list", default=False)


def sections_of(shown: DisplayFlags, known: Iterable[str]) -> tuple[str, ...] | None:
    """Return the requested sections, or None for the summary.

    Raises:
        ValueError: If a section is unknown.
    """
    return tuple(known) if shown.full else named_sections(shown.section, known)


def named_sections(parts: Sequence[str] | None, known: Iterable[str]) -> tuple[str, ...] | None:
    """Return the sections that the values of --section name, one or several per value; None without values.

    Raises:
        ValueError: If a section is unknown.
    """
    if not parts:
        return None
    return check_sections((name.strip() for part in parts for name in part.split(",") if name.strip()), known)


def _unpriced(money: MoneyFlags, title: str) -> str:
    if money.seller is not None:
        return f"No price from {title}"
    return "No price known" if money.prices is None else f"No price in {money.prices}"


def with_price(device: Device, money: MoneyFlags) -> Device:
    """Return a device with its hourly price, taken from the options, a file or a known seller.

    The order of preference is the price that the user stated, a price file, the device's own file, and a known seller.
    """
    given, stated = money.given(), money.prices is not None
    if given is not None:
        return replace(device, price=given)
    wanted = [] if device.price is not None and not stated else [device.name]
    return with_prices((device,), seller_of(money.sellers(), wanted, money.seller), over=stated)[0]


@dataclass(frozen=True, slots=True)
class PlanFlags:
    """All options of `ridgeline plan`."""

    setup: SetupFlags
    workload: WorkloadFlags
    diffusion: DiffusionFlags
    money: MoneyFlags
    shown: DisplayFlags
    files: PlanFileFlags
    model: options.OptionalConfigName = None
    lora: options.PricedLora = None
    as_json: options.Json = False

    def check_short(self) -> None:
        """Raise ValueError if --short is combined with options that show more."""
        others = [*given_flags(self.shown, "short"), *given_flags(self.files), *["--json"] * self.as_json]
        if self.shown.short and others:
            raise ValueError(f"--short shows five lines and nothing else; leave out --short or {' and '.join(others)}")

    def check_files(self) -> None:
        """Raise ValueError, before anything is computed, for a file that could not be written."""
        shown = self.shown
        compares = shown.compare or shown.compare_devices is not None
        self.files.check(compares=compares, as_json=self.as_json, listed=shown.listed)

    @property
    def device(self) -> Device:
        """The device of --device, with its price."""
        return with_price(self._named, self.money)

    @property
    def _named(self) -> Device:
        assert self.setup.device is not None
        return device_named(self.setup.device)

    def compared_devices(self) -> tuple[Device, ...] | None:
        """Return the devices to compare, or None if no comparison was requested.

        These are the named devices and, with --compare, the whole catalogue.

        Raises:
            ValueError: If a device is unknown.
        """
        shown = self.shown
        if not shown.compare and shown.compare_devices is None:
            return None
        names = [name.strip() for name in (shown.compare_devices or "").split(",") if name.strip()]
        names = names if self.setup.device is None else [self.setup.device, *names]
        named = {each.name: each for each in map(device_named, names)}
        return tuple(((named if not shown.compare else {c.name: c for c in catalogue_devices()}) | named).values())

    def quoted_devices(self, devices: Sequence[Device]) -> tuple[tuple[Device, ...], Unpriced]:
        """Return the devices to rank, each once per seller that offers it, and a description of those without a price.

        Raises:
            ValueError: If a price is stated without --device, or if the selected seller or the price file is invalid.
        """
        money, named = self.money, None if self.setup.device is None else self._named.name
        given, sellers = money.given(), money.sellers()
        if given is not None and named is None:
            raise ValueError(
                "--price is for the device of --device, which is missing: give --device, or --prices FILE for several "
                "devices"
            )
        quoting = sellers if money.seller is None else (seller_named(sellers, money.seller),)
        quoted = [
            quote
            for device in devices
            for quote in (
                [replace(device, price=given)]
                if given is not None and device.name == named
                else quotes((device,), quoting, over=money.prices is not None)
            )
        ]
        lacking = {quote.name for quote in quoted if quote.price is None}
        elsewhere = tuple(each.seller for each in sellers if lacking & each.dollars.keys())
        return tuple(quoted), Unpriced(_unpriced(money, quoting[0].title), elsewhere)
