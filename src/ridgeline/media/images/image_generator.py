"""Pictures drawn as tokens: a prompt becomes requests of a language engine, their tokens pixels.

Shapes: C channels, H, W lines and columns of pixels.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import SystemRandom

import torch
from torch import Tensor

from ridgeline.backends.model_loader import load_vq_autoencoder, prepare_on_gpu
from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.checkpoint.weight_loader import Progress
from ridgeline.core.models import ModelRefused
from ridgeline.core.models.families.janus import JanusDrawer
from ridgeline.core.models.families.vq_autoencoder import VQAutoencoder
from ridgeline.core.models.registry import DRAWERS
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.media.images.prompt import ImageTokens
from ridgeline.price.device import Device
from ridgeline.price.price import Price

STAGES = ("encode", "tokens", "decode")
_SEEDS = 2**32  # a request without a seed gets one below this: short enough to be typed again
_MAX_IMAGES = 10_000


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """What pictures of a prompt come to. prompt: its token ids, as the model that draws counts them: text after image
    tokens. tokens: of each picture. images: how many pictures. seed: of the first; picture i has seed + i.
    """

    prompt: tuple[int, ...]
    tokens: int
    images: int
    seed: int


@dataclass(frozen=True, slots=True)
class TokenForecast:
    """What a plan takes: by stage, what must be done and the seconds that are expected."""

    costs: dict[str, Cost]
    seconds: dict[str, float]
    device: Device

    @property
    def cost(self) -> Cost:
        """All of it."""
        total = Cost()
        for stage in self.costs.values():
            total += stage
        return total


@dataclass(frozen=True, slots=True)
class ImageTokenProgress:
    """What there is after a step. tokens: how many are written, of all pictures. finished: the tokens of the pictures
    that the step finished, by the picture's number from 0.
    """

    tokens: int
    finished: dict[int, list[int]]


def generates_image_tokens(source: ModelSource) -> bool:
    """Whether a source is a model that writes the tokens of an image."""
    return not source.pipeline and source.config.architecture in {family.architecture for family in DRAWERS}


class TokenImageGenerator:
    """A model that writes the tokens of images, in an engine, and the autoencoder that makes pixels of them."""

    def __init__(self, loaded: LoadedEngine, autoencoder: VQAutoencoder, begins: int, params: SamplingParams) -> None:
        """begins: the id of the token behind which an image is written. params: how its tokens are sampled."""
        assert isinstance(loaded.model, JanusDrawer)
        self.loaded, self.engine, self.autoencoder = loaded, loaded.engine, autoencoder
        self.side, self._moved, self._begins = loaded.model.side, loaded.model.sampled_vocab_size or 0, begins
        self.params = replace(params, min_tokens=0, ignore_eos=True, stop=(), stop_token_ids=(), n=1)
        self._pixels = Price(autoencoder)

    @property
    def pixels(self) -> int:
        """Pixels on a side of a picture."""
        return int(self.side * self.autoencoder.factor)

    def plan(self, prompt: str, images: int = 1, seed: int | None = None) -> TokenPlan:
        """What pictures of a prompt come to; nothing runs. Raises ValueError for a prompt beside which they have no
        room.
        """
        if not 1 <= images <= _MAX_IMAGES:
            raise ValueError(f"{images} pictures; give 1 to {_MAX_IMAGES:,}")
        if images > 1 and self.params.greedy:
            raise ValueError(
                "the model's generation_config.json asks for the likeliest tokens, of which there is one picture; "
                "draw one"
            )
        texts, context = self.loaded.texts, self.engine.context
        chat = texts.templates is not None
        ids = (
            texts.encode_chat([{"role": "user", "content": prompt}], context) if chat else texts.encode(prompt, context)
        )
        tokens = self.side**2
        if len(ids) + 1 + tokens > context:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and a picture {tokens}; the model's context is {context}: shorten it"
            )
        first = SystemRandom().randrange(_SEEDS) if seed is None else seed
        return TokenPlan(tuple(self._moved + token for token in (*ids, self._begins)), tokens, images, first)

    def forecast(self, plan: TokenPlan, device: Device) -> TokenForecast:
        """What a plan takes, its pictures side by side as many as the engine has room for at a time: a pass over the
        prompts, of which each gives its first token, one for each further token, and their pixels.
        """
        price, beside = self.loaded.price, min(plan.images, self.engine.scheduler.limits.requests)
        length, reaches = len(plan.prompt), self.loaded.model.reaches
        prefill = price.on(device, Work.of([StepSegment(length, length)] * beside, reaches))
        times = plan.images / beside
        steps = [price.on(device, Work.decode([length + done] * beside, reaches)) for done in range(1, plan.tokens)]
        decode = self._pixels.on(device, self.autoencoder.decode_work(PixelGrid(1, self.side, self.side)))
        written = Cost()
        for step in steps:
            written += step.cost
        return TokenForecast(
            {"encode": prefill.cost * times, "tokens": written * times, "decode": decode.cost * plan.images},
            {
                "encode": prefill.expected * times,
                "tokens": sum(step.expected for step in steps) * times,
                "decode": decode.expected * plan.images,
            },
            device,
        )

    def draw(self, plan: TokenPlan) -> Generator[ImageTokenProgress, None, None]:
        """Write the tokens of a plan's pictures, a step of the engine at a time. Leaving the loop early ends them.
        Raises ValueError for a picture that failed.
        """
        params = replace(self.params, max_tokens=plan.tokens)
        numbers = {
            self.engine.add(GenerationRequest(plan.prompt, replace(params, seed=plan.seed + image))): image
            for image in range(plan.images)
        }
        written: dict[int, list[int]] = {image: [] for image in numbers.values()}
        try:
            while self.engine.has_work:
                finished: dict[int, list[int]] = {}
                for event in self.engine.step():
                    if event.error is not None:
                        raise ValueError(f"a picture failed: {event.error}")
                    if event.token is not None:
                        own = written[numbers[event.request]]
                        own.append(event.token.token)
                        if len(own) == plan.tokens:
                            finished[numbers[event.request]] = own
                yield ImageTokenProgress(sum(map(len, written.values())), finished)
        finally:
            for request in numbers:
                self.engine.abort(request)

    @torch.inference_mode()
    def decode(self, tokens: Sequence[int]) -> Tensor:
        """The tokens of a picture, line by line -> pixels [C, H, W] from -1 to 1."""
        ids = torch.tensor(tokens, device=self.loaded.device)
        return self.autoencoder.decode(ids.view(1, self.side, self.side))[0].float().cpu()


def load_image_generator(
    source: ModelSource, settings: EngineSettings | None = None, progress: Progress | None = None
) -> TokenImageGenerator:
    """Both parts of a folder. Raises ModelRefused."""
    if source.folder is None:
        raise ModelRefused(f"{source.name} is a config without weights; give a checkpoint folder")
    folder = Path(source.folder)
    loaded = load_engine(source, settings, progress=progress, draws=True)
    autoencoder = load_vq_autoencoder(source, torch.float32)  # convolutions of the CPU are slow in bf16
    if loaded.on_card:
        prepare_on_gpu(autoencoder, loaded.device)
    begins = ImageTokens.read(folder, loaded.tokenizer).begin
    model = loaded.model
    assert isinstance(model, JanusDrawer)
    if (autoencoder.shape.codes, autoencoder.shape.side) != (model.sampled_vocab_size, model.side):
        raise ModelRefused(
            f"{folder}: its autoencoder and its language model do not have the same tokens; fetch it again"
        )
    # A folder that does not say how to sample is sampled at temperature 1, because the likeliest tokens make flat
    # pictures, all alike.
    said = source.generation.get("do_sample") is not None
    params = loaded.defaults if said else replace(loaded.defaults, temperature=1.0)
    return TokenImageGenerator(loaded, autoencoder, begins, params)
