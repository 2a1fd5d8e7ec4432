"""The output processor, which turns the engine's token events into events with text.

The engine knows only tokens. When a text has ended, the output processor returns a stop for the engine. The two
exchange plain messages (events.py) only, so that they can run in different processes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ridgeline.core.text import Delta, OutputStream, ReasoningFormat, ReasoningSplitter, Tokenizer
from ridgeline.engine.events import Event, Stop, TokenEvent
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason


@dataclass(slots=True)
class _DetokenizerState:
    """The state of detokenizing one choice of a request."""

    stream: OutputStream
    """The incremental detokenizer, which also finds stop strings and reasoning."""
    include_stop: bool
    """Whether the text includes the token that ends it."""
    tokens: int = 0
    """The number of the choice's tokens received so far."""

    def push(self, event: TokenEvent) -> Delta:
        """Return the text that an event's token releases.

        A token that ends the text releases none, unless `include_stop` is set.
        """
        if event.token is None:
            return Delta()
        self.tokens += 1
        if event.finish is FinishReason.STOP and not self.include_stop:
            return Delta()
        return self.stream.push(event.token.token)

    def end(self, delta: Delta) -> Delta:
        """Return the last text: what the last token released, followed by all that was held back."""
        rest = self.stream.finish()
        return Delta(delta.text + rest.text, delta.reasoning + rest.reasoning, delta.stop or rest.stop)

    @property
    def reasoning_tokens(self) -> int:
        return self.stream.reasoning.reasoning_tokens if self.stream.reasoning is not None else 0


class OutputProcessor:
    """The detokenizer of many requests, which also separates reasoning from the response and finds stop strings."""

    def __init__(self, tokenizer: Tokenizer, reasoning: ReasoningFormat | None = None) -> None:
        """Make an output processor without requests.

        Args:
            tokenizer: The model's tokenizer.
            reasoning: The format of the model's reasoning; None for a model without reasoning sections.
        """
        self._tokenizer, self._reasoning = tokenizer, reasoning
        self._lines: dict[tuple[int, int], _DetokenizerState] = {}

    def open(self, request: int, prompt: Sequence[int], params: SamplingParams, *, sections: bool = True) -> None:
        """Start processing the output of a request.

        Args:
            request: The id that the engine gave it.
            prompt: The token ids of its prompt.
            params: Its sampling parameters.
            sections: Whether to separate its reasoning from the rest of the text.
        """
        reasoning = self._reasoning if sections else None
        for choice in range(params.n):
            stream = self._stream(prompt, params, reasoning)
            self._lines[request, choice] = _DetokenizerState(stream, params.include_stop)

    def _stream(self, prompt: Sequence[int], params: SamplingParams, reasoning: ReasoningFormat | None) -> OutputStream:
        return OutputStream(
            self._tokenizer,
            stops=params.stop,
            include_stop=params.include_stop,
            min_tokens=params.min_tokens,
            skip_special=params.skip_special_tokens,
            reasoning=None if reasoning is None else ReasoningSplitter(self._tokenizer, prompt, reasoning),
            continues=continues_prompt(self._tokenizer, prompt, params),
        )

    def take(self, events: Iterable[TokenEvent]) -> tuple[list[Event], list[Stop]]:
        """Return token events with their detokenized text, and stops for the choices whose text has ended.

        Tokens of a choice whose text has ended are dropped: the engine had not yet received the stop.
        """
        taken: list[Event] = []
        stops: list[Stop] = []
        for event in events:
            line = self._lines.get((event.request, event.choice))
            if line is None:
                continue
            delta = line.push(event)
            if event.finish is None and delta.stop is None:
                taken.append(with_text(event, delta))
                continue
            del self._lines[event.request, event.choice]
            taken.append(self._end(line, event, delta, stops))
        return taken, stops

    @staticmethod
    def _end(line: _DetokenizerState, event: TokenEvent, delta: Delta, stops: list[Stop]) -> Event:
        if delta.stop is None:
            delta = line.end(delta)
        finish, kept, timing = event.finish, line.tokens, event.timing
        if delta.stop is not None and finish not in (FinishReason.ABORT, FinishReason.ERROR):
            finish, kept = FinishReason.STOP, line.stream.tokens_through_stop
            timing = replace(timing, finished=event.at)
            stops.append(Stop(event.request, event.choice, kept))
        return with_text(event, delta)._replace(
            token=event.token if kept == line.tokens else None,
            finish=finish,
            reasoning_tokens=line.reasoning_tokens,
            output_tokens=kept,
            timing=timing,
        )


def continues_prompt(tokenizer: Tokenizer, prompt: Sequence[int], params: SamplingParams) -> bool:
    """Return whether a response continues the text of its prompt, so that its first space is part of the text.

    After a control token (the start of a text, an assistant's turn) a new text begins. A structured output is exactly
    what its grammar dictates, a first space included.
    """
    return params.structured_outputs is not None or prompt[-1] not in tokenizer.special_ids


def with_text(event: TokenEvent, delta: Delta | None = None) -> Event:
    """Return a token event as an event with the text that its token released."""
    delta = delta or Delta()
    return Event(
        event.request,
        event.choice,
        event.token,
        delta.text,
        delta.reasoning,
        event.finish,
        event.error,
        at=event.at,
        cached=event.cached,
        timing=event.timing,
        prompt_logprobs=event.prompt_logprobs,
        out_of_memory=event.out_of_memory,
        hidden=event.hidden,
    )
