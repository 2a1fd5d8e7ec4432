"""The host time of the parts of an engine step that belong to no op, each with its own measured constants."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ridgeline.core.ops.work import Work

GREEDY = "greedy"
"""The way of sampling that a price assumes: each row takes its largest logit."""


@dataclass(frozen=True, slots=True)
class PartTime:
    """The host seconds of one part of a step, such as building its batch, by what the step contains."""

    step: float
    """The seconds per step, regardless of its content."""
    sequence: float
    """The seconds per sequence in a step."""
    token: float
    """The seconds per position in a step."""
    asked: float
    """The additional seconds of a step that is issued op by op, not replayed from a recording."""
    prompts: float
    """The additional seconds of a step that runs prompts."""
    prompt: float
    """The additional seconds per sequence that runs several positions."""

    def seconds(self, work: Work, prompts: int, *, recorded: bool) -> float:  # also in formulas.js
        """Return the seconds of the part in a step.

        Args:
            work: The step.
            prompts: The number of sequences that run several positions (`Work.prompts`).
            recorded: Whether the step is recorded and replayed.
        """
        asked = 0.0 if recorded else self.asked
        with_prompts = 0.0 if work.is_verify else self.prompts + self.prompt * prompts
        return self.step + self.sequence * work.sequences + self.token * work.tokens + asked + with_prompts

    def slowed(self, factor: float) -> "PartTime":
        """Return the constants for a host that takes `factor` times as long."""
        names = ("step", "sequence", "token", "asked", "prompts", "prompt")
        return replace(self, **{name: getattr(self, name) * factor for name in names})


@dataclass(frozen=True, slots=True)
class SamplingTime:
    """The host seconds of sampling in one way, by the number of rows and the size of the vocabulary."""

    step: float
    """The seconds per step that samples anything."""
    row: float
    """The seconds per row of logits."""
    logit: float
    """The seconds per logit of a row."""

    def seconds(self, rows: int, logits: int) -> float:  # also in formulas.js
        """Return the seconds to sample a token from each of `rows` rows of logits."""
        return self.step + (self.row + self.logit * logits) * rows if rows and logits else 0.0

    def slowed(self, factor: float) -> "SamplingTime":
        """Return the constants for a host that takes `factor` times as long."""
        return SamplingTime(self.step * factor, self.row * factor, self.logit * factor)


@dataclass(frozen=True, slots=True)
class HostParts:
    """The constants of those parts of an engine step that were measured one by one."""

    schedule: PartTime
    """The scheduler: planning a step, and accepting its tokens."""
    batch: PartTime
    """Turning a plan into the tensors of a step."""
    sampling: Mapping[str, SamplingTime]
    """The way from the logits to the tokens, by the way of sampling; GREEDY is always there."""

    def seconds(self, work: Work, prompts: int, vocabulary: int, *, recorded: bool) -> float:  # also in formulas.js
        """Return the seconds of all parts in a step that samples greedily.

        Args:
            work: The step.
            prompts: The number of sequences that run several positions (`Work.prompts`).
            vocabulary: The number of logits of a row; 0 for a model that samples nothing.
            recorded: Whether the step is recorded and replayed.
        """
        schedule = self.schedule.seconds(work, prompts, recorded=recorded)
        batch = self.batch.seconds(work, prompts, recorded=recorded)
        return schedule + batch + self.sampling["greedy"].seconds(work.logit_rows, vocabulary)

    def slowed(self, factor: float) -> "HostParts":
        """Return the constants for a host that takes `factor` times as long."""
        sampling = {way: each.slowed(factor) for way, each in self.sampling.items()}
        return HostParts(self.schedule.slowed(factor), self.batch.slowed(factor), sampling)


@dataclass(frozen=True, slots=True)
class HostShares:
    """The predicted host seconds of a step, part by part."""

    schedule: float
    batch: float
    between: float
    """The rest: Python between ops, and what the ops' traffic adds by evicting the program from the caches."""
    sampling: float

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.schedule + self.batch + self.between + self.sampling
