"""Request: a prompt, what was sampled after it, and two counters."""

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
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Timing:
    """Moments of a request's life, in nanoseconds of the engine's clock; None until they come.

    scheduled: when the first plan that runs it was made. first_token and finished: when those tokens were accepted; of
    a request for no token, when its prompt was computed.
    """

    arrived: int
    scheduled: int | None = None
    first_token: int | None = None
    finished: int | None = None

    @property
    def queued(self) -> float | None:
        """Seconds from its arrival to its first step."""
        return None if self.scheduled is None else (self.scheduled - self.arrived) * NANOSECONDS

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from its arrival to its first token (TTFT)."""
        return None if self.first_token is None else (self.first_token - self.arrived) * NANOSECONDS

    @property
    def seconds(self) -> float | None:
        """Seconds from its arrival to its end."""
        return None if self.finished is None else (self.finished - self.arrived) * NANOSECONDS


@dataclass(eq=False, slots=True)
class Request:
    """One sequence under way: one choice of what a user asked for.

    `known` tokens have ids: the prompt, then what was sampled. `computed` of them are in KV memory. The engine's whole
    job is to make `computed` catch up with `known`; a request that was preempted starts again at 0, with all it knows.

    id: also its number of arrival. group: what add() returned, which choices share. spec: the request that add()
    was given, which says all that does not change; no field of it is copied. limit: most tokens to sample; 1 where
    the model has no head. stop_ids: tokens that end it. cache_namespace: what its KV depends on beside its tokens:
    salt, adapter, images and the encoder's input together. running: it holds pages. encoded: a step has been
    planned that puts its encoder's output there. cached: positions it found computed when it began. reached: most
    positions it had computed when it was preempted. scores: log-probabilities of its prompt's tokens so far, from
    the second one on; None if nobody waits for them. told: how many of those events have had. hidden: where the
    model has no head, the hidden states of its prompt so far, step by step; else None. guide: holds its response
    to a form, or to rules. children: further choices of the same prompt, which start from its pages. adapter: the
    number that the adapter has in this engine, counted from 1; 0 for none. placed_images: those of its prompt, with the
    positions at which their rows stand. received: positions whose keys and values another engine computed; 0 once
    it has begun, for a preemption loses them. decode_fast_until: with fewer computed positions it is on the fast path
    of decode, whose state this is (DecodeFastPath).
    """

    id: int
    group: int
    spec: GenerationRequest
    tokens: Tokens
    seed: int
    choice: int
    limit: int
    stop_ids: frozenset[int]
    timing: Timing
    adapter: int = 0
    cache_namespace: bytes = b""
    known: int = 0
    computed: int = 0
    running: bool = False
    encoded: bool = False
    cached: int = 0
    preemptions: int = 0
    recompute_mark: int = 0
    finish: FinishReason | None = None
    error: str | None = None
    history: History | None = None
    constraint: "OutputConstraint | TokenRuleProcessor | None" = None
    scores: list[PromptLogprob] | None = None
    reported_scores: int = 0
    hidden: list[NDArray[np.float32]] | None = None
    children: list["Request"] = field(default_factory=list)
    placed_images: PlacedImages | None = None
    received: int = 0
    decode_fast_until: int = 0

    def __post_init__(self) -> None:
        self.known = len(self.tokens)

    @property
    def prompt_length(self) -> int:
        """Tokens of its prompt."""
        return len(self.tokens.prompt)

    @property
    def output(self) -> list[int]:
        """The tokens sampled so far."""
        return self.tokens.output

    @property
    def output_length(self) -> int:
        """How many tokens were sampled so far."""
        return len(self.tokens.output)

    @property
    def uses_prefix_cache(self) -> bool:
        """Whether what is cached of its prompt need not run: nothing is wanted of each of its positions."""
        return self.scores is None and self.hidden is None

    def take_new_scores(self, *, last: bool) -> tuple[PromptLogprob | None, ...] | None:
        """Return the scores of its prompt's tokens that no event has had yet; None if the request wants no scores.

        The first token has no score, and None stands for it. last: whether no further tokens will be scored.
        """
        if self.scores is None:
            return None
        first = () if self.reported_scores else (None,)
        scores, self.reported_scores = self.scores[self.reported_scores :], len(self.scores)
        if last:
            self.scores = None
        return (*first, *scores)

    def append(self, token: int) -> FinishReason | None:
        """Take a sampled token; why the request ends with it, if it does."""
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
