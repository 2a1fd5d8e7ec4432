"""The diffusion pipeline: a text encoder, a denoiser and a VAE that generate images from prompts.

A request goes plan -> encode -> denoise -> decode. `denoise` yields after every step, so that the caller may show a
preview, stop, or do something else in between.

Shapes: B images or videos, C channels of latents, H, W rows and columns; for videos T latent frames before these.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from random import SystemRandom

import torch
from torch import Tensor

from ridgeline.core.models.common.block_runner import BlockRunner, every_block
from ridgeline.core.models.common.denoiser import JOINT, LATENTS, Denoiser, Prepared
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.ops.backend import REFERENCE
from ridgeline.media.diffusion.batching import choose_batching, ridge_seconds
from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair, apply_guidance_parallel
from ridgeline.media.diffusion.decoding import decode, decode_parts
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest, blame_field
from ridgeline.media.diffusion.geometry import Geometry, PipelineLayout
from ridgeline.media.diffusion.guidance import Guidance, apply_guidance, apply_guidance_batched, make_guidance
from ridgeline.media.diffusion.noise import Noise, check_images, check_seed
from ridgeline.media.diffusion.pipeline_class import PipelineClass
from ridgeline.media.diffusion.samplers import SamplerState, predicted_data
from ridgeline.media.diffusion.scheduler_config import DiffusionScheduler
from ridgeline.media.diffusion.schedules import Schedule
from ridgeline.media.diffusion.step_cache import StepCache, check_threshold
from ridgeline.media.diffusion.text_encoder import TextCache, TextEncoder
from ridgeline.media.diffusion.video_autoencoder import VideoAutoencoder

CallSeconds = Callable[[Geometry, Sequence[int]], float]
"""The time in any unit of one denoiser call, as a function of the geometry and the token counts of the texts.

There is one text for each image in the call.
"""
SEEDS = 2**32  # a random seed is below this, so that it is short enough to type

_GRAPHS = 64  # compiled variants that torch may keep per block, one for each shape


@dataclass(frozen=True, slots=True)
class LowNoiseExpert:
    """The second of two denoisers (Wan 2.2 A14B), used at noise levels below `boundary`, a fraction of pure noise."""

    denoiser: Denoiser
    boundary: float

    def runs_step(self, schedule: Schedule, step: int) -> bool:
        """Return whether this low-noise denoiser runs a step of a schedule, counted from 0."""
        return schedule.timesteps[step] < self.boundary * schedule.train_steps


@dataclass(frozen=True, slots=True)
class DenoiseOutput:
    """The result of one denoising step for a batch of images."""

    images: range
    """The indexes of the batch's images in the request, counted from 0."""
    number: int
    """The number of the denoising step, counted from 1."""
    total_steps: int
    """The number of denoising steps for the batch's images."""
    latents: Tensor
    """The latents after the denoising step, [B, C, H, W] fp32."""
    skipped: int
    """The denoiser passes of the step that ran only the first block (`StepCache`)."""
    _shown: Tensor
    _prediction: Tensor
    _schedule: Schedule

    @property
    def predicted_latents(self) -> Tensor:
        """The finished latents if this step's prediction were exact, [B, C, H, W]: for a preview."""
        level = self._schedule.levels[self.number - 1]
        return predicted_data(self._shown, self._prediction, level, self._schedule.prediction)

    @property
    def last(self) -> bool:
        """Whether the latents of the batch's images are finished."""
        return self.number == self.total_steps


