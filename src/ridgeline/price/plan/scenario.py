"""The input of a plan: a workload, a deployment, and the scenario that combines a deployment with a priced model."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field

import torch

from ridgeline.core.models import Fields, build
from ridgeline.core.models.building import stored_dtype
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import (
    PLAIN,
    WITH_HEAD,
    Recipe,
    read_recipe,
    recipe_named,
    recipe_names,
    runnable_format_names,
)
from ridgeline.core.models.common.sizes import describe_latents, sizes_of
from ridgeline.core.models.registry import family_of
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.number_formats import (
    BF16,
    FORMATS,
    FP16,
    FP32,
    KV_FORMATS,
    WEIGHT_FORMATS,
    format_named,
    format_of,
    kv_format_named,
)
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.core.ops.work import StepSegment, Work, adapter_axis
from ridgeline.price.device import NARROW, Device
from ridgeline.price.engine_profile import EngineProfile, default_engine, load_engine
from ridgeline.price.error_interval import ErrorInterval, Kind, intervals_for, intervals_of_class
from ridgeline.price.price import Price
from ridgeline.price.unmodelled import ALL_MODELLED, UnmodelledBytes, unmodelled_bytes
from ridgeline.util.document.humanize import gb, say_gb
from ridgeline.util.json_data import json_shape

SPEECH_PROMPT = 3
"""The number of control tokens that prompt a speech model for each window: start of transcript, language and task."""


@json_shape(..., "context")
@dataclass(frozen=True, slots=True)
class PlanWorkload:  # also in plan_formulas.js
    """A workload of identical requests, with latency targets and the engine's step and page sizes.

    Raises:
        ValueError: If a field is out of range. The message names the field.
    """

    input: int = 1024
    """The number of prompt tokens of a request."""
    output: int = 256
    """The number of new tokens of a request."""
    batch: int = 1
    """The number of concurrent requests in figures that assume one fixed batch, not arriving requests."""
    ttft: float | None = None
    """The target for the time to first token in seconds; None for no target."""
    tpot: float | None = None
    """The target for the time per output token in seconds; None for no target."""
    step_tokens: int = 2048
    """The maximum number of positions per step.

    A longer prompt takes several steps, and the activations of one step are reserved in memory. The input of an encoder
    is never split; if it is longer, it runs alone.
    """
    page_size: int = 16
    """The number of positions per KV page."""
    encoded: int = 0
    """The encoder positions of a request, if the model has an encoder."""
    images: int = 0
    """The images at the start of each prompt. Their positions are part of `input`."""
    cached: int = 0
    """The first tokens of each prompt whose keys and values are found in the prefix cache. They are part of `input`."""

    def __post_init__(self) -> None:
        for name in ("input", "output", "batch", "step_tokens", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("encoded", "images", "cached"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        if self.cached >= self.input:
            raise ValueError(
                f"{self.cached:,} tokens are cached, but the input has {self.input:,}, of which at least the last is "
                f"computed; give --cached {self.input - 1} or less, or a longer --input"
            )
        for name in ("ttft", "tpot"):
            target = getattr(self, name)
            if target is not None and not target > 0:
                raise ValueError(f"the {name} target is {target} s; it must be above 0")

    def of(self, model: Model) -> "PlanWorkload":
        """Return this workload as a given model runs it.

        The encoder of an encoder-decoder model reads the input, and the decoder begins with one token. A speech model
        receives one window of audio per request plus a few control tokens, and its output is limited to half of its
        decoder's context.

        Raises:
            ValueError: If prompts are partly cached, but an encoder reads them.
        """
        if not model.has_cross_attention or self.encoded:
            return self
        if self.cached:
            raise ValueError(
                "--cached is for models that continue a prompt, but an encoder reads this one; leave it out"
            )
        if not model.encoder_width:
            return dataclasses.replace(self, input=1, encoded=self.input)
        output = min(self.output, model.context // 2)
        return dataclasses.replace(self, input=SPEECH_PROMPT, output=output, encoded=model.encoder_context)

    @property
    def given(self) -> int:  # also in plan_formulas.js
        """The input tokens of a request, whether an encoder or a decoder reads them; for speech the audio positions."""
        return self.encoded or self.input

    @property
    def computed(self) -> int:
        """The prompt tokens of a request that a prefill runs: those that are not cached."""
        return self.input - self.cached

    @property
    def seen(self) -> str:
        """A text that states the images of a prompt and its cached tokens; "" if there are none."""
        images = f"{self.images:,} image{'s' if self.images > 1 else ''} included" if self.images else ""
        parts = ", ".join(filter(None, (images, f"{self.cached:,} cached" if self.cached else "")))
        return f" ({parts})" if parts else ""

    @property
    def prompt_step(self) -> int:  # also in plan_formulas.js
        """The prompt positions per step. An encoder runs whole in the step in which its prompt begins."""
        return self.input * self._prompts if self.encoded else self.step_tokens

    @property
    def encoder_step(self) -> int:  # also in plan_formulas.js
        """The encoder positions per step: of as many inputs as fit, and of at least one however long it is."""
        return self.encoded * self._prompts

    @property
    def _prompts(self) -> int:  # also in plan_formulas.js
        """The number of prompts, including their encoder input, that one step runs whole."""
        return max(1, self.step_tokens // (self.input + self.encoded))

    @property
    def tokens(self) -> int:  # also in plan_formulas.js
        """The number of positions that a request has at its end."""
        return self.input + self.output

    @property
    def context(self) -> int:  # also in plan_formulas.js
        """The average number of positions that a decode step sees, including its own.

        The prefill emits the first token; the other output - 1 steps see input + 1 to input + output - 1 positions.
        """
        return self.input + max(1, self.output // 2)


@dataclass(frozen=True, slots=True)
class Deployment:
    """The devices that serve a model, the engine that drives them, and the format in which the model is stored."""

    device: Device
    devices: int = 1
    """The number of devices over which each layer is split, or only its experts if attention is data-parallel."""
    weights: str | None = None
    """The name of the weight format; None for the one in the model's config."""
    kv: str | None = None
    """The name of the KV format; None for the one in the model's config."""
    utilization: float = 0.9
    """The share of a device's memory that may be used."""
    engine: EngineProfile = field(default_factory=load_engine)
    """The engine that drives the devices."""
    usual: bool = False
    """Whether the engine is only a default, so that another device gets its own default engine."""

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ValueError(f"the number of devices is {self.devices}; it must be at least 1")
        if not 0 < self.utilization <= 1:
            raise ValueError(f"memory_utilization is {self.utilization}; it must be above 0 and at most 1")
        check_formats(self.weights, self.kv)

    @property
    def hourly(self) -> float | None:
        """The dollars per hour of all devices together; None if the price is unknown."""
        price = self.device.price
        return None if price is None else price.dollars * self.devices

    @property
    def watts(self) -> float | None:
        """The power limit of all devices together in watts; None if it is unknown."""
        return None if self.device.watts is None else self.device.watts * self.devices

    def on(self, device: Device) -> "Deployment":
        """Return the same deployment on another device, at that device's own price."""
        engine = default_engine(device) if self.usual else self.engine
        return dataclasses.replace(self, device=device, engine=engine)


