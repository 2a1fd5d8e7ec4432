"""A pipeline: a folder with a text encoder, a denoiser and a VAE becomes what draws pictures of prompts.

A request goes plan -> encode -> denoise -> decode. `denoise` gives way after every step, so that whoever drives it may
show what has come so far, stop, or do something else in between.

Shapes: B images or clips, C channels of latents, H, W lines and columns; of clips T frames of latents before these.
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
from ridgeline.media.diffusion.batching import batching_of, ridge_seconds
from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair, guide_apart
from ridgeline.media.diffusion.decoding import decode, decode_parts
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest, concerning
from ridgeline.media.diffusion.geometry import Geometry, PipelineLayout
from ridgeline.media.diffusion.guidance import Guidance, guidance_of, guide, guide_paired
from ridgeline.media.diffusion.noise import Noise, check_images, check_seed
from ridgeline.media.diffusion.pipeline_class import PipelineClass
from ridgeline.media.diffusion.samplers import SamplerState, data_of
from ridgeline.media.diffusion.scheduler_config import DiffusionScheduler
from ridgeline.media.diffusion.schedules import Schedule
from ridgeline.media.diffusion.step_cache import StepCache, check_threshold
from ridgeline.media.diffusion.text_encoder import TextCache, TextEncoder
from ridgeline.media.diffusion.video_autoencoder import VideoAutoencoder

CallSeconds = Callable[[Geometry, Sequence[int]], float]
"""What a call of the denoiser takes for pictures of a geometry side by side, one for each of the texts, which have so
many tokens. Any unit."""
SEEDS = 2**32  # a request without a seed gets one below this: short enough to be typed again

_GRAPHS = 64  # that torch may keep of one block's code: a shape each, of texts and of pictures side by side


@dataclass(frozen=True, slots=True)
class LowNoiseExpert:
    """The second of two denoisers (Wan 2.2 A14B): it is asked at noise levels below `boundary`, of 1 for pure noise."""

    denoiser: Denoiser
    boundary: float

    def asked(self, schedule: Schedule, step: int) -> bool:
        """Whether a step of a schedule, counted from 0, is this expert's."""
        return schedule.timesteps[step] < self.boundary * schedule.train_steps


@dataclass(frozen=True, slots=True)
class DenoiseOutput:
    """What there is after a step.

    Args:
        images: which of the request's, counted from 0: those that are drawn side by side.
        number, of: the step, counted from 1, and how many these images take.
        latents: after it [B, C, H, W] fp32.
        skipped: passes of it that ran the first block alone (`StepCache`).
    """

    images: range
    number: int
    of: int
    latents: Tensor
    skipped: int
    _shown: Tensor
    _prediction: Tensor
    _schedule: Schedule

    @property
    def guess(self) -> Tensor:
        """What the finished latents would be if this step's prediction were right [B, C, H, W]: for a preview."""
        level = self._schedule.levels[self.number - 1]
        return data_of(self._shown, self._prediction, level, self._schedule.prediction)

    @property
    def last(self) -> bool:
        """Whether these images' latents are finished."""
        return self.number == self.of


