"""What measuring a step found."""

from dataclasses import dataclass

from ridgeline.core.ops.work import Work
from ridgeline.insight.trace.tracer import TracedCall


@dataclass(frozen=True, slots=True)
class Measurement:
    """A step, measured: medians over `repeats`, in seconds, hooks subtracted.

    seconds and gaps: of each call, its own and what lies before it; what lies before the first is `batch`, not a gap.
    tail: from the last op to the logits. sampling: from the logits to the token; of a denoiser from its prediction to
    the next latents. hooked: the whole step with hooks, less `hooks`, what they take. unhooked: the whole step without.
    left_out: repeats that other processes interrupted.
    recorded: whether the engine runs it as a recording.
    """

    work: Work
    calls: tuple[TracedCall, ...]
    seconds: tuple[float, ...]
    gaps: tuple[float, ...]
    batch: float
    tail: float
    sampling: float
    hooked: float
    unhooked: float
    hooks: float
    repeats: int
    left_out: int
    recorded: bool = False

    @property
    def between(self) -> float:
        """Seconds between the first op and the logits that no op has."""
        return sum(self.gaps) + self.tail

    @property
    def whole(self) -> float:
        """Seconds of the step: ops and all that lies between and around them."""
        return sum(self.seconds) + self.batch + self.between + self.sampling
