"""The results that a finished request returns."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from ridgeline.engine.events import Event
from ridgeline.engine.request import FinishReason, Timing
from ridgeline.engine.sampling import PromptLogprob, Sampled

_SHOWN = 60  # characters of a text in a repr


@dataclass(slots=True, repr=False)
class Choice:
    """One completion of a prompt. Two choices are equal even if `cached` and `timing` differ."""

    index: int
    """The index of this completion among the `n` of the prompt."""
    text: str = ""
    """The text of the completion, without the reasoning."""
    reasoning: str = ""
    """The text that the model wrote between its reasoning tags."""
    tokens: list[Sampled] = field(default_factory=list)
    """The sampled tokens, a stop token included; with log-probabilities if requested."""
    finish: FinishReason | None = None
    """The reason why the completion ended; None while it has not."""
    error: str | None = None
    """The reason why the request failed, or why its structured output is incomplete, in one line."""
    reasoning_tokens: int = 0
    """The number of tokens in the reasoning section."""
    cached: int = field(default=0, compare=False)
    """The number of prompt positions that were found in the prefix cache."""
    timing: Timing | None = field(default=None, compare=False)
    """The times of the request's arrival, first step, first token and end."""

    @override
    def __repr__(self) -> str:
        ended = f", error={self.error!r}" if self.error is not None else ""
        finish = "under way" if self.finish is None else self.finish.value
        return f"Choice({self.index}, {_beginning(self.text)}, {_tokens(len(self.tokens))}, {finish}{ended})"

    @property
    def token_ids(self) -> list[int]:
        """The ids of the sampled tokens."""
        return [sampled.token for sampled in self.tokens]

    def take(self, event: Event) -> None:
        """Add the text, token and end in an event to this completion."""
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
    """A prompt and its `n` completions."""

    prompt_ids: list[int]
    """The token ids of the prompt."""
    choices: list[Choice]
    """The completions of the prompt."""
    prompt_logprobs: list[PromptLogprob | None] | None = None
    """The log-probability of each prompt token, given those before it; None if not requested.

    The first token comes after nothing and has None.
    """

    @override
    def __repr__(self) -> str:
        return f"Completion({_tokens(len(self.prompt_ids))} of prompt, {', '.join(map(repr, self.choices))})"

    @classmethod
    def empty(cls, prompt_ids: Sequence[int], n: int) -> "Completion":
        """Return a completion without output, to be filled with events."""
        return cls(list(prompt_ids), [Choice(index) for index in range(n)])

    def take(self, events: Iterable[Event]) -> None:
        """Add the events of this request to its completions."""
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
        """Whether every completion of the prompt has ended."""
        return all(choice.finish is not None for choice in self.choices)

    @property
    def text(self) -> str:
        """The text of the first completion."""
        return self.choices[0].text

    @property
    def cached(self) -> int:
        """The number of prompt positions that the first choice found in the prefix cache.

        Further choices start from its pages.
        """
        return self.choices[0].cached


def _beginning(text: str) -> str:
    """Return the beginning of a text, quoted, so that a notebook does not show all of a long response."""
    return repr(text) if len(text) <= _SHOWN else f"{text[:_SHOWN]!r}..."


def _tokens(count: int) -> str:
    return f"{count:,} token{'' if count == 1 else 's'}"