class Pipeline:
    """A loaded pipeline. One caller at a time; several requests may take turns between the steps of `denoise`."""

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
        """kind: with the steps and the guidance of requests that state none. layout: with the menu of sizes."""
        self.name, self.kind, self.layout = name, kind, layout
        self.encoder, self.denoiser, self.autoencoder = encoder, denoiser, autoencoder
        self.scheduler, self.second = scheduler, second
        self.texts = TextCache(encoder)

    @property
    def device(self) -> torch.device:
        """Where its parts are."""
        return next(self.denoiser.parameters()).device

    def plan(self, request: DiffusionRequest, call_seconds: CallSeconds | None = None) -> DiffusionPlan:
        """What a request comes to; nothing runs. call_seconds: where it is known better than by `ridge_seconds`.

        Raises InvalidRequest, a ValueError of one line: a size off the menu, steps, guidance, a seed or a number of
        images that cannot be, a negative prompt that could not act, a text that is too long, a step cache
        without a meaning.
        """
        kind = self.kind
        size = request.size or self.layout.sizes[0]
        frames = kind.frames if request.frames is None else request.frames
        with concerning("size"):
            self.layout.check_size(size)
        with concerning("frames"):
            geometry = self.layout.geometry(size, frames)
        steps = kind.steps if request.steps is None else request.steps
        with concerning("steps"):
            schedule = self.scheduler.schedule(steps, geometry.tokens)
        scale = kind.guidance if request.guidance is None else request.guidance
        guidance, second = self._guidance(request, scale)
        seed = SystemRandom().randrange(SEEDS) if request.seed is None else request.seed
        with concerning("images"):
            check_images(request.images)
        with concerning("seed"):
            check_seed(seed)
        if request.step_cache is not None:
            with concerning("step_cache"):
                check_threshold(request.step_cache)
        with concerning("prompt"):
            texts = [tuple(self.encoder.ids(request.prompt))]
        if guidance.negative is not None:
            with concerning("negative"):
                texts.append(tuple(self.encoder.ids(guidance.negative, "negative prompt")))
        longest = max(map(len, texts))

        def seconds(pictures: int) -> float:
            if call_seconds is None:
                return ridge_seconds(pictures * self.rows(geometry, longest))
            return call_seconds(geometry, [longest] * pictures)

        batching = batching_of(request.images, len(texts), seconds)
        return DiffusionPlan(request, seed, scale, geometry, schedule, guidance, tuple(texts), batching, second)

    def _guidance(self, request: DiffusionRequest, scale: float | None) -> tuple[Guidance, Guidance | None]:
        """The guidance of a request at this scale, and that of the second expert, None where there is one denoiser.
        Raises InvalidRequest.
        """
        with concerning("guidance"):  # first without the negative prompt, so that each error names its own field
            guidance_of(self.kind.convention, scale, None)
        with concerning("negative"):
            guidance = guidance_of(self.kind.convention, scale, request.negative)
        with concerning("second_guidance"):
            return guidance, self._second_guidance(request, scale, guidance)

    def _second_guidance(self, request: DiffusionRequest, scale: float | None, guidance: Guidance) -> Guidance | None:
        """The guidance of the second expert. Raises ValueError where there is no such expert, and where only one of the
        two would be guided.
        """
        if self.second is None:
            if request.second_guidance is not None:
                raise ValueError("this model has one denoiser; a second guidance is for models of two: leave it out")
            return None
        stated = scale if request.second_guidance is None else request.second_guidance
        found = guidance_of(self.kind.convention, stated, None)
        if (found.negative is None) != (guidance.negative is None):
            raise ValueError(f"guidance {scale} and {stated}: both experts are to be guided, or neither")
        return replace(found, negative=guidance.negative)

    def rows(self, geometry: Geometry, text: int) -> int:
        """Rows of a pass over a picture with a text of so many tokens, through most blocks of the denoiser."""
        rows = self.denoiser.work(geometry.latents[1:], [text]).rows
        return rows.get(JOINT, rows[LATENTS])

    def kept(self, plan: DiffusionPlan) -> int:
        """Bytes that a plan's step cache keeps between steps: of each picture side by side and each of its passes, what
        two parts of the denoiser added to its rows; of two experts each keeps its own.
        """
        if plan.request.step_cache is None:
            return 0
        rows = self.denoiser.work(plan.geometry.latents[1:], [1]).rows[LATENTS]
        each = 2 * rows * self.denoiser.hidden * self.denoiser.storage.dtype.itemsize
        return each * plan.batching.pictures * len(plan.texts) * (1 if plan.second is None else 2)

    def encode(self, plan: DiffusionPlan) -> tuple[Tensor, ...]:
        """The states of a plan's texts, each [tokens, width]: of the prompt, then of the negative one. Where the
        denoiser takes a vector of the prompt too, it is made now and kept for `denoise`.
        """
        self.denoiser.backend.share_threads()
        self.texts.pooled(plan.request.prompt)
        return tuple(self.texts.states(ids) for ids in plan.texts)

    def denoise(
        self, plan: DiffusionPlan, texts: Sequence[Tensor], pair: CFGParallelPair | None = None
    ) -> Iterator[DenoiseOutput]:
        """From noise to latents, step by step, group by group. texts: what `encode` gave. pair: where another process
        runs the other pass of each step, with the same plan. Raises ValueError for a plan that a pair cannot share.
        """
        if pair is not None:
            pair.check(plan.seed, plan.guidance)
        for images in plan.groups:
            yield from self._denoise(plan, texts, images, pair)

    def _denoise(
        self, plan: DiffusionPlan, texts: Sequence[Tensor], images: range, pair: CFGParallelPair | None
    ) -> Iterator[DenoiseOutput]:
        """As `denoise`, of one group: images that are drawn side by side."""
        schedule = plan.schedule
        draw = Noise(plan.seed + images.start, len(images), plan.geometry.latents, self.device)
        paired, count = plan.batching.paired, len(images)
        pooled = self.texts.pooled(plan.request.prompt)
        threshold = plan.request.step_cache
        cache = None if threshold is None else StepCache(threshold)
        calls = DenoiserCalls(count, paired, pair, cache)
        predict = guided_denoiser(self.denoiser, plan.guidance, texts, calls, pooled)
        second = self.second
        late = predict
        if second is not None and plan.second is not None:
            late = guided_denoiser(second.denoiser, plan.second, texts, calls)
        state = SamplerState(draw())
        for step in range(schedule.steps):
            with torch.inference_mode():
                self.denoiser.backend.share_threads()
                asked = late if second is not None and second.asked(schedule, step) else predict
                prediction = asked(state.x, schedule.time(step))
                shown, state = state.x, self.scheduler.sampler(schedule, step, state, prediction, draw)
            skipped = 0 if cache is None else cache.take(pair)
            yield DenoiseOutput(images, step + 1, schedule.steps, state.x, skipped, shown, prediction, schedule)

    def decode(self, latents: Tensor, tiling: Tiling | None = None) -> Tensor:
        """As `decoding.decode`, by the pipeline's VAE."""
        return decode(self.autoencoder, latents, tiling)

    def decode_parts(self, latents: Tensor, tiling: Tiling | None = None) -> Iterator[Tensor]:
        """As `decoding.decode_parts`, by the pipeline's VAE."""
        return decode_parts(self.autoencoder, latents, tiling)

    def parameters(self, plan: DiffusionPlan, image: int) -> dict[str, str | int | float | None]:
        """What one of a plan's images is drawn from, as its file keeps it: enough to draw it again alone."""
        return {
            "model": self.name,
            "prompt": plan.request.prompt,
            "negative": plan.guidance.negative,
            "size": str(plan.geometry.size),
            "steps": plan.schedule.steps,
            "guidance": plan.scale,
            "seed": plan.seed + image,
            **({"frames": plan.geometry.frames} if self.layout.clips else {}),
            **({} if plan.second is None else {"second_guidance": plan.second.scale}),
            **({} if plan.request.step_cache is None else {"step_cache": plan.request.step_cache}),
        }

    def draw(self, request: DiffusionRequest, tiling: Tiling | None = None) -> Tensor:
        """All of it: pixels of every image, as `decode`. Raises ValueError as `plan` and `decode`."""
        plan = self.plan(request)
        finished = [step.latents for step in self.denoise(plan, self.encode(plan)) if step.last]
        return self.decode(torch.cat(finished), tiling)


