"""What a finished request gives back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from ridgeline.engine.events import Event
from ridgeline.engine.request import FinishReason, Timing
from ridgeline.engine.sampling import PromptLogprob, Sampled

_SHOWN = 60  # characters of a text in a repr


@dataclass(slots=True, repr=False)
class Choice:
    """One completion. `reasoning` is what the model wrote between its thinking tags, `text` the rest.

    tokens: what was sampled, a stop token included; with log-probabilities where they were asked for.
    error: why it failed, or why its structured output is incomplete, in one line. cached: positions of the prompt that
    were found in KV memory. timing: moments of its life. Neither of the two makes one completion differ from another.
    """

    index: int
    text: str = ""
    reasoning: str = ""
    tokens: list[Sampled] = field(default_factory=list)
    finish: FinishReason | None = None
    error: str | None = None
    reasoning_tokens: int = 0
    cached: int = field(default=0, compare=False)
    timing: Timing | None = field(default=None, compare=False)

    @override
    def __repr__(self) -> str:
        ended = f", error={self.error!r}" if self.error is not None else ""
        finish = "under way" if self.finish is None else self.finish.value
        return f"Choice({self.index}, {_beginning(self.text)}, {_tokens(len(self.tokens))}, {finish}{ended})"

    @property
    def token_ids(self) -> list[int]:
        """Ids of the sampled tokens."""
        return [sampled.token for sampled in self.tokens]

    def take(self, event: Event) -> None:
        """Add what an event says."""
        self.text += event.text
        self.reasoning += event.reasoning
        if event.token is not None:
            self.tokens.append(event.token)
        self.cached, self.timing = event.cached, event.timing
        if event.finish is not None:
            self.finish, self.error = event.finish, event.error
            self.reasoning_tokens = event.reasoning_tokens
        if event.output_tokens is not None:
            del self.tokens[event.output_tokens :]


@dataclass(slots=True, repr=False)
class Completion:
    """A prompt and its `n` choices.

    prompt_logprobs: where they were asked for, how likely each token of the prompt was after those before it; None for
    the first, which comes after nothing.
    """

    prompt_ids: list[int]
    choices: list[Choice]
    prompt_logprobs: list[PromptLogprob | None] | None = None

    @override
    def __repr__(self) -> str:
        return f"Completion({_tokens(len(self.prompt_ids))} of prompt, {', '.join(map(repr, self.choices))})"

    @classmethod
    def empty(cls, prompt_ids: Sequence[int], n: int) -> "Completion":
        """A completion to be filled with events."""
        return cls(list(prompt_ids), [Choice(index) for index in range(n)])

    def take(self, events: Iterable[Event]) -> None:
        """Add what events of this request say."""
        for event in events:
            self.choices[event.choice].take(event)
            if event.prompt_logprobs is not None:
                if self.prompt_logprobs is None:
                    self.prompt_logprobs = []
                self.prompt_logprobs += event.prompt_logprobs
            if event.finish is not None and len(self.prompt_logprobs or ()) < len(self.prompt_ids):
                self.prompt_logprobs = None  # the request ended before its prompt was computed

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return all(choice.finish is not None for choice in self.choices)

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text

    @property
    def cached(self) -> int:
        """Positions of the prompt that were found in KV memory; further choices start from the first one's."""
        return self.choices[0].cached


def _beginning(text: str) -> str:
    """The beginning of a text, quoted: a notebook shows what an answer is, not all of it."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"
