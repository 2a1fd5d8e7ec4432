"""The inputs of one denoising step of a diffusion request, for traces of images and videos."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.core.models.common.denoiser import Denoiser, Prepared
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan
from ridgeline.media.diffusion.guidance import Guidance, combine_guidance
from ridgeline.media.diffusion.noise import Noise
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.samplers import SamplerState


@dataclass(frozen=True, slots=True)
class DenoiseStep:
    """The inputs of one denoising step of a diffusion request: its texts, and the sampler's state before the step."""

    pipeline: Pipeline
    plan: DiffusionPlan
    texts: tuple[Tensor, ...]
    """The encoder states [tokens, width] of each text, the prompt first."""
    vector: Tensor | None
    """The pooled vector of the prompt [pooled_width], if the denoiser takes one."""
    number: int
    """The number of the denoising step, counted from 1."""
    state: SamplerState
    """The sampler's state before the denoising step."""

    @property
    def t(self) -> float:
        """The noise level, as the denoiser's time input."""
        return self.plan.schedule.time(self.number - 1)

    @property
    def calls(self) -> tuple[tuple[int, ...], ...]:
        """The denoiser calls of the step, each as the indices of its texts in the plan."""
        every = range(len(self.plan.token_ids))
        return (tuple(every),) if self.plan.batching.paired else tuple((text,) for text in every)

    @property
    def late(self) -> bool:
        """Whether the step uses the second of two denoiser experts."""
        second = self.pipeline.low_noise_expert
        return second is not None and second.runs_step(self.plan.schedule, self.number - 1)

    @property
    def denoiser(self) -> Denoiser:
        """The denoiser that runs the step, one of two if the pipeline has two experts."""
        second = self.pipeline.low_noise_expert
        return second.denoiser if second is not None and self.late else self.pipeline.denoiser

    @property
    def guidance(self) -> Guidance:
        """The guidance settings of the step's denoiser."""
        return self.plan.second_guidance if self.plan.second_guidance is not None and self.late else self.plan.guidance

    def lengths(self, texts: Sequence[int]) -> list[int]:
        """Return the token counts of the request's texts with the given indices."""
        return [len(self.plan.token_ids[text]) for text in texts]

    def prepare(self, texts: Sequence[int]) -> Prepared:
        """Compute the denoiser's inputs that depend only on the texts, for the texts with the given indices.

        They are the same in all steps of a denoiser, but nothing is cached here.
        """
        return self.denoiser.prepare([self.texts[text] for text in texts])

    def predict(self, prepared: Prepared) -> Tensor:
        """Run the denoiser once on the latents with each of the texts, and return its predictions.

        They have the shape [texts, C, H, W], or [texts, C, frames, H, W] for a video.
        """
        latents, vector = torch.cat([self.state.x] * len(prepared.lengths)), self.vector
        velocities: Tensor = self.denoiser(
            latents, self.t, prepared, pooled=None if vector is None else vector[None], guidance=self.guidance.embedded
        )
        return velocities

    def guided(self, predictions: Tensor) -> Tensor:
        """Return the prediction after guidance, with a batch dimension of 1.

        Args:
            predictions: The predictions with each of the request's texts, the prompt first.
        """
        scale = self.guidance.scale
        return predictions if len(predictions) == 1 else combine_guidance(predictions[:1], predictions[1:], scale)

    def after(self, prediction: Tensor) -> SamplerState:
        """Return the sampler's state after the step."""
        noise = Noise(self.plan.seed, 1, self.plan.geometry.latents, self.pipeline.device)
        return self.pipeline.scheduler.sampler(self.plan.schedule, self.number - 1, self.state, prediction, noise)


@torch.inference_mode()
def run_to_step(pipeline: Pipeline, plan: DiffusionPlan, number: int) -> DenoiseStep:
    """Encode the texts of a request and run all steps before step `number`, counted from 1.

    Raises:
        ValueError: If the request has no such step.
    """
    if not 1 <= number <= plan.schedule.steps:
        raise ValueError(f"step is {number}; give 1 to {plan.schedule.steps}")
    first = SamplerState(Noise(plan.seed, 1, plan.geometry.latents, pipeline.device)())
    moment = DenoiseStep(pipeline, plan, pipeline.encode(plan), pipeline.texts.pooled(plan.request.prompt), 1, first)
    prepared: dict[Denoiser, list[Prepared]] = {}
    while moment.number < number:
        if moment.denoiser not in prepared:
            prepared = {moment.denoiser: [moment.prepare(texts) for texts in moment.calls]}
        prediction = moment.guided(torch.cat([moment.predict(each) for each in prepared[moment.denoiser]]))
        moment = replace(moment, number=moment.number + 1, state=moment.after(prediction))
    return moment
