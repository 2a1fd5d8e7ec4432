"""What a plan is asked: a workload, and the case, a model stored in one way on so many of one card."""

import dataclasses
import math
from collections.abc import Callable, Iterator
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
    running_names,
)
from ridgeline.core.models.registry import family_of
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
from ridgeline.price.engine_profile import EngineProfile, load_engine, usual_engine
from ridgeline.price.price import Price
from ridgeline.util.document.humanize import gb, say_gb

SPEECH_PROMPT = 3
"""Tokens before what a speech model says of a window: where a text begins, its language, the task."""


@dataclass(frozen=True, slots=True)
class PlanWorkload:
    """Requests of `input` prompt tokens and `output` new ones.

    batch: how many of them side by side where no load is considered. ttft, tpot: the most seconds to the first token
    and a token after it, None for no target. step_tokens: positions that one step may run; a longer prompt takes
    several steps, and the activations of one are what memory must be kept for; what an encoder reads is not divided,
    and runs alone where it is longer. page_size: positions a KV page. encoded: positions of a request's input to the
    encoder, where the model has one. images: of a prompt, which begins with them; their places are part of its input.

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
    images: int = 0

    def __post_init__(self) -> None:
        for name in ("input", "output", "batch", "step_tokens", "page_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("encoded", "images"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")
        for name in ("ttft", "tpot"):
            target = getattr(self, name)
            if target is not None and not target > 0:
                raise ValueError(f"the {name} target is {target} s; it must be above 0")

    def of(self, model: Model) -> "PlanWorkload":
        """The same as a model runs it: what an encoder-decoder is given its encoder reads, and the decoder begins with
        one token; a speech model is given windows of sound, a prompt of a few control tokens beside each, and says no
        more of one than its decoder has room for.
        """
        if not model.encodes or self.encoded:
            return self
        if not model.encoder_width:
            return dataclasses.replace(self, input=1, encoded=self.input)
        output = min(self.output, model.context // 2)
        return dataclasses.replace(self, input=SPEECH_PROMPT, output=output, encoded=model.encoder_context)

    @property
    def given(self) -> int:
        """Tokens that a request is given, whoever reads them; positions of sound."""
        return self.encoded or self.input

    @property
    def seen(self) -> str:
        """The images of a prompt, in words; "" for none."""
        return f" ({self.images:,} image{'s' if self.images > 1 else ''} of them)" if self.images else ""

    @property
    def prompt_step(self) -> int:
        """Positions of prompts that a step runs: an encoder runs whole, in the step in which its prompt begins."""
        return self.input * self._prompts if self.encoded else self.step_tokens

    @property
    def encoder_step(self) -> int:
        """Positions of encoders that a step runs: of as many inputs as fit, and of one at least, however long."""
        return self.encoded * self._prompts

    @property
    def _prompts(self) -> int:
        """Prompts, with what their encoders read, that a step runs whole."""
        return max(1, self.step_tokens // (self.input + self.encoded))

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
class Deployment:
    """Where a model is put, and how it is stored.

    devices: cards that each layer is divided over, or its experts alone where attention is data-parallel. weights, kv:
    formats by name, None for what the config says. utilization: the share of a card's memory that may be used. engine:
    what drives the cards; usual: nobody chose it, so another card has the engine that is usual for it.
    """

    device: Device
    devices: int = 1
    weights: str | None = None
    kv: str | None = None
    utilization: float = 0.9
    engine: EngineProfile = field(default_factory=load_engine)
    usual: bool = False

    def __post_init__(self) -> None:
        if self.devices < 1:
            raise ValueError(f"devices is {self.devices}; it must be at least 1")
        if not 0 < self.utilization <= 1:
            raise ValueError(f"memory utilization is {self.utilization}; it must be above 0 and at most 1")
        check_formats(self.weights, self.kv)

    @property
    def hourly(self) -> float | None:
        """Dollars an hour of all cards; None where no price is known."""
        price = self.device.price
        return None if price is None else price.dollars * self.devices

    def on(self, device: Device) -> "Deployment":
        """The same on a card, at that card's own price."""
        engine = usual_engine(device) if self.usual else self.engine
        return dataclasses.replace(self, device=device, engine=engine)