_Key = tuple[int, str | None, str | None, torch.dtype, str, bool, bool]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A deployment together with one device's part of the model."""

    setup: Deployment
    model: Model
    price: Price
    recipe: Recipe = PLAIN
    """The description of how the model's weights are quantised and stored."""
    notes: tuple[str, ...] = ()
    """The remarks on how the model is stored and priced, one sentence each, for the user."""
    adapters: int = 0
    """The number of LoRA adapters that are loaded with the model."""
    device: Device = field(init=False)
    """The device with the properties of the engine that drives it."""
    unmodelled: UnmodelledBytes = field(init=False, default=ALL_MODELLED)
    """The shares of bytes in operations that are not modelled, if the model is traced from its class."""

    def __post_init__(self) -> None:
        if self.model.traced_from:
            object.__setattr__(self, "unmodelled", unmodelled_bytes(self.model, self.price))
        object.__setattr__(self, "device", self.setup.engine.on(self.setup.device, self.setup.devices))

    @property
    def intervals(self) -> dict[Kind, ErrorInterval]:
        """The intervals of predictions by the kind of figure, for this device, engine and weight format."""
        found = intervals_for(self.setup.device, self.setup.engine, self.weights)
        origin = self.model.traced_from
        return intervals_of_class(found, origin, self.unmodelled.fused) if origin else found

    @property
    def ranks(self) -> int:
        """The number of ranks with requests of their own.

        These are all devices if attention is data-parallel, otherwise one: the devices together.
        """
        return self.setup.devices if self.setup.engine.own_attention else 1

    def requests_per_rank(self, requests: int) -> int:
        """Return the number of requests of the fullest rank if `requests` are divided evenly among all."""
        return math.ceil(requests / self.ranks)

    @property
    def image_rows(self) -> int:
        """The prompt positions per image; 0 if the model reads no images."""
        return 0 if self.model.images is None else self.model.images.rows

    def part(self, workload: PlanWorkload, start: int, end: int) -> StepSegment:
        """Return the step segment that runs the positions from `start` to `end` of one prompt.

        An encoder's input runs with the first position of the prompt. A vision tower runs an image whole as soon as the
        segment contains any of its positions.
        """
        rows = self.image_rows
        places = min(end, rows * workload.images)
        if start >= places:
            encodes = start == 0 and workload.encoded > 0
            return StepSegment(end - start, end, workload.encoded, runs_encoder=encodes)
        images = -(-places // rows) - start // rows
        return StepSegment(end - start, end, images * rows, runs_encoder=True, encoder_inputs=images)

    def prompt(self, length: int) -> StepSegment:
        """Return the step segment of a whole prompt of `length` tokens.

        If the model has an encoder, the encoder reads them and the decoder begins with one position.
        """
        if self.model.has_cross_attention:
            return StepSegment(1, 1, length, runs_encoder=True)
        return StepSegment(length, length)

    @property
    def longest(self) -> int:
        """The maximum number of tokens of a prompt."""
        return self.model.encoder_context if self.model.has_cross_attention else self.model.context

    def with_active_ranks(self, ranks: int) -> "Scenario":
        """Return this scenario for steps in which only `ranks` ranks have rows while the others wait for them."""
        return self if ranks >= self.ranks else dataclasses.replace(self, price=self.price.with_active_ranks(ranks))

    def with_adapter_rows(self, work: Work) -> Work:
        """Return the work of a step whose requests use the adapters in turn, so that each adapter has as many rows."""
        touched = min(self.adapters, work.sequences)
        share, more = divmod(work.tokens, max(touched, 1))
        rows = {adapter_axis(number + 1): share + (number < more) for number in range(touched)}
        return dataclasses.replace(work, rows={**work.rows, **rows}) if rows else work

    @property
    def weights(self) -> str:
        """The name of the format in which the matrices of the transformer blocks are stored."""
        return self.recipe.name or format_of(self.model.storage.dtype).name

    @property
    def weight_bits(self) -> int:
        """The bits per weight of the matrices in the transformer blocks, without scales."""
        return self.recipe.bits or format_of(self.model.storage.dtype).bits

    @property
    def kv(self) -> str:
        """The name of the format in which keys and values are stored."""
        stored = self.model.storage.kv
        return format_of(self.model.storage.dtype).name if stored is None else stored.name


_Built = tuple[Model, Price, Recipe, int]  # and the number of adapters
AddAdapters = Callable[[Model], int]
"""A function that adds LoRA adapters to a model on the meta device and returns how many."""
WrapModel = Callable[[Model], Model]
"""A function that wraps a model on the meta device, for example with pooling."""


class ModelCache:
    """The priced models of one config, built once per storage format and number of devices.

    They are shared by all devices that they are priced on.
    """

    def __init__(
        self, fields: Fields, add_adapters: AddAdapters | None = None, around: WrapModel | None = None
    ) -> None:
        """Create an empty cache.

        Args:
            fields: The model's config.
            add_adapters: Adds adapters to each model that is built.
            around: Wraps each model that is built.
        """
        self.fields, self._add_adapters, self._around = fields, add_adapters, around
        self._built: dict[_Key, _Built] = {}
        self._traced: dict[tuple[int, bool, torch.dtype | None], Price] = {}  # by devices, `own_attention`, and dtype

    def scenario(self, setup: Deployment) -> Scenario:
        """Return the scenario of a deployment, with its model.

        Raises:
            ModelRefused: If the model cannot be built or split in this way.
            ValueError: If attention is to be data-parallel but the model has no experts to split.
        """
        requested_dtype = self._dtype(setup)
        dtype, stated = self.stored(setup)
        native = setup.device.native and setup.kv is not None
        key = (setup.devices, setup.weights, setup.kv, dtype, stated, setup.engine.own_attention, native)
        if key not in self._built and (other := self._with_kv_format(setup, key)) is not None:
            self._built[key] = other
        if key not in self._built:
            recipe = self._recipe(setup, self._stated(setup.device), dtype)
            model = one_device_part(self.fields, dtype, recipe, setup)
            if self._around is not None:
                model = self._around(model)
            _check_experts(model, setup.engine)
            adapters = 0 if self._add_adapters is None else self._add_adapters(model)
            # The code of a class that is no op of ours moves other bytes in another dtype.
            calls = setup.devices, setup.engine.own_attention, dtype if model.traced_from else None
            price = Price(model, setup.devices, self._traced.get(calls))
            self._traced.setdefault(calls, price)
            self._built[key] = model, price, recipe, adapters
        model, price, recipe, adapters = self._built[key]
        case = Scenario(setup, model, price, recipe, adapters=adapters)
        return dataclasses.replace(case, notes=tuple(self._notes(case, requested_dtype)))

    def _with_kv_format(self, setup: Deployment, key: _Key) -> _Built | None:
        """Return a model that has been built in the dtype's KV format with the KV format of `setup`, or None.

        It is made in a hundredth of the time that a model takes. Its KV specs and its price are those of the new
        format; its modules are those of the other model. So it does not serve for devices that run it.
        """
        known = self._built.get((*key[:2], None, *key[3:]))
        if known is None or setup.kv not in {each.name for each in KV_FORMATS} or setup.device.native:
            return None
        model, price, recipe, adapters = known
        stored = kv_format_named(setup.kv)
        if recipe.kv is not None or stored.scales_in_checkpoint:
            return None
        other = copy(model)
        other.storage = dataclasses.replace(model.storage, kv=stored)
        other.kv_specs = tuple(
            dataclasses.replace(spec, stored=stored) if isinstance(spec, KVSpec) else spec for spec in model.kv_specs
        )
        return other, price.with_kv_format(stored), dataclasses.replace(recipe, kv=stored), adapters

    def whole(self, setup: Deployment) -> Scenario:
        """Return the scenario of the same deployment on a single device, with the undivided model."""
        return self.scenario(dataclasses.replace(setup, devices=1))

    def _dtype(self, setup: Deployment) -> torch.dtype:
        """Return the dtype of everything that is not quantised, as requested or as the config states."""
        plain = {known.name for known in FORMATS}
        return format_named(setup.weights).dtype if setup.weights in plain else stored_dtype(self.fields)

    def stored(self, setup: Deployment) -> tuple[torch.dtype, str]:
        """Return what depends on the device in the storage of a model: the dtype, and the name of the config's recipe.

        The dtype is that of everything that is not quantised. The name is "" if the deployment names a weight format,
        or if the config has no recipe. Both are part of the cache key, so devices that agree in them share a model.
        """
        dtype = computed_in(self._dtype(setup), setup.device, narrows=self._narrows(setup))
        return dtype, self._stated(setup.device).name if setup.weights is None else ""

    def _narrows(self, setup: Deployment) -> bool:
        """Return whether the matrices are stored narrower than everything else.

        Either the config says so, or plain weights are quantised on the fly.
        """
        if setup.weights is None:
            return bool(self._stated(setup.device).name)
        return setup.weights.removesuffix(WITH_HEAD) in runnable_format_names()

    def _stated(self, device: Device) -> Recipe:
        """Return the recipe that the config states.

        A format that a CPU upcasts while loading (`build_to_run`) counts as plain there.
        """
        stated = read_recipe(self.fields)
        if device.kind == "cpu" and stated.name in family_of(self.fields).upcast_from:
            return dataclasses.replace(PLAIN, kv=stated.kv, unread=stated.unread)
        return stated

    def _recipe(self, setup: Deployment, stated: Recipe, dtype: torch.dtype) -> Recipe:
        """Return the recipe of the config, `stated`, with the changes that the deployment requests."""
        plain = {known.name for known in FORMATS}
        recipe = stated
        if setup.weights is not None:
            recipe = PLAIN if setup.weights in plain else recipe_named(setup.weights)
        if setup.kv is None:
            return dataclasses.replace(recipe, kv=stated.kv)
        if setup.kv in plain:
            _check_full_kv(setup.kv, format_of(dtype).name)
            return dataclasses.replace(recipe, kv=None)
        return dataclasses.replace(recipe, kv=kv_format_named(setup.kv))

    def _notes(self, case: Scenario, requested_dtype: torch.dtype) -> Iterator[str]:
        """Yield remarks on substitutes for what the device lacks, and on parts of the config that are not priced.

        Args:
            case: The scenario.
            requested_dtype: The dtype that was requested, which the device may not support.
        """
        device, dtype, engine = case.device, case.model.storage.dtype, case.setup.engine
        yield from _class_notes(case)
        if unable := engine.unsupported_note(device, case.setup.devices):
            yield unable
        if dtype != requested_dtype:
            yield (
                f"{device.title} does not compute in {format_of(requested_dtype).name}: "
                f"predicted for {format_of(dtype).name}"
            )
        if case.setup.weights is None and case.recipe.name != (stored := read_recipe(self.fields).name):
            yield f"weights stored in {stored} are widened to {case.weights} while they are loaded on {device.title}"
        narrow = {priced.op.number_format for priced in case.price.ops} & NARROW
        for name in sorted(narrow - device.peaks.keys()):
            yield (
                f"{device.title} does not compute in {name}: matrix products are predicted at the peak of the next "
                "wider format"
            )
        held, stored = (say_gb(gb(nbytes)) for nbytes in (case.price.weights_on(device), case.price.weight_bytes))
        if held != stored:
            yield (
                f"{stored} of weights take {held} on this device, and expected times count the latter (docs/formats.md)"
            )
        if case.adapters:
            beside = say_gb(gb(case.model.adapter_bytes))
            yield (
                f"LoRA adapters: {case.adapters}, {beside} per device in addition to the weights; requests use them in "
                "turn"
            )
        if case.ranks > 1:
            yield describe_own_attention(case.ranks)
        if lacking := self.fields.other_inputs():
            yield f"only the text model is predicted, not what {' and '.join(lacking)} describes"


def _class_notes(case: Scenario) -> Iterator[str]:
    """Yield what a user must know of a model that is traced from its class, or that the engine does not run."""
    model = case.model
    if model.traced_from:
        yield f"traced from its class in {model.traced_from}: no family here builds it, so intervals are wider"
        yield from _latent_notes(model)
    if unmodelled := case.unmodelled.describe():
        yield unmodelled
    if model.undivided:
        yield f"each device holds the undivided matrices or tables of {model.undivided}; percentages are of its weights"
    if model.priced_only:
        yield f"priced only, because {model.priced_only}"


def _latent_notes(model: Model) -> Iterator[str]:
    """Yield what the layers of a class keep if its own cache keeps a latent of each token."""
    if latents := describe_latents(model):
        whole, own = sizes_of(model).sharing
        times = whole.bytes_per_token / own.bytes_per_token
        yield f"its KV cache keeps {latents}; these would take {times:,.1f} times as many bytes"
    if model.unused_latent:
        yield (
            f"its KV cache keeps keys and values: its class keeps only a latent of {model.unused_latent:,} numbers a "
            "token and layer, but computes keys and values from it in a way that the engine does not know"
        )


def one_device_part(fields: Fields, dtype: torch.dtype, recipe: Recipe, setup: Deployment) -> Model:
    """Return the part of a model that one device of a deployment holds, as its engine splits the model.

    Raises:
        ModelRefused: If the model cannot be built or split in this way.
    """
    part = Shard(0, setup.devices)
    shard, experts = (WHOLE, part) if setup.engine.own_attention else (part, None)
    return build(fields, dtype, shard=shard, recipe=recipe, experts=experts)


def describe_own_attention(ranks: int | str) -> str:
    """Return a sentence that explains data-parallel attention over the given number of devices."""
    return (
        f"each of {ranks} devices runs attention for an equal share of the requests and holds a part of every expert; "
        "all run each step together, predicted as if each had as many rows as the fullest"
    )


def _check_experts(model: Model, engine: EngineProfile) -> None:
    """Raise ValueError for a dense model under an engine that only splits experts."""
    if engine.own_attention and all(op.experts is None for _, op in model.ops()):
        raise ValueError(
            "data-parallel attention divides experts among devices, but the model has none: leave out "
            "--enable-dp-attention, and plan replicas with --users or --rate"
        )


def computed_in(dtype: torch.dtype, device: Device, *, narrows: bool) -> torch.dtype:
    """Return the dtype that a device computes in.

    bf16 becomes fp16 on a device that only has fp16 units (V100, T4), as engines fall back there. On a CPU, the fp16
    parts of a model with narrower matrices become fp32, as they run in Ridgeline (`build_to_run`).

    Args:
        dtype: The requested dtype.
        device: The device.
        narrows: Whether the matrices are stored in a narrower format.
    """
    if narrows and dtype == FP16.dtype and device.kind == "cpu":
        return FP32.dtype
    lacks = BF16.name not in device.peaks and FP16.name in device.peaks
    return FP16.dtype if dtype == BF16.dtype and lacks else dtype


def check_formats(weights: str | None, kv: str | None) -> None:
    """Raise ValueError for an unknown weight or KV format. The message lists the known names."""
    plain, formats = [known.name for known in FORMATS], [known.name for known in WEIGHT_FORMATS]
    for option, name, narrow in (
        ("--weights", weights, recipe_names()),
        ("--kv", kv, tuple(known.name for known in KV_FORMATS)),
    ):
        known = name in (*plain, *narrow) or (option == "--weights" and str(name).removesuffix(WITH_HEAD) in formats)
        if name is not None and not known:
            raise ValueError(f"{option} is {name!r}; it must be one of {', '.join((*plain, *narrow))}")


def _check_full_kv(kv: str, dtype: str) -> None:
    """Raise ValueError for a plain KV format whose width differs from the model's dtype.

    KV in a plain format is stored in the model's dtype; bf16 and fp16 are interchangeable because both take two bytes.
    """
    if (kv == "fp32") != (dtype == "fp32"):
        raise ValueError(f"KV in {kv} with a model in {dtype} is not supported; give --weights {kv} too, or --kv fp8")
