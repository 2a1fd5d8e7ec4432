"""The state of one request in the engine: a prompt, the tokens sampled after it, and two counters."""

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ridgeline.engine.encoder_features import PlacedImages
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.prompt_tokens import Tokens
from ridgeline.engine.sampling.sample_row import History, PromptLogprob
from ridgeline.engine.token_rules import TokenRuleProcessor

if TYPE_CHECKING:
    from ridgeline.engine.structured_output import OutputConstraint

NANOSECONDS = 1e-9


class FinishReason(enum.StrEnum):
    """The reason why a request ended: a stop, the maximum length, an abort or an error."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Timing:
    """The times of the events in a request's life, in nanoseconds of the engine's clock; None until they happen."""

    arrived: int
    """The time at which the engine received the request."""
    scheduled: int | None = None
    """The time at which the scheduler made the first plan that runs the request."""
    first_token: int | None = None
    """The time at which the engine accepted the first token, or the computed prompt if no token is wanted."""
    finished: int | None = None
    """The time at which the request ended."""

    @property
    def queued(self) -> float | None:
        """The seconds from the request's arrival to its first step."""
        return None if self.scheduled is None else (self.scheduled - self.arrived) * NANOSECONDS

    @property
    def time_to_first_token(self) -> float | None:
        """The seconds from the request's arrival to its first token (TTFT)."""
        return None if self.first_token is None else (self.first_token - self.arrived) * NANOSECONDS

    @property
    def seconds(self) -> float | None:
        """The seconds from the request's arrival to its end."""
        return None if self.finished is None else (self.finished - self.arrived) * NANOSECONDS


@dataclass(eq=False, slots=True)
class Request:
    """One sequence of the engine: one choice of a request that a user sent.

    `known` tokens have ids: the prompt, then the sampled ones. `computed` of them are in KV memory. The engine's whole
    job is to make `computed` catch up with `known`. A preempted request starts again at 0 and keeps the tokens that it
    knows.
    """

    id: int
    """The id of this completion of a user's request, which is also its place in the order of arrival."""
    group: int
    """The id that `Engine.add` returned, which all choices of the user's request share."""
    spec: GenerationRequest
    """The request that `Engine.add` received. It holds all that does not change; none of its fields is copied here."""
    tokens: Tokens
    """The tokens of the prompt and of the output so far."""
    seed: int
    """The seed from which the request's tokens are sampled."""
    choice: int
    """The index of this completion among the `n` of the user's request."""
    limit: int
    """The maximum number of tokens to sample; 1 if the model has no head."""
    stop_ids: frozenset[int]
    """The token ids that end the request."""
    timing: Timing
    """The times of the request's arrival, first step, first token and end."""
    adapter: int = 0
    """The number of the request's LoRA adapter in this engine, counted from 1; 0 for none."""
    cache_namespace: bytes = b""
    """A digest of everything but the tokens that the request's KV depends on.

    That is the salt, the adapter, the images and the encoder's input.
    """
    known: int = 0
    """The number of tokens that have ids: the prompt and the sampled ones."""
    computed: int = 0
    """The number of the request's positions that are in KV memory."""
    running: bool = False
    """Whether the request runs, that is, holds KV pages."""
    encoded: bool = False
    """Whether a planned step puts the output of the request's encoder into KV memory."""
    cached: int = 0
    """The number of prompt positions found in the prefix cache when the request first started."""
    preemptions: int = 0
    """The number of times that the request was preempted."""
    recompute_mark: int = 0
    """The largest number of positions computed before a preemption; recomputing those is wasted work."""
    finish: FinishReason | None = None
    """The reason why the request ended; None while it has not."""
    error: str | None = None
    """The reason why the request failed, or why its structured output is incomplete, in one line; else None."""
    history: History | None = None
    """The token counts that penalties need; None without penalties."""
    constraint: "OutputConstraint | TokenRuleProcessor | None" = None
    """The structured output or the token rules that the response must follow; None for neither."""
    scores: list[PromptLogprob] | None = None
    """The log-probabilities of prompt tokens so far, from the second token on; None if not requested."""
    reported_scores: int = 0
    """The number of prompt log-probabilities that events have reported."""
    hidden: list[NDArray[np.float32]] | None = None
    """The hidden states of the prompt so far, step by step, if the model has no head; otherwise None."""
    children: list["Request"] = field(default_factory=list)
    """The further completions of the same prompt, which start from this one's pages once the prompt is computed."""
    placed_images: PlacedImages | None = None
    """The images of the prompt, with the positions of their rows; None without images."""
    received: int = 0
    """The number of positions whose KV came from another engine; 0 once the request has started.

    A preemption loses them, so they count only for the first start.
    """
    decode_fast_until: int = 0
    """The number of computed positions below which the request is on the fast path of decode (`DecodeFastPath`)."""

    def __post_init__(self) -> None:
        self.known = len(self.tokens)

    @property
    def prompt_length(self) -> int:
        """The number of tokens in the prompt."""
        return len(self.tokens.prompt)

    @property
    def output(self) -> list[int]:
        """The tokens sampled so far."""
        return self.tokens.output

    @property
    def output_length(self) -> int:
        """The number of tokens sampled so far."""
        return len(self.tokens.output)

    @property
    def uses_prefix_cache(self) -> bool:
        """Whether cached positions of the prompt need not run, because each position's result is not needed."""
        return self.scores is None and self.hidden is None

    def take_new_scores(self, *, last: bool) -> tuple[PromptLogprob | None, ...] | None:
        """Return the scores of prompt tokens that no event has reported yet; None if the request wants no scores.

        The first token has no score, and None stands for it.

        Args:
            last: Whether no further tokens will be scored.
        """
        if self.scores is None:
            return None
        first = () if self.reported_scores else (None,)
        scores, self.reported_scores = self.scores[self.reported_scores :], len(self.scores)
        if last:
            self.scores = None
        return (*first, *scores)

    def append(self, token: int) -> FinishReason | None:
        """Append a sampled token; return the reason why the request ends with it, or None if it continues."""
        output = self.tokens.output
        output.append(token)
        self.known += 1
        if self.history is not None:
            self.history.append(token)
        if token in self.stop_ids:
            return FinishReason.STOP
        if self.constraint is not None:
            self.constraint.take(token)
            if self.constraint.complete:
                return FinishReason.STOP
        return FinishReason.LENGTH if len(output) >= self.limit else None