_Key = tuple[int, str | None, str | None, torch.dtype, str, bool]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A setup, and one card's part of the model in it. recipe: how it is stored. notes: what a reader must know of
    that, a sentence each. adapters: how many are beside the model. device: the card as the engine drives it.
    """

    setup: Deployment
    model: Model
    price: Price
    recipe: Recipe = PLAIN
    notes: tuple[str, ...] = ()
    adapters: int = 0
    device: Device = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", self.setup.engine.on(self.setup.device, self.setup.devices))

    @property
    def ranks(self) -> int:
        """Cards that have requests of their own: all where attention is data-parallel, else one, the cards together."""
        return self.setup.devices if self.setup.engine.own_attention else 1

    def on_each(self, requests: int) -> int:
        """Requests of the fullest rank, of so many divided evenly among all."""
        return math.ceil(requests / self.ranks)

    @property
    def image_rows(self) -> int:
        """Places of an image in a prompt; 0 where the model reads none."""
        return 0 if self.model.images is None else self.model.images.rows

    def part(self, workload: PlanWorkload, start: int, end: int) -> StepSegment:
        """The positions of one prompt from `start` to `end`: an encoder's input is run with the first of them, and a
        tower's images whole with any of theirs.
        """
        rows = self.image_rows
        places = min(end, rows * workload.images)
        if start >= places:
            encodes = start == 0 and workload.encoded > 0
            return StepSegment(end - start, end, workload.encoded, encodes=encodes)
        images = -(-places // rows) - start // rows
        return StepSegment(end - start, end, images * rows, encodes=True, inputs=images)

    def prompt(self, length: int) -> StepSegment:
        """What attention sees of a prompt of so many tokens: an encoder reads it where there is one, and the decoder
        begins with one position.
        """
        return StepSegment(1, 1, length, encodes=True) if self.model.encodes else StepSegment(length, length)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self.model.encoder_context if self.model.encodes else self.model.context

    def busy(self, ranks: int) -> "Scenario":
        """The same in steps in which only so many ranks have rows, and the others wait for them."""
        return self if ranks >= self.ranks else dataclasses.replace(self, price=self.price.gathering(ranks))

    def dealt(self, work: Work) -> Work:
        """The work of a step whose requests ask the adapters in turn, so that each has as many rows as another."""
        touched = min(self.adapters, work.sequences)
        share, more = divmod(work.tokens, max(touched, 1))
        rows = {adapter_axis(number + 1): share + (number < more) for number in range(touched)}
        return dataclasses.replace(work, rows={**work.rows, **rows}) if rows else work

    @property
    def weights(self) -> str:
        """How the matrices in the blocks are stored."""
        return self.recipe.name or format_of(self.model.storage.dtype).name

    @property
    def weight_bits(self) -> int:
        """Bits of a number of theirs, without scales."""
        return self.recipe.bits or format_of(self.model.storage.dtype).bits

    @property
    def kv(self) -> str:
        """The format of keys and values."""
        stored = self.model.storage.kv
        return format_of(self.model.storage.dtype).name if stored is None else stored.name


Beside = Callable[[Model], int]
"""Puts adapters beside a model on meta; how many."""
Around = Callable[[Model], Model]
"""Puts something around a model on meta: a pooling behind it."""


class ModelCache:
    """The models of one config, each way of storing them built once, however many cards they are priced on."""

    def __init__(self, fields: Fields, beside: Beside | None = None, around: Around | None = None) -> None:
        """beside, around: what is put there of each model that is built."""
        self.fields, self._beside, self._around = fields, beside, around
        self._built: dict[_Key, tuple[Model, Price, Recipe, int]] = {}

    def case(self, setup: Deployment) -> Scenario:
        """A setup with its model. Raises ModelRefused where the model cannot be built or divided so, ValueError for
        data-parallel attention where there are no experts to divide.
        """
        asked = self._dtype(setup)
        dtype, stated = self.stored(setup)
        key = (setup.devices, setup.weights, setup.kv, dtype, stated, setup.engine.own_attention)
        if key not in self._built:
            recipe = self._recipe(setup, self._stated(setup.device), dtype)
            model = one_device_part(self.fields, dtype, recipe, setup)
            if self._around is not None:
                model = self._around(model)
            _check_experts(model, setup.engine)
            adapters = 0 if self._beside is None else self._beside(model)
            self._built[key] = model, Price(model, setup.devices), recipe, adapters
        model, price, recipe, adapters = self._built[key]
        case = Scenario(setup, model, price, recipe, adapters=adapters)
        return dataclasses.replace(case, notes=tuple(self._notes(case, asked)))

    def whole(self, setup: Deployment) -> Scenario:
        """The same undivided."""
        return self.case(dataclasses.replace(setup, devices=1))

    def _dtype(self, setup: Deployment) -> torch.dtype:
        """What is not narrowed by a recipe: as asked for, or as the config says."""
        plain = {known.name for known in FORMATS}
        return format_named(setup.weights).dtype if setup.weights in plain else stored_dtype(self.fields)

    def stored(self, setup: Deployment) -> tuple[torch.dtype, str]:
        """What a setup's card has to do with how the model is stored: the dtype of what is not narrowed, and the
        recipe, where the config is to say it.
        """
        dtype = computed_in(self._dtype(setup), setup.device, narrows=self._narrows(setup))
        return dtype, self._stated(setup.device).name if setup.weights is None else ""

    def _narrows(self, setup: Deployment) -> bool:
        """Whether matrices are narrower than all else, as the config says or as plain ones are quantised to run."""
        if setup.weights is None:
            return bool(self._stated(setup.device).name)
        return setup.weights.removesuffix(WITH_HEAD) in running_names()

    def _stated(self, device: Device) -> Recipe:
        """How the config says that the model is stored; on a processor without what is widened there, as it runs here
        (`build_to_run`).
        """
        stated = read_recipe(self.fields)
        if device.kind == "cpu" and stated.name in family_of(self.fields).upcast_from:
            return dataclasses.replace(PLAIN, kv=stated.kv, unread=stated.unread)
        return stated

    def _recipe(self, setup: Deployment, stated: Recipe, dtype: torch.dtype) -> Recipe:
        """How the model is stored: as the config says, `stated`, but for what the setup asks for."""
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

    def _notes(self, case: Scenario, asked: torch.dtype) -> Iterator[str]:
        """What stands in for what the card cannot do, and what was not read. asked: the dtype that was wanted."""
        card, dtype, engine = case.device, case.model.storage.dtype, case.setup.engine
        if unable := engine.not_on(card):
            yield unable
        if dtype != asked:
            yield f"{card.title} does not compute in {format_of(asked).name}: priced in {format_of(dtype).name}"
        if case.setup.weights is None and case.recipe.name != (stored := read_recipe(self.fields).name):
            yield f"weights stored in {stored} are widened to {case.weights} while they are loaded on {card.title}"
        narrow = {priced.op.number_format for priced in case.price.ops} & NARROW
        for name in sorted(narrow - card.peaks.keys()):
            yield f"{card.title} does not compute in {name}: products are priced at the peak of the next wider format"
        held, stored = (say_gb(gb(nbytes)) for nbytes in (case.price.weights_on(card), case.price.weight_bytes))
        if held != stored:
            yield f"weights of {stored} are held in {held} here, which expected times are of (docs/formats.md)"
        if case.adapters:
            beside = say_gb(gb(case.model.adapter_bytes))
            yield f"LoRA adapters: {case.adapters}, {beside} a card with the weights; requests ask them in turn"
        if case.ranks > 1:
            yield describe_own_attention(case.ranks)
        if lacking := self.fields.other_inputs():
            yield f"only the text model is priced, not what {' and '.join(lacking)} describes"


def one_device_part(fields: Fields, dtype: torch.dtype, recipe: Recipe, setup: Deployment) -> Model:
    """A model as one card of a setup has it, as its engine divides it. Raises ModelRefused."""
    part = Shard(0, setup.devices)
    shard, experts = (WHOLE, part) if setup.engine.own_attention else (part, None)
    return build(fields, dtype, shard=shard, recipe=recipe, experts=experts)


def describe_own_attention(ranks: int | str) -> str:
    """What a reader must know of data-parallel attention."""
    return (
        f"each of {ranks} cards runs attention for its own requests, divided evenly, and holds a part of every expert; "
        f"all take each step together, priced as if all had as many rows as the fullest"
    )


def _check_experts(model: Model, engine: EngineProfile) -> None:
    """Raises ValueError for a dense model under an engine that divides experts alone."""
    if engine.own_attention and all(op.experts is None for _, op in model.ops()):
        raise ValueError(
            "data-parallel attention divides experts among cards, and the model has none: whole on each card it is "
            "replicas, which --users and --rate give; leave --enable-dp-attention out"
        )


def computed_in(dtype: torch.dtype, device: Device, *, narrows: bool) -> torch.dtype:
    """The dtype, or fp16 for bf16 on a card that has units for fp16 alone (V100, T4), as engines fall back there; on a
    processor fp32 for the fp16 of what `narrows` matrices, as it runs here (`build_to_run`).
    """
    if narrows and dtype == FP16.dtype and device.kind == "cpu":
        return FP32.dtype
    lacks = BF16.name not in device.peaks and FP16.name in device.peaks
    return FP16.dtype if dtype == BF16.dtype and lacks else dtype


def check_formats(weights: str | None, kv: str | None) -> None:
    """Raises ValueError with the names there are for a format that there is not."""
    plain, formats = [known.name for known in FORMATS], [known.name for known in WEIGHT_FORMATS]
    for option, name, narrow in (
        ("--weights", weights, recipe_names()),
        ("--kv", kv, tuple(known.name for known in KV_FORMATS)),
    ):
        known = name in (*plain, *narrow) or (option == "--weights" and str(name).removesuffix(WITH_HEAD) in formats)
        if name is not None and not known:
            raise ValueError(f"{option} is {name!r}; it must be one of {', '.join((*plain, *narrow))}")


def _check_full_kv(kv: str, dtype: str) -> None:
    """KV in a full format is KV in the model's dtype; bf16 and fp16 alike take two bytes."""
    if (kv == "fp32") != (dtype == "fp32"):
        raise ValueError(f"KV in {kv} beside a model in {dtype} is not built; give --weights {kv} too, or --kv fp8")
