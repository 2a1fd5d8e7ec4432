"""The messages between an engine and its users: events, stops and statistics, as data that may cross processes."""

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
    """Return the type and the message of an unexpected error, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


class TokenEvent(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The progress of one choice of a request: a token, an end, or both."""

    request: int
    """The id of the request, which its choices share."""
    choice: int
    """The index of the completion among the `n` of the request."""
    token: Sampled | None
    """The sampled token; None for an event without one."""
    at: int
    """The time of the event, in nanoseconds of the engine's clock."""
    cached: int
    """The number of prompt positions that were found in the prefix cache."""
    timing: Timing
    """The times of the request's arrival, first step, first token and end, as far as they have passed."""
    finish: FinishReason | None = None
    """The reason why the choice ended; None if it continues."""
    error: str | None = None
    """The reason why the request failed, or why its structured output is incomplete, in one line."""
    prompt_logprobs: PromptLogprobs | None = None
    """The log-probabilities of the prompt's next tokens, if the request asked for them; None for its first token.

    Only the first choice reports them, while the prompt is computed. The last come with the first token, or with the
    end if there is no token.
    """
    hidden: NDArray[np.float32] | None = None
    """The last hidden states of the prompt, fp32 [positions, hidden], if the model has no head.

    They come with the end of the request. A model that pools gives a single row, its vector or scores.
    """
    out_of_memory: bool = False
    """Whether the request failed because a memory allocation was refused."""


class Stop(NamedTuple):
    """A message to the engine that the text of a choice has ended and needs no further tokens."""

    request: int
    """The id of the request."""
    choice: int
    """The index of the completion among the `n` of the request."""
    kept: int
    """The number of tokens of the choice that count; the engine drops those after them."""


class Event(NamedTuple):
    """A TokenEvent with the text that it makes safe to show.

    `text` and `reasoning` lag behind the token while a character, a stop string or a tag may still be completed.
    """

    request: int
    """The id of the request, which its choices share."""
    choice: int
    """The index of the completion among the `n` of the request."""
    token: Sampled | None = None
    """The sampled token; None for an event without one.

    It is also None if the token does not count because it comes after a stop string.
    """
    text: str = ""
    """The new text of the response that is safe to show, without reasoning."""
    reasoning: str = ""
    """The new text of the model's reasoning section."""
    finish: FinishReason | None = None
    """The reason why the choice ended; None if it continues."""
    error: str | None = None
    """The reason why the request failed, or why its structured output is incomplete, in one line."""
    reasoning_tokens: int = 0
    """The number of tokens of the reasoning, reported with the end."""
    output_tokens: int | None = None
    """The number of the choice's tokens that count, reported with the end.

    Tokens past a stop string do not count, though earlier events may have reported them.
    """
    at: int = 0
    """The time of the event, in nanoseconds of the engine's clock."""
    cached: int = 0
    """The number of prompt positions that were found in the prefix cache."""
    timing: Timing | None = None
    """The times of the request's arrival, first step, first token and end, as far as they have passed."""
    prompt_logprobs: PromptLogprobs | None = None
    """The log-probabilities of the prompt's next tokens, if requested; None for the first, which follows nothing."""
    out_of_memory: bool = False
    """Whether the request failed because a memory allocation was refused."""
    hidden: NDArray[np.float32] | None = None
    """The last hidden states of the prompt, or a pooled vector as one row, if the model has no head; else None."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The record of a step that ran, which an observer receives before its tokens are accepted."""

    plan: StepPlan
    """The plan of the step that ran: the parts of requests that it consisted of."""
    work: Work
    """The amount of work of the step, which the cost model prices."""
    rows: Sequence[SampleRow]
    """The sampling inputs of the step's logit rows."""
    outcomes: Sequence[Outcome]
    """The outcomes of the plan's items: sampled tokens, scores, hidden states or failures."""
    started: int
    """The time just before the executor ran the plan, in nanoseconds of the engine's clock."""
    finished: int
    """The time just after the executor ran the plan, in nanoseconds of the engine's clock."""

    @property
    def seconds(self) -> float:
        """The duration of the step in seconds."""
        return (self.finished - self.started) * NANOSECONDS

    @property
    def decodes_only(self) -> bool:
        """Whether every sequence of the step ran a single position, or one and the guesses that follow it."""
        tokens = self.work.tokens
        return tokens == self.work.sequences or (tokens == self.plan.logit_rows and bool(self.rows))

    @property
    def sampled(self) -> int:
        """The number of tokens that requests got from the step."""
        return sum([_sampled(outcome) for outcome in self.outcomes])


def _sampled(outcome: Outcome | None) -> int:
    if isinstance(outcome, Scored):
        return _sampled(outcome.sampled)
    return len(outcome) if isinstance(outcome, Sequence) else int(isinstance(outcome, Sampled))


@dataclass(frozen=True, slots=True)
class Stats:
    """The counters of an engine's work so far, and what it holds now."""

    running: int = 0
    """The number of requests that run now.

    A choice that waits for the prompt of another is neither running nor waiting.
    """
    waiting: int = 0
    """The number of requests that wait now, parked ones included."""
    steps: int = 0
    """The number of steps that the scheduler has planned."""
    computed_tokens: int = 0
    """The number of positions run in steps that did not fail."""
    reused_tokens: int = 0
    """The number of prompt positions found in KV memory instead, counted for every choice of a request."""
    output_tokens: int = 0
    """The number of tokens sampled so far."""
    dropped_tokens: int = 0
    """The number of sampled tokens that do not count because they come after a stop."""
    preemptions: int = 0
    """The number of times that a request was preempted."""
    wasted_tokens: int = 0
    """The number of positions run again after a preemption."""
    held_pages: int = 0
    """The number of KV pages that requests hold."""
    cached_pages: int = 0
    """The number of KV pages that no request holds and whose contents remain findable."""
    grammars: int = 0
    """The number of grammars compiled for structured outputs."""
    grammar_seconds: float = 0.0
    """The seconds spent on preparing structured outputs."""
    grammar_bytes: int = 0
    """The bytes of compiled grammars in the cache."""
    drafts: int = 0
    """The number of times that a step verified guesses at a request's next tokens."""
    draft_tokens: int = 0
    """The number of guessed tokens that steps verified."""
    accepted_tokens: int = 0
    """The number of guessed tokens that were right."""
    accepted_at: tuple[int, ...] = ()
    """The number of right guesses at each place among the guesses of a step."""

    def guessed(self) -> str:
        """Return a sentence on how many guesses were right; "" if nothing was guessed."""
        if not self.drafts:
            return ""
        share, each = self.accepted_tokens / self.draft_tokens, 1 + self.accepted_tokens / self.drafts
        return (
            f"speculation: {self.draft_tokens:,} tokens drafted, {share:.0%} accepted; a step that verified drafts "
            f"produced {each:.2f} tokens per request"
        )

    def base(self, before: "Stats") -> "Stats":
        """Return earlier counters to subtract from these: `before`, or zeros if a new engine has started since."""
        return before if before.steps <= self.steps else Stats()
