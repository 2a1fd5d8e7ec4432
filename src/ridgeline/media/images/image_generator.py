"""Images generated as tokens: a prompt becomes requests to a language engine, and their tokens become pixels.

Shapes: C channels, H, W rows and columns of pixels.
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
from ridgeline.core.models.families.janus import JanusImageModel
from ridgeline.core.models.families.vq_autoencoder import VQAutoencoder
from ridgeline.core.models.registry import IMAGE_GENERATORS
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.media.images.prompt import ImageTokens
from ridgeline.price.device import Device
from ridgeline.price.error_interval import ErrorInterval, own_intervals
from ridgeline.price.price import Price

STAGES = ("encode", "tokens", "decode")
_SEEDS = 2**32  # a random seed is below this, so that it is short enough to type
_MAX_IMAGES = 10_000


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """The plan for generating images of one prompt as tokens."""

    prompt: tuple[int, ...]
    """The token ids of the prompt in the drawing model's numbering, in which text follows image tokens."""
    tokens: int
    """The number of tokens per image."""
    images: int
    """The number of images."""
    seed: int
    """The seed of the first image; image i uses seed + i."""


@dataclass(frozen=True, slots=True)
class TokenForecast:
    """The cost and the expected seconds of generating a plan's images, by stage."""

    costs: dict[str, Cost]
    seconds: dict[str, float]
    device: Device
    interval: ErrorInterval
    """The interval in which 8 of 10 measured times lie."""

    @property
    def cost(self) -> Cost:
        """The total FLOPs and bytes of all stages of generating the images."""
        return sum(self.costs.values(), Cost())


@dataclass(frozen=True, slots=True)
class ImageTokenProgress:
    """The progress of image token generation after an engine step."""

    tokens: int
    """The number of tokens generated so far, over all images."""
    finished: dict[int, list[int]]
    """The tokens of the images that the step finished, by image index from 0."""


def generates_image_tokens(source: ModelSource) -> bool:
    """Return whether a source is a model that generates image tokens."""
    return not source.pipeline and source.config.architecture in {family.architecture for family in IMAGE_GENERATORS}


class TokenImageGenerator:
    """A model in an engine that generates image tokens, with the autoencoder that decodes them to pixels."""

    def __init__(self, loaded: LoadedEngine, autoencoder: VQAutoencoder, begins: int, params: SamplingParams) -> None:
        """Store the engine and the autoencoder.

        Args:
            loaded: Engine with the model.
            autoencoder: Autoencoder of image tokens.
            begins: Token id after which an image is generated.
            params: Sampling parameters of the image tokens.
        """
        assert isinstance(loaded.model, JanusImageModel)
        self.loaded, self.engine, self.autoencoder = loaded, loaded.engine, autoencoder
        self.side, self._moved, self._begins = loaded.model.side, loaded.model.sampled_vocab_size or 0, begins
        self.params = replace(params, min_tokens=0, ignore_eos=True, stop=(), stop_token_ids=(), n=1)
        self._pixels = Price(autoencoder)

    @property
    def pixels(self) -> int:
        """The pixels per side of an image."""
        return int(self.side * self.autoencoder.factor)

    def plan(self, prompt: str, images: int = 1, seed: int | None = None) -> TokenPlan:
        """Return the plan for images of a prompt; nothing runs.

        Raises:
            ValueError: If the number of images is out of range, greedy sampling would repeat one image, or the prompt
                and an image do not fit into the context.
        """
        if not 1 <= images <= _MAX_IMAGES:
            raise ValueError(f"the number of images is {images}; give 1 to {_MAX_IMAGES:,}")
        if images > 1 and self.params.greedy:
            raise ValueError(
                "the model's generation_config.json sets greedy sampling, which would make the same image each time: "
                "request one image"
            )
        texts, context = self.loaded.text_processor, self.engine.traits.context
        chat = texts.templates is not None
        ids = (
            texts.encode_chat([{"role": "user", "content": prompt}], context) if chat else texts.encode(prompt, context)
        )
        tokens = self.side**2
        if len(ids) + 1 + tokens > context:
            raise ValueError(
                f"the prompt has {len(ids)} tokens and an image {tokens}, but the model's context is {context}: "
                "shorten the prompt"
            )
        first = SystemRandom().randrange(_SEEDS) if seed is None else seed
        return TokenPlan(tuple(self._moved + token for token in (*ids, self._begins)), tokens, images, first)

    def forecast(self, plan: TokenPlan, device: Device) -> TokenForecast:
        """Return the cost and time of a plan, with as many images per batch as the engine admits.

        It has a prefill of the prompts, which gives the first token of each image, a decode step for each further
        token, and the decode to pixels.
        """
        price, beside = self.loaded.price, min(plan.images, self.engine.scheduler.limits.requests)
        length, reaches = len(plan.prompt), self.loaded.model.attention_patterns
        prefill = price.price_step(device, Work.of([StepSegment(length, length)] * beside, reaches))
        times = plan.images / beside
        steps = [
            price.price_step(device, Work.decode([length + done] * beside, reaches)) for done in range(1, plan.tokens)
        ]
        decode = self._pixels.price_step(device, self.autoencoder.decode_work(PixelGrid(1, self.side, self.side)))
        written = sum((step.cost for step in steps), Cost())
        return TokenForecast(
            {"encode": prefill.cost * times, "tokens": written * times, "decode": decode.cost * plan.images},
            {
                "encode": prefill.expected * times,
                "tokens": sum(step.expected for step in steps) * times,
                "decode": decode.expected * plan.images,
            },
            device,
            own_intervals(device, format_of(self.loaded.model.model_dtype).name)["image"],
        )

    def draw(self, plan: TokenPlan) -> Generator[ImageTokenProgress, None, None]:
        """Generate the tokens of a plan's images and yield the progress after each engine step.

        Leaving the loop early aborts the requests.

        Raises:
            ValueError: If the request of an image failed.
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
                        raise ValueError(f"generating an image failed: {event.error}")
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
        """Return the pixels [C, H, W] from -1 to 1 of an image's tokens in row-major order."""
        ids = torch.tensor(tokens, device=self.loaded.device)
        return self.autoencoder.decode(ids.view(1, self.side, self.side))[0].float().cpu()


def load_image_generator(
    source: ModelSource, settings: EngineSettings | None = None, progress: Progress | None = None
) -> TokenImageGenerator:
    """Load the language model and the autoencoder of a folder.

    Raises:
        ModelRefused: If the folder has no weights, or the two parts have different tokens.
    """
    if source.folder is None:
        raise ModelRefused(f"{source.name} is a built-in config without weights; give a checkpoint folder")
    folder = Path(source.folder)
    loaded = load_engine(source, settings, progress=progress, draws=True)
    autoencoder = load_vq_autoencoder(source, torch.float32)  # convolutions in bf16 are slow on the CPU
    if loaded.on_gpu:
        prepare_on_gpu(autoencoder, loaded.device)
    begins = ImageTokens.read(folder, loaded.tokenizer).begin
    model = loaded.model
    assert isinstance(model, JanusImageModel)
    if (autoencoder.shape.codes, autoencoder.shape.side) != (model.sampled_vocab_size, model.side):
        raise ModelRefused(
            f"{folder}: its autoencoder and its language model have different image tokens; fetch it again"
        )
    # Without sampling settings in the folder the temperature is 1, because greedy sampling makes flat images that are
    # all alike.
    states_sampling = source.generation.get("do_sample") is not None
    params = loaded.defaults if states_sampling else replace(loaded.defaults, temperature=1.0)
    return TokenImageGenerator(loaded, autoencoder, begins, params)
