"""What the engine tells the outside, and what the outside tells it back: plain messages, which may cross a process."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ridgeline.core.ops.work import Work
from ridgeline.engine.request import NANOSECONDS, FinishReason, Timing
from ridgeline.engine.sampling.sample_row import Outcome, PromptLogprob, Sampled, SampleRow, Scored
from ridgeline.engine.step_plan import StepPlan

PromptLogprobs = tuple[PromptLogprob | None, ...]


def describe_error(error: Exception) -> str:
    """What an error that nobody expected is told as: its type and its message, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class TokenEvent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One choice of one request moved on: a token, an end, or both.

    at: when, in nanoseconds of the engine's clock. cached: positions of the prompt that were found in KV memory.
    timing: moments of the request's life so far. error: why it failed, or why its structured output is incomplete, in
    one line; out_of_memory: because an allocation was refused. prompt_logprobs: those of the prompt's next tokens, None
    for its first token, if the request asked for them. Only its first choice has them, while the prompt is computed;
    the last come with the first token, or with the end if there is no token. hidden: with the end of a request to a
    model without a head, the last hidden states of its prompt, fp32 [positions, hidden].
    """

    request: int
    choice: int
    token: Sampled | None
    at: int
    cached: int
    timing: Timing
    finish: FinishReason | None = None
    error: str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    hidden: NDArray[np.float32] | None = None
    out_of_memory: bool = False


class Stop(NamedTuple):
    """A choice's text has ended: `kept` of its tokens count, and no further ones are wanted."""

    request: int
    choice: int
    kept: int


class Event(NamedTuple):
    """A TokenEvent with the text that became safe to show with it.

    `text` and `reasoning` lag behind the token while a character, a stop string or a tag may still be completed. With
    the end come `output_tokens`, how many of the choice's tokens count (those past a stop string do not, though they
    may have been told), and `reasoning_tokens`, how many of them were reasoning. The rest as in TokenEvent.
    """

    request: int
    choice: int
    token: Sampled | None = None
    text: str = ""
    reasoning: str = ""
    finish: FinishReason | None = None
    error: str | None = None
    reasoning_tokens: int = 0
    output_tokens: int | None = None
    at: int = 0
    cached: int = 0
    timing: Timing | None = None
    prompt_logprobs: PromptLogprobs | None = None
    out_of_memory: bool = False
    hidden: NDArray[np.float32] | None = None


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that ran, as an observer sees it before its tokens are accepted.

    rows: what the sampler was told. outcomes: what came back. started and finished: in nanoseconds of the engine's
    clock, from the plan to the sampled tokens.
    """

    plan: StepPlan
    work: Work
    rows: Sequence[SampleRow]
    outcomes: Sequence[Outcome]
    started: int
    finished: int

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.finished - self.started) * NANOSECONDS

    @property
    def decodes_only(self) -> bool:
        """Whether every sequence of the step ran a single position, or that and guesses at those after it."""
        tokens = self.work.tokens
        return tokens == self.work.sequences or (tokens == self.plan.logit_rows and bool(self.rows))

    @property
    def sampled(self) -> int:
        """Tokens that requests had of it."""
        return sum([_sampled(outcome) for outcome in self.outcomes])


def _sampled(outcome: Outcome | None) -> int:
    if isinstance(outcome, Scored):
        return _sampled(outcome.sampled)
    return len(outcome) if isinstance(outcome, Sequence) else int(isinstance(outcome, Sampled))


@dataclass(frozen=True, slots=True)
class Stats:
    """What an engine has done so far, and what it holds now.

    running, waiting: requests now; a choice that is to start from another's pages is in neither. computed_tokens:
    positions run. reused_tokens: positions of prompts that were found in KV memory instead, by every choice: the second
    of a request finds the first's. output_tokens: tokens sampled. dropped_tokens: those of them past a stop.
    wasted_tokens: positions run again after a preemption.
    held_pages: KV pages that requests hold. cached_pages: those that nobody holds and whose contents are kept.
    grammars: compiled for structured outputs, in grammar_seconds; grammar_bytes: of those that are kept.
    drafts: how often tokens of a request were guessed and verified. draft_tokens: how many; accepted_tokens: those that
    were right, accepted_at: by their place among the guesses.
    """

    running: int = 0
    waiting: int = 0
    steps: int = 0
    computed_tokens: int = 0
    reused_tokens: int = 0
    output_tokens: int = 0
    dropped_tokens: int = 0
    preemptions: int = 0
    wasted_tokens: int = 0
    held_pages: int = 0
    cached_pages: int = 0
    grammars: int = 0
    grammar_seconds: float = 0.0
    grammar_bytes: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()

    def guessed(self) -> str:
        """How right guesses were, in words; "" where nothing was guessed."""
        if not self.drafts:
            return ""
        share, each = self.accepted_tokens / self.draft_tokens, 1 + self.accepted_tokens / self.drafts
        return (
            f"speculation: {self.draft_tokens:,} tokens guessed, {share:.0%} of them right: {each:.2f} tokens a "
            "request of each step that verified any"
        )

    def base(self, before: "Stats") -> "Stats":
        """What to count from since `before`: nothing where another engine has begun in its place."""
        return before if before.steps <= self.steps else Stats()
