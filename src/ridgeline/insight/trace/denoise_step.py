"""A request before one of its steps: what traces of pictures and clips look at."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.core.models.common.denoiser import Denoiser, Prepared
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan
from ridgeline.media.diffusion.guidance import Guidance, guided
from ridgeline.media.diffusion.noise import Noise
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.samplers import SamplerState


@dataclass(frozen=True, slots=True)
class DenoiseStep:
    """A request before one of its steps. texts: the states of each text [tokens, width], the prompt's first. vector: of
    the prompt [pooled_width], where the denoiser takes one. number: the step, counted from 1. state: the sampler's
    before it.
    """

    pipeline: Pipeline
    plan: DiffusionPlan
    texts: tuple[Tensor, ...]
    vector: Tensor | None
    number: int
    state: SamplerState

    @property
    def t(self) -> float:
        """The noise level, as denoisers are told it."""
        return self.plan.schedule.time(self.number - 1)

    @property
    def calls(self) -> tuple[tuple[int, ...], ...]:
        """Calls of the denoiser in a step: of each the texts that it has, by their places in the plan."""
        every = range(len(self.plan.texts))
        return (tuple(every),) if self.plan.batching.paired else tuple((text,) for text in every)

    @property
    def late(self) -> bool:
        """Whether the step asks the second of two experts."""
        second = self.pipeline.second
        return second is not None and second.asked(self.plan.schedule, self.number - 1)

    @property
    def denoiser(self) -> Denoiser:
        """The denoiser that the step asks."""
        second = self.pipeline.second
        return second.denoiser if second is not None and self.late else self.pipeline.denoiser

    @property
    def guidance(self) -> Guidance:
        """The guidance of the denoiser that the step asks."""
        return self.plan.second if self.plan.second is not None and self.late else self.plan.guidance

    def lengths(self, texts: Sequence[int]) -> list[int]:
        """Tokens of the texts at these places."""
        return [len(self.plan.texts[text]) for text in texts]

    def prepare(self, texts: Sequence[int]) -> Prepared:
        """What the denoiser makes of the texts at these places, once a request."""
        return self.denoiser.prepare([self.texts[text] for text in texts])

    def predict(self, prepared: Prepared) -> Tensor:
        """One call of the denoiser, which is shown the latents with each of the texts [texts, C, H, W]."""
        latents, vector = torch.cat([self.state.x] * len(prepared.lengths)), self.vector
        velocities: Tensor = self.denoiser(
            latents, self.t, prepared, pooled=None if vector is None else vector[None], guidance=self.guidance.embedded
        )
        return velocities

    def guided(self, predictions: Tensor) -> Tensor:
        """What the sampler is given, of the predictions with each text [1, C, H, W]."""
        scale = self.guidance.scale
        return predictions if len(predictions) == 1 else guided(predictions[:1], predictions[1:], scale)

    def after(self, prediction: Tensor) -> SamplerState:
        """Where the sampler stands after the step."""
        noise = Noise(self.plan.seed, 1, self.plan.geometry.latents, self.pipeline.device)
        return self.pipeline.scheduler.sampler(self.plan.schedule, self.number - 1, self.state, prediction, noise)


@torch.inference_mode()
def run_to_step(pipeline: Pipeline, plan: DiffusionPlan, number: int) -> DenoiseStep:
    """Encode a request's texts and run the steps before this one, counted from 1. Raises ValueError for a step that the
    request does not have.
    """
    if not 1 <= number <= plan.schedule.steps:
        raise ValueError(f"step {number}: the request has steps 1 to {plan.schedule.steps}")
    first = SamplerState(Noise(plan.seed, 1, plan.geometry.latents, pipeline.device)())
    moment = DenoiseStep(pipeline, plan, pipeline.encode(plan), pipeline.texts.pooled(plan.request.prompt), 1, first)
    prepared: dict[Denoiser, list[Prepared]] = {}
    while moment.number < number:
        if moment.denoiser not in prepared:
            prepared = {moment.denoiser: [moment.prepare(texts) for texts in moment.calls]}
        prediction = moment.guided(torch.cat([moment.predict(each) for each in prepared[moment.denoiser]]))
        moment = replace(moment, number=moment.number + 1, state=moment.after(prediction))
    return moment
