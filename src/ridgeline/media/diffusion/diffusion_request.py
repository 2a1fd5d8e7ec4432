"""What is asked for, and what it comes to before anything runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ridgeline.media.diffusion.batching import Batching
from ridgeline.media.diffusion.geometry import Geometry, Size
from ridgeline.media.diffusion.guidance import Guidance
from ridgeline.media.diffusion.schedules import Schedule


@dataclass(frozen=True, slots=True)
class DiffusionRequest:
    """Pictures of a prompt. Where a field is None the model's own holds; where the seed is, any is drawn.

    Args:
        prompt: what is to be seen.
        negative: what is not to be seen, where guidance acts.
        size: width x height in pixels, one of the model's menu.
        steps: how often noise is taken away.
        guidance: how strongly the prompt is followed, as the model's pipeline states it (`Convention`).
        seed: of the first image; image i has seed + i.
        images: how many pictures or clips are drawn.
        frames: of a clip; only for models that draw clips.
        second_guidance: as `guidance`, for the second of two experts; by default the same as for the first.
        step_cache: the change of a pass's first block below which the other blocks are not run, but taken from an
            earlier pass (`StepCache`); None where every pass is to run whole.
    """

    prompt: str
    negative: str | None = None
    size: Size | None = None
    steps: int | None = None
    guidance: float | None = None
    seed: int | None = None
    images: int = 1
    frames: int | None = None
    second_guidance: float | None = None
    step_cache: float | None = None


class InvalidRequest(ValueError):
    """A request that cannot be drawn; the message says why in one line. field: of `DiffusionRequest`, to change."""

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.field = field


@contextmanager
def concerning(field: str) -> Iterator[None]:
    """A ValueError raised inside becomes an InvalidRequest that names this field."""
    try:
        yield
    except ValueError as error:
        raise InvalidRequest(str(error), field) from None


@dataclass(frozen=True, slots=True)
class DiffusionPlan:
    """A request that can be drawn, with all that it left open.

    Args:
        request: as it was made.
        seed: of the first image.
        scale: of guidance, as the model's pipeline states it; None where it has none.
        geometry, schedule, guidance: what size, steps and scale mean to the model.
        second: guidance of the second of two experts; None where there is one.
        texts: token ids of the prompt and, where guidance asks for a second pass, of the negative one.
        batching: which pictures are drawn side by side.
    """

    request: DiffusionRequest
    seed: int
    scale: float | None
    geometry: Geometry
    schedule: Schedule
    guidance: Guidance
    texts: tuple[tuple[int, ...], ...]
    batching: Batching
    second: Guidance | None = None

    @property
    def passes(self) -> int:
        """How often a picture is shown to the denoiser: n steps are n passes, with guidance 2n."""
        return self.guidance.passes(self.schedule.steps)

    @property
    def groups(self) -> tuple[range, ...]:
        """The images that are drawn side by side, in order."""
        every, size = range(self.request.images), self.batching.pictures
        return tuple(every[first : first + size] for first in every[::size])

    @property
    def steps(self) -> int:
        """How many `DenoiseOutput`s there will be, of all groups together."""
        return len(self.groups) * self.schedule.steps
