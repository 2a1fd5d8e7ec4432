"""The result of measuring a step op by op."""

from dataclasses import dataclass

from ridgeline.core.ops.work import Work
from ridgeline.insight.trace.tracer import TracedCall


@dataclass(frozen=True, slots=True)
class Measurement:
    """The measured times of a step: medians over `repeats` runs, in seconds, less the time of the hooks."""

    work: Work
    calls: tuple[TracedCall, ...]
    seconds: tuple[float, ...]
    """The time of each op call."""
    gaps: tuple[float, ...]
    """The time before each op call, except the first (see `batch`); all 0 on a GPU, whose gaps are part of `tail`."""
    batch: float
    """The time before the first op, in which the batch is built; 0 on a GPU, where `tail` includes it."""
    tail: float
    """The time between the last op and the logits; on a GPU all time up to the logits that belongs to no op."""
    sampling: float
    """The time from the logits to the token; for a denoiser, from its prediction to the next latents."""
    hooked: float
    """The time of the whole step in runs with hooks, less the time that the hooks add (`hooks`)."""
    unhooked: float
    """The time of the whole step without hooks."""
    hooks: float
    """The time that the hooks add to the step."""
    repeats: int
    left_out: int
    """The number of runs left out because other processes interrupted them."""
    recorded: bool = False
    """Whether the engine replays the step as a recorded graph."""

    @property
    def between(self) -> float:
        """The seconds between the first op and the logits that belong to no op; on a GPU also those before."""
        return sum(self.gaps) + self.tail

    @property
    def whole(self) -> float:
        """The seconds of the step: all ops and the time between and around them."""
        return sum(self.seconds) + self.batch + self.between + self.sampling
