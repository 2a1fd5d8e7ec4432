"""What a step tells the outside."""

from dataclasses import dataclass

from ridgeline.engine.request import Finish
from ridgeline.engine.sampling import Sampled
from ridgeline.ops.work import Work


@dataclass(frozen=True, slots=True)
class Event:
    """One choice of one request moved on: a token, text that is safe to show, an end, or several of them.

    `text` and `reasoning` are what became safe with this event; they lag behind the token while a character, a stop
    string or a tag may still be completed. `error` says in one line why the request failed. `reasoning_tokens` comes
    with the end: how many of the tokens were reasoning.
    """

    request: int
    choice: int
    token: Sampled | None = None
    text: str = ""
    reasoning: str = ""
    finish: Finish | None = None
    error: str | None = None
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class StepRecord:
    """A step that ran: what it asked and how many seconds it took, from the plan to the sampled tokens."""

    work: Work
    seconds: float

    @property
    def decodes_only(self) -> bool:
        """Whether every sequence of the step ran a single position."""
        return self.work.tokens == self.work.sequences