class Pipeline:
    """A loaded diffusion pipeline, for one caller at a time; requests may alternate between the steps of `denoise`."""

    def __init__(
        self,
        name: str,
        kind: PipelineClass,
        encoder: TextEncoder,
        denoiser: Denoiser,
        autoencoder: AutoencoderKL | VideoAutoencoder,
        scheduler: DiffusionScheduler,
        layout: PipelineLayout,
        second: LowNoiseExpert | None = None,
    ) -> None:
        """Store the parts of a diffusion pipeline.

        Args:
            name: Name of the model.
            kind: Pipeline class, with the default steps and guidance of requests.
            encoder: Text encoder.
            denoiser: Denoiser.
            autoencoder: VAE.
            scheduler: Sampler and schedules.
            layout: Sizes that a request may have.
            second: Second expert of a two-expert model.
        """
        self.name, self.kind, self.layout = name, kind, layout
        self.encoder, self.denoiser, self.autoencoder = encoder, denoiser, autoencoder
        self.scheduler, self.low_noise_expert = scheduler, second
        self.texts = TextCache(encoder)

    @property
    def device(self) -> torch.device:
        """The device on which the pipeline's models are."""
        return next(self.denoiser.parameters()).device

    def plan(self, request: DiffusionRequest, call_seconds: CallSeconds | None = None) -> DiffusionPlan:
        """Validate a diffusion request and return its plan, without running anything.

        Args:
            request: Request for images or videos.
            call_seconds: Time of a denoiser call, if a better estimate than `ridge_seconds` is known.

        Raises:
            InvalidRequest: If the size is not supported, the frames, steps, guidance, second guidance, seed or number
                of images are invalid, the negative prompt would have no effect, a text is too long, or the step-cache
                threshold is invalid. It is a ValueError with one line.
        """
        kind = self.kind
        size = request.size or self.layout.sizes[0]
        frames = kind.frames if request.frames is None else request.frames
        with blame_field("size"):
            self.layout.check_size(size)
        with blame_field("frames"):
            geometry = self.layout.geometry(size, frames)
        steps = kind.steps if request.steps is None else request.steps
        with blame_field("steps"):
            schedule = self.scheduler.schedule(steps, geometry.tokens)
        scale = kind.guidance if request.guidance is None else request.guidance
        guidance, second = self._guidance(request, scale)
        seed = SystemRandom().randrange(SEEDS) if request.seed is None else request.seed
        with blame_field("images"):
            check_images(request.images)
        with blame_field("seed"):
            check_seed(seed)
        if request.step_cache is not None:
            with blame_field("step_cache"):
                check_threshold(request.step_cache)
        with blame_field("prompt"):
            texts = [tuple(self.encoder.ids(request.prompt))]
        if guidance.negative is not None:
            with blame_field("negative"):
                texts.append(tuple(self.encoder.ids(guidance.negative, "negative prompt")))
        longest = max(map(len, texts))

        def seconds(images: int) -> float:
            if call_seconds is None:
                return ridge_seconds(images * self.rows(geometry, longest))
            return call_seconds(geometry, [longest] * images)

        batching = choose_batching(request.images, len(texts), seconds)
        return DiffusionPlan(request, seed, scale, geometry, schedule, guidance, tuple(texts), batching, second)

    def _guidance(self, request: DiffusionRequest, scale: float | None) -> tuple[Guidance, Guidance | None]:
        """Return the guidance of a diffusion request and that of the second expert, None if there is one denoiser.

        Raises:
            InvalidRequest: If the scale or the negative prompt is invalid.
        """
        with blame_field("guidance"):  # without the negative prompt first, so that each error names its field
            make_guidance(self.kind.convention, scale, None)
        with blame_field("negative"):
            guidance = make_guidance(self.kind.convention, scale, request.negative)
        with blame_field("second_guidance"):
            return guidance, self._second_guidance(request, scale, guidance)

    def _second_guidance(self, request: DiffusionRequest, scale: float | None, guidance: Guidance) -> Guidance | None:
        """Return the guidance of a two-expert model's second denoiser, None if there is one denoiser.

        Raises:
            ValueError: If the request has a second guidance but the model has no second expert, if the second guidance
                is invalid, or if only one of the two experts would use guidance.
        """
        if self.low_noise_expert is None:
            if request.second_guidance is not None:
                raise ValueError("this model has one denoiser, but a second guidance scale needs two: leave it out")
            return None
        stated = scale if request.second_guidance is None else request.second_guidance
        found = make_guidance(self.kind.convention, stated, None)
        if (found.negative is None) != (guidance.negative is None):
            raise ValueError(
                f"the guidance scales are {scale} and {stated}: turn guidance on for both experts, or for neither"
            )
        return replace(found, negative=guidance.negative)

    def rows(self, geometry: Geometry, text: int) -> int:
        """Return the rows (tokens) in most denoiser blocks of a pass over one image with a text of `text` tokens."""
        rows = self.denoiser.work(geometry.latents[1:], [text]).rows
        return rows.get(JOINT, rows[LATENTS])

    def step_cache_bytes(self, plan: DiffusionPlan) -> int:
        """Return the bytes that the step cache of a plan holds between steps.

        It stores two contributions to the rows of latents for each image of a batch and each guidance pass, and
        separately for each of two experts.
        """
        if plan.request.step_cache is None:
            return 0
        rows = self.denoiser.work(plan.geometry.latents[1:], [1]).rows[LATENTS]
        each = 2 * rows * self.denoiser.hidden * self.denoiser.storage.dtype.itemsize
        return each * plan.batching.images * len(plan.token_ids) * (1 if plan.second_guidance is None else 2)

    def encode(self, plan: DiffusionPlan) -> tuple[Tensor, ...]:
        """Return the hidden states of a plan's texts, each [tokens, width]: of the prompt, then the negative prompt.

        If the denoiser also needs a pooled vector of the prompt, this computes and caches it for `denoise`.
        """
        self.denoiser.backend.share_threads()
        self.texts.pooled(plan.request.prompt)
        return tuple(self.texts.states(ids) for ids in plan.token_ids)

    def denoise(
        self, plan: DiffusionPlan, texts: Sequence[Tensor], pair: CFGParallelPair | None = None
    ) -> Iterator[DenoiseOutput]:
        """Denoise from noise to latents and yield the result of every step, one group of images after the other.

        Args:
            plan: Plan of the request.
            texts: Result of `encode`.
            pair: Connection to the process that runs the other guidance pass of each step, with the same plan.

        Raises:
            ValueError: If a pair cannot share the plan.
        """
        if pair is not None:
            pair.check(plan.seed, plan.guidance)
        for images in plan.groups:
            yield from self._denoise(plan, texts, images, pair)

    def _denoise(
        self, plan: DiffusionPlan, texts: Sequence[Tensor], images: range, pair: CFGParallelPair | None
    ) -> Iterator[DenoiseOutput]:
        """Denoise one group of images, which form one batch; see `denoise`."""
        schedule = plan.schedule
        draw = Noise(plan.seed + images.start, len(images), plan.geometry.latents, self.device)
        paired, count = plan.batching.paired, len(images)
        pooled = self.texts.pooled(plan.request.prompt)
        threshold = plan.request.step_cache
        cache = None if threshold is None else StepCache(threshold)
        calls = DenoiserCalls(count, paired, pair, cache)
        predict = guided_denoiser(self.denoiser, plan.guidance, texts, calls, pooled)
        second = self.low_noise_expert
        late = predict
        if second is not None and plan.second_guidance is not None:
            late = guided_denoiser(second.denoiser, plan.second_guidance, texts, calls)
        state = SamplerState(draw())
        for step in range(schedule.steps):
            with torch.inference_mode():
                self.denoiser.backend.share_threads()
                run_denoiser = late if second is not None and second.runs_step(schedule, step) else predict
                prediction = run_denoiser(state.x, schedule.time(step))
                shown, state = state.x, self.scheduler.sampler(schedule, step, state, prediction, draw)
            skipped = 0 if cache is None else cache.take(pair)
            yield DenoiseOutput(images, step + 1, schedule.steps, state.x, skipped, shown, prediction, schedule)

    def decode(self, latents: Tensor, tiling: Tiling | None = None) -> Tensor:
        """Decode latents with the pipeline's VAE; see `decoding.decode`."""
        return decode(self.autoencoder, latents, tiling)

    def decode_parts(self, latents: Tensor, tiling: Tiling | None = None) -> Iterator[Tensor]:
        """Decode latents part by part with the pipeline's VAE; see `decoding.decode_parts`."""
        return decode_parts(self.autoencoder, latents, tiling)

    def parameters(self, plan: DiffusionPlan, image: int) -> dict[str, str | int | float | None]:
        """Return the parameters of one image of a plan for the metadata of its file.

        They are sufficient to generate that image again alone.
        """
        return {
            "model": self.name,
            "prompt": plan.request.prompt,
            "negative": plan.guidance.negative,
            "size": str(plan.geometry.size),
            "steps": plan.schedule.steps,
            "guidance": plan.scale,
            "seed": plan.seed + image,
            **({"frames": plan.geometry.frames} if self.layout.is_video else {}),
            **({} if plan.second_guidance is None else {"second_guidance": plan.second_guidance.scale}),
            **({} if plan.request.step_cache is None else {"step_cache": plan.request.step_cache}),
        }

    def draw(self, request: DiffusionRequest, tiling: Tiling | None = None) -> Tensor:
        """Run a request from plan to decode and return the pixels of every image, as `decode` does.

        Raises:
            ValueError: If `plan` or `decode` raises one.
        """
        plan = self.plan(request)
        finished = [step.latents for step in self.denoise(plan, self.encode(plan)) if step.last]
        return self.decode(torch.cat(finished), tiling)


