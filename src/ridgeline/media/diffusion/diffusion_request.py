"""Requests for images or videos, and the plans that are made from them before anything runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ridgeline.media.diffusion.batching import Batching
from ridgeline.media.diffusion.geometry import Geometry, Size
from ridgeline.media.diffusion.guidance import Guidance
from ridgeline.media.diffusion.schedules import Schedule


@dataclass(frozen=True, slots=True)
class DiffusionRequest:
    """A request for images or videos of one prompt.

    The model's default replaces a size, steps, guidance or frames that are None. A seed of None is drawn at random.
    """

    prompt: str
    """The text that describes the image or video."""
    negative: str | None = None
    """The negative prompt, which is refused if it would have no effect, as without guidance; None for an empty one."""
    size: Size | None = None
    """Width x height in pixels, one of the sizes that the model supports."""
    steps: int | None = None
    """The number of denoising steps."""
    guidance: float | None = None
    """The guidance scale, in the convention of the model's pipeline (`Convention`)."""
    seed: int | None = None
    """The seed of the first image; image i uses seed + i."""
    images: int = 1
    """The number of images or videos to generate."""
    frames: int | None = None
    """The number of frames of a video; only for video models."""
    second_guidance: float | None = None
    """The guidance scale of the second expert of a two-expert model; the default is `guidance`."""
    step_cache: float | None = None
    """The threshold of the step cache (`StepCache`), or None to run every pass completely.

    If the contribution of a pass's first block changes by a smaller fraction than this, the other blocks do not run:
    their contribution is taken from an earlier pass.
    """


class InvalidRequest(ValueError):
    """The error for a request that cannot be run.

    The message is one line, and `field` is the field of `DiffusionRequest` that has to change.
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@contextmanager
def blame_field(field: str) -> Iterator[None]:
    """Convert a ValueError raised inside this context to an InvalidRequest that names `field`."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(str(error), field) from None


@dataclass(frozen=True, slots=True)
class DiffusionPlan:
    """A validated diffusion request whose open values are all filled in."""

    request: DiffusionRequest
    """The diffusion request from which the plan was made, as it was received."""
    seed: int
    """The seed of the plan's first image."""
    scale: float | None
    """The guidance scale in the convention of the model's pipeline; None if neither request nor model has one."""
    geometry: Geometry
    """The shapes of pixels, latents and tokens that follow from the request's size and number of frames."""
    schedule: Schedule
    """The noise levels and timesteps that follow from the number of steps and, for some models, the size."""
    guidance: Guidance
    """The guidance that follows from the scale, the model's convention and the negative prompt."""
    token_ids: tuple[tuple[int, ...], ...]
    """The token ids of the prompt and, if guidance needs a second pass, of the negative prompt."""
    batching: Batching
    """The images and passes that share one call of the denoiser."""
    second_guidance: Guidance | None = None
    """The guidance of the second of two experts; None for a model with one denoiser."""

    @property
    def passes(self) -> int:
        """The number of denoiser passes per image: one per step, or two per step with guidance."""
        return self.guidance.passes(self.schedule.steps)

    @property
    def groups(self) -> tuple[range, ...]:
        """The groups of images that are denoised together in one batch, in order."""
        every, size = range(self.request.images), self.batching.images
        return tuple(every[first : first + size] for first in every[::size])

    @property
    def steps(self) -> int:
        """The number of denoising results that the plan yields, over all groups of images."""
        return len(self.groups) * self.schedule.steps
