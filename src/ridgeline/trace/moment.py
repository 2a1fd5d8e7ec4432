"""A request before one of its steps: what traces of pictures look at."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ridgeline.diffusion.guidance import guided
from ridgeline.diffusion.noise import Noise
from ridgeline.diffusion.pipeline import Pipeline
from ridgeline.diffusion.request import Plan
from ridgeline.diffusion.samplers import State
from ridgeline.models.denoiser import Prepared


@dataclass(frozen=True, slots=True)
class Moment:
    """A request before one of its steps. texts: the states of its texts; number: the step, counted from 1."""

    pipeline: Pipeline
    plan: Plan
    texts: tuple[Tensor, ...]
    number: int
    state: State

    @property
    def t(self) -> float:
        """The noise level, as denoisers are told it."""
        return self.plan.schedule.time(self.number - 1)

    @property
    def calls(self) -> tuple[tuple[int, ...], ...]:
        """Those of the denoiser in a step, each with the places of its texts."""
        every = range(len(self.plan.texts))
        return (tuple(every),) if self.plan.batching.paired else tuple((text,) for text in every)

    def lengths(self, texts: Sequence[int]) -> list[int]:
        """Tokens of the texts at these places."""
        return [len(self.plan.texts[text]) for text in texts]

    def prepare(self, texts: Sequence[int]) -> Prepared:
        """What the denoiser makes of the texts at these places, once a request."""
        return self.pipeline.denoiser.prepare([self.texts[text] for text in texts])

    def predict(self, prepared: Prepared) -> Tensor:
        """One call of the denoiser, which is shown the latents with each of the texts [texts, C, H, W]."""
        latents = torch.cat([self.state.x] * len(prepared.lengths))
        velocities: Tensor = self.pipeline.denoiser(latents, self.t, prepared)
        return velocities

    def guided(self, predictions: Tensor) -> Tensor:
        """What the sampler is given, of the predictions with each text [1, C, H, W]."""
        scale = self.plan.guidance.scale
        return predictions if len(predictions) == 1 else guided(predictions[:1], predictions[1:], scale)

    def after(self, prediction: Tensor) -> State:
        """Where the sampler stands after the step."""
        noise = Noise(self.plan.seed, 1, self.plan.geometry.latents)
        return self.pipeline.scheduler.sampler(self.plan.schedule, self.number - 1, self.state, prediction, noise)


@torch.inference_mode()
def moment_of(pipeline: Pipeline, plan: Plan, number: int) -> Moment:
    """Encode a request's texts and run its steps before this one. Raises ValueError for one that it does not have, and
    for a clip."""
    if pipeline.layout.clips:
        raise ValueError(f"{pipeline.name} draws clips, of which no step is traced; trace a pipeline of pictures")
    if not 1 <= number <= plan.schedule.steps:
        raise ValueError(f"step {number}: the request has steps 1 to {plan.schedule.steps}")
    denoiser = pipeline.denoiser
    if len(pipeline.encoder.models) > 1 or denoiser.pooled_width is not None or denoiser.takes_guidance:
        raise ValueError(
            f"{pipeline.name} has two text encoders, or takes guidance as an input; trace a pipeline whose "
            "denoiser sees one text alone"
        )
    first = State(Noise(plan.seed, 1, plan.geometry.latents)())
    moment = Moment(pipeline, plan, pipeline.encode(plan), 1, first)
    prepared = [moment.prepare(texts) for texts in moment.calls]
    while moment.number < number:
        prediction = moment.guided(torch.cat([moment.predict(each) for each in prepared]))
        moment = replace(moment, number=moment.number + 1, state=moment.after(prediction))
    return moment