@dataclass(frozen=True, slots=True)
class DenoiserCalls:
    """The options of calling the denoiser for one batch: images per call, paired passes, process pair and cache."""

    images: int
    """The number of images in a denoiser call."""
    paired: bool = False
    """Whether one denoiser call runs both guidance passes."""
    pair: CFGParallelPair | None = None
    """The connection to the process that runs the other guidance pass, if any."""
    cache: StepCache | None = None
    """The step cache, if denoiser passes may skip blocks."""


def guided_denoiser(
    denoiser: Denoiser,
    guidance: Guidance,
    texts: Sequence[Tensor],
    calls: DenoiserCalls,
    pooled: Tensor | None = None,
) -> Callable[[Tensor, float], Tensor]:
    """Return the denoiser with a request's texts and guidance applied: (latents, t) -> prediction.

    It computes the parts that depend only on the texts now, once for all steps.

    Args:
        denoiser: Denoiser to run.
        guidance: Guidance of the request.
        texts: Hidden states of the prompt and, with a second pass, of the negative prompt.
        calls: Way in which the denoiser is called.
        pooled: Pooled vector of the prompt, if the denoiser takes one.
    """
    assert pooled is None or guidance.negative is None, "a negative prompt would need its own pooled vector"
    vectors = None if pooled is None else pooled.expand(calls.images, -1)

    def run_denoiser(latents: Tensor, t: float, given: tuple[Prepared, BlockRunner]) -> Tensor:
        prepared, walk = given
        velocity: Tensor = denoiser(latents, t, prepared, pooled=vectors, guidance=guidance.embedded, walk=walk)
        return velocity

    def given(*called: Tensor) -> tuple[Prepared, BlockRunner]:
        each = [text for text in called for _ in range(calls.images)]
        return denoiser.prepare(each), every_block if calls.cache is None else calls.cache.block_runner(len(each))

    with torch.inference_mode():
        if calls.pair is not None:
            return apply_guidance_parallel(run_denoiser, guidance, given(texts[calls.pair.rank]), calls.pair)
        if calls.paired:
            return apply_guidance_batched(run_denoiser, guidance, given(*texts))
        positive, *negative = map(given, texts)
    return apply_guidance(run_denoiser, guidance, positive, negative[0] if negative else None)


