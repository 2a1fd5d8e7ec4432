"""What a plan is asked: a workload, and the case, a model stored in one way on so many of one card."""

import dataclasses
from dataclasses import dataclass

from ridgeline.models import Fields, build
from ridgeline.models.model import Model
from ridgeline.ops.formats import (
    FORMATS,
    KV_FORMATS,
    WEIGHT_FORMATS,
    format_named,
    format_of,
    kv_format_named,
    weight_format_named,
)
from ridgeline.ops.shard import Shard
from ridgeline.roofline.device import Device, HourlyPrice
from ridgeline.roofline.price import Price


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of `input` prompt tokens and `output` new ones.

    batch: how many of them side by side where no load is considered. ttft, tpot: the most seconds to the first token
    and a token after it, None for no target. step_tokens: positions that one step may run; a longer prompt takes
    several steps, and the activations of one are what memory must be kept for. page_size: positions a KV page. encoded:
    positions of a request's input to the encoder, where the model has one.

    Raises ValueError naming the option.
    """

    input: int = 1024
    output: int = 256
    batch: int = 1
    ttft: float | None = None
    tpot: float | None = None
    step_tokens: int = 2048
    page_size: int = 16
    encoded: int = 0

    def __post_init__(self) -> None:
        for name in ("input", "output", "batch", "step_tokens", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.encoded < 0:
            raise ValueError(f"encoded is {self.encoded}; it must be at least 0")
        for name in ("ttft", "tpot"):
            target = getattr(self, name)
            if target is not None and not target > 0:
                raise ValueError(f"the {name} target is {target} s; it must be above 0")

    @property
    def tokens(self) -> int:
        """Positions that a request has when it ends."""
        return self.input + self.output

    @property
    def context(self) -> int:
        """Positions that a decode step sees on average, its own included.

        The prefill emits the first token; the other output - 1 steps see input + 1 to input + output - 1 positions.
        """
        return self.input + max(1, self.output // 2)


@dataclass(frozen=True, slots=True)
class Setup:
    """Where a model is put, and how it is stored.

    devices: cards that each layer is divided over. weights, kv: formats by name, None for what the config says.
    utilization: the share of a card's memory that may be used. price: what one card costs an hour.
    """

    device: Device
    devices: int = 1
    weights: str | None = None
    kv: str | None = None
    utilization: float = 0.9
    price: HourlyPrice | None = None

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ValueError(f"devices is {self.devices}; it must be at least 1")
        if not 0 < self.utilization <= 1:
            raise ValueError(f"memory utilization is {self.utilization}; it must be above 0 and at most 1")
        check_formats(self.weights, self.kv)

    @property
    def hourly(self) -> float | None:
        """Dollars an hour of all cards; None where no price is known."""
        price = self.price or self.device.price
        return None if price is None else price.dollars * self.devices

    def on(self, device: Device) -> "Setup":
        """The same on a card, at that card's own price where it is another one."""
        return dataclasses.replace(self, device=device, price=self.price if device == self.device else None)


@dataclass(frozen=True, slots=True)
class Case:
    """A setup, and one card's part of the model in it."""

    setup: Setup
    model: Model
    price: Price

    @property
    def device(self) -> Device:
        """The card."""
        return self.setup.device

    @property
    def weights(self) -> str:
        """The format of the matrices in the blocks."""
        return self.setup.weights or format_of(self.model.storage.dtype).name

    @property
    def kv(self) -> str:
        """The format of keys and values."""
        stored = self.model.storage.kv
        return format_of(self.model.storage.dtype).name if stored is None else stored.name


class ModelCache:
    """The models of one config, each way of storing them built once, however many cards they are priced on."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self._built: dict[tuple[int, str | None, str | None], tuple[Model, Price]] = {}

    def case(self, setup: Setup) -> Case:
        """A setup with its model. Raises ModelRefused where the model cannot be built or divided so."""
        key = (setup.devices, setup.weights, setup.kv)
        if key not in self._built:
            model = self._build(*key)
            self._built[key] = model, Price(model, setup.devices)
        return Case(setup, *self._built[key])

    def whole(self, setup: Setup) -> Case:
        """The same undivided."""
        return self.case(dataclasses.replace(setup, devices=1))

    def _build(self, devices: int, weights: str | None, kv: str | None) -> Model:
        plain = {known.name for known in FORMATS}
        dtype = format_named(weights).dtype if weights in plain else self.fields.dtype
        if kv in plain:
            _check_full_kv(str(kv), format_of(dtype).name)
            kv = None
        return build(
            self.fields,
            dtype,
            shard=Shard(0, devices),
            weights=None if weights is None or weights in plain else weight_format_named(weights),
            kv=None if kv is None else kv_format_named(kv),
        )


def check_formats(weights: str | None, kv: str | None) -> None:
    """Raises ValueError with the names there are for a format that there is not."""
    plain = [known.name for known in FORMATS]
    for option, name, narrow in (("--weights", weights, WEIGHT_FORMATS), ("--kv", kv, KV_FORMATS)):
        names = [*plain, *(known.name for known in narrow)]
        if name is not None and name not in names:
            raise ValueError(f"{option} is {name!r}; it must be one of {', '.join(names)}")


def _check_full_kv(kv: str, dtype: str) -> None:
    """KV in a full format is KV in the model's dtype; bf16 and fp16 alike take two bytes."""
    if (kv == "fp32") != (dtype == "fp32"):
        raise ValueError(f"KV in {kv} beside a model in {dtype} is not built; give --weights {kv} too, or --kv fp8")