@dataclass(frozen=True, slots=True)
class DenoiserCalls:
    """How the denoiser is called. images: side by side. paired: both passes of guidance in one call. pair: where
    another process runs the other pass. cache: where passes may be cut short.
    """

    images: int
    paired: bool = False
    pair: CFGParallelPair | None = None
    cache: StepCache | None = None


def guided_denoiser(
    denoiser: Denoiser,
    guidance: Guidance,
    texts: Sequence[Tensor],
    calls: DenoiserCalls,
    pooled: Tensor | None = None,
) -> Callable[[Tensor, float], Tensor]:
    """The denoiser with a request's texts and guidance: (latents, t) -> what it predicts. What it makes of the texts at
    every noise level is computed now, once for all steps. pooled: the vector of the prompt, of a denoiser that takes
    one.
    """
    assert pooled is None or guidance.negative is None, "a negative prompt has a vector of its own"
    vectors = None if pooled is None else pooled.expand(calls.images, -1)

    def asked(latents: Tensor, t: float, given: tuple[Prepared, BlockRunner]) -> Tensor:
        prepared, walk = given
        velocity: Tensor = denoiser(latents, t, prepared, pooled=vectors, guidance=guidance.embedded, walk=walk)
        return velocity

    def given(*called: Tensor) -> tuple[Prepared, BlockRunner]:
        each = [text for text in called for _ in range(calls.images)]
        return denoiser.prepare(each), every_block if calls.cache is None else calls.cache.walk(len(each))

    with torch.inference_mode():
        if calls.pair is not None:
            return guide_apart(asked, guidance, given(texts[calls.pair.rank]), calls.pair)
        if calls.paired:
            return guide_paired(asked, guidance, given(*texts))
        positive, *negative = map(given, texts)
    return guide(asked, guidance, positive, negative[0] if negative else None)


def compile_blocks(pipeline: Pipeline, plan: DiffusionPlan, texts: Sequence[Tensor]) -> int:
    """Have the blocks of a pipeline's denoisers compiled for a plan, by a call of each shape that it has, which takes
    seconds to minutes. texts: what `encode` gave of the plan. Returns the number of blocks. Raises ValueError where
    there is no C++ compiler.

    What is around them (embedders, samplers, guidance, the step cache) stays as it is, and so do text encoder and VAE.
    Our kernels are left out within, because torch's compiler makes its own of what they do. Blocks are compiled once
    more for each other size, length of a text or number of pictures side by side.
    See https://docs.pytorch.org/docs/stable/torch.compiler.html.
    """
    # The imports are half a second of symbolic algebra.
    from torch import _dynamo
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        # Asked before anything is compiled: a compilation that fails leaves torch's hook in the interpreter.
        get_cpp_compiler()
    except InvalidCxxCompiler:
        raise ValueError(
            "--compile wants a C++ compiler, and there is none that runs; install g++, or name one in CXX"
        ) from None
    second = pipeline.second
    pairs = [(pipeline.denoiser, plan.guidance)]
    pairs += [(second.denoiser, plan.second)] if second is not None and plan.second is not None else []
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
