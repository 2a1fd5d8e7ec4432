"""What a finished request gives back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ridgeline.engine.events import Event
from ridgeline.engine.request import Finish, Timing
from ridgeline.engine.sampling import PromptLogprob, Sampled


@dataclass(slots=True)
class Choice:
    """One completion. `reasoning` is what the model wrote between its thinking tags, `text` the rest.

    tokens: what was sampled, a stop token included; with log-probabilities where they were asked for.
    error: why it failed, in one line. cached: positions of the prompt that were found in KV memory. timing: moments of
    its life. Neither of the two makes one completion differ from another.
    """

    index: int
    text: str = ""
    reasoning: str = ""
    tokens: list[Sampled] = field(default_factory=list)
    finish: Finish | None = None
    error: str | None = None
    reasoning_tokens: int = 0
    cached: int = field(default=0, compare=False)
    timing: Timing | None = field(default=None, compare=False)

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


@dataclass(slots=True)
class Completion:
    """A prompt and its `n` choices.

    prompt_logprobs: where they were asked for, how likely each token of the prompt was after those before it; None for
    the first, which comes after nothing.
    """

    prompt_ids: list[int]
    choices: list[Choice]
    prompt_logprobs: list[PromptLogprob | None] | None = None

    @classmethod
    def empty(cls, prompt_ids: Sequence[int], n: int) -> "Completion":
        """A completion to be filled with events."""
        return cls(list(prompt_ids), [Choice(index) for index in range(n)])

    def take(self, events: Iterable[Event]) -> None:
        """Add what events of this request say."""
        for event in events:
            self.choices[event.choice].take(event)
            if event.prompt_logprobs is not None:
                self.prompt_logprobs = list(event.prompt_logprobs)

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