def compile_blocks(pipeline: Pipeline, plan: DiffusionPlan, texts: Sequence[Tensor]) -> int:
    """Compile the blocks of a pipeline's denoisers with torch.compile and return the number of blocks.

    It calls the denoiser once for each shape in the plan, which takes seconds to minutes. Everything around the blocks
    (embedders, samplers, guidance, the step cache) stays as it is, and so do the text encoder and the VAE. Inside the
    blocks our kernels are disabled, because torch's compiler generates its own. Every new size, text length or number
    of images per batch compiles the blocks again. See https://docs.pytorch.org/docs/stable/torch.compiler.html.

    Args:
        pipeline: Pipeline to compile.
        plan: Plan whose shapes are compiled.
        texts: Result of `encode` for the plan.

    Raises:
        ValueError: If there is no C++ compiler.
    """
    # The imports are local because they take half a second.
    from torch import _dynamo
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        # Check this before compiling: a failed compilation leaves torch's hook in the interpreter.
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise ValueError(
            "--compile needs a C++ compiler, and none works here: install g++, or name a compiler in CXX"
        ) from None
    second = pipeline.low_noise_expert
    pairs = [(pipeline.denoiser, plan.guidance)]
    pairs += (
        [(second.denoiser, plan.second_guidance)] if second is not None and plan.second_guidance is not None else []
    )
    lists = [denoiser.get_submodule(name) for denoiser, _ in pairs for name in denoiser.block_lists]
    blocks = [block for each in lists for block in each.children()]
    _dynamo.config.recompile_limit = max(_GRAPHS, _dynamo.config.recompile_limit)
    for block in blocks:
        REFERENCE.bind(block)
        block.compile(dynamic=False, fullgraph=True)
    pooled = pipeline.texts.pooled(plan.request.prompt)
    for images in {len(group) for group in plan.groups}:
        for denoiser, guidance in pairs:
            predict = guided_denoiser(denoiser, guidance, texts, DenoiserCalls(images, plan.batching.paired), pooled)
            with torch.inference_mode():
                predict(torch.zeros(images, *plan.geometry.latents), plan.schedule.time(0))
    return len(blocks)
