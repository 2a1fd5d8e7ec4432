"""Request: a list of tokens and two counters."""

import enum
from dataclasses import dataclass, field

from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import History


class Finish(enum.StrEnum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(slots=True)
class Timing:
    """Moments of a request's life, in seconds of the monotonic clock; None until they come."""

    arrived: float
    scheduled: float | None = None
    first_token: float | None = None
    finished: float | None = None


@dataclass(eq=False, slots=True)
class Request:
    """One sequence under way: one choice of what a user asked for.

    `tokens` are known: the prompt, then what was sampled. `computed` of them are in KV memory. The engine's whole job
    is to make `computed` catch up with `known`; a request that was preempted starts again at 0, with all it knows.

    limit: most tokens to sample. stop_ids: tokens that end it. cached: positions it found computed when it began.
    children: further choices of the same prompt, which start from its pages.
    """

    id: int
    tokens: list[int]
    prompt_length: int
    params: SamplingParams
    seed: int
    choice: int
    limit: int
    stop_ids: frozenset[int]
    timing: Timing
    computed: int = 0
    cached: int = 0
    preemptions: int = 0
    finish: Finish | None = None
    error: str | None = None
    history: History | None = None
    children: list["Request"] = field(default_factory=list)

    @property
    def known(self) -> int:
        """Tokens whose ids are known."""
        return len(self.tokens)

    @property
    def output(self) -> list[int]:
        """The tokens sampled so far."""
        return self.tokens[self.prompt_length :]

    @property
    def output_length(self) -> int:
        """How many tokens were sampled so far."""
        return len(self.tokens) - self.prompt_length
