"""Transcript: the text of requests under way, beside the engine, which knows only tokens.

It takes the engine's token events and gives events with text; where a text has ended it asks for a stop. The two talk
through plain messages (events.py) alone, so that the transcript may run in a process of its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ridgeline.core.text import Delta, OutputStream, Reasoning, Tokenizer
from ridgeline.engine.events import Event, Stop, TokenEvent
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason


@dataclass(slots=True)
class _DetokenizerState:
    """One choice: its way from tokens to text, and how many tokens went that way."""

    stream: OutputStream
    include_stop: bool
    tokens: int = 0

    def push(self, event: TokenEvent) -> Delta:
        """What an event's token releases. A token that ends the text is not part of it, unless asked for."""
        if event.token is None:
            return Delta()
        self.tokens += 1
        if event.finish is FinishReason.STOP and not self.include_stop:
            return Delta()
        return self.stream.push(event.token.token)

    def end(self, delta: Delta) -> Delta:
        """The last text, after what the last token released."""
        rest = self.stream.finish()
        return Delta(delta.text + rest.text, delta.reasoning + rest.reasoning, delta.stop or rest.stop)

    @property
    def reasoning_tokens(self) -> int:
        return self.stream.reasoning.reasoning_tokens if self.stream.reasoning is not None else 0


class OutputProcessor:
    """Detokenizes, splits reasoning from answers, and finds stop strings, for many requests."""

    def __init__(self, tokenizer: Tokenizer, tags: tuple[str, str] | None = None) -> None:
        """`tags`: what the model writes its reasoning between, None for a model that has no reasoning sections."""
        self._tokenizer, self._tags = tokenizer, tags
        self._lines: dict[tuple[int, int], _DetokenizerState] = {}

    def open(self, request: int, prompt: Sequence[int], params: SamplingParams, *, sections: bool = True) -> None:
        """Follow a request that the engine gave this id. sections: whether its reasoning is told apart."""
        tags = self._tags if sections else None
        for choice in range(params.n):
            self._lines[request, choice] = _DetokenizerState(self._stream(prompt, params, tags), params.include_stop)

    def _stream(self, prompt: Sequence[int], params: SamplingParams, tags: tuple[str, str] | None) -> OutputStream:
        return OutputStream(
            self._tokenizer,
            stops=params.stop,
            include_stop=params.include_stop,
            min_tokens=params.min_tokens,
            skip_special=params.skip_special_tokens,
            reasoning=None if tags is None else Reasoning(self._tokenizer, prompt, tags),
            continues=continues_prompt(self._tokenizer, prompt, params),
        )

    def take(self, events: Iterable[TokenEvent]) -> tuple[list[Event], list[Stop]]:
        """The events with their text, and the stops that the engine is to be told of.

        What comes of a choice after its text has ended is dropped: the engine had not heard of it yet.
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
            finish, kept = FinishReason.STOP, line.stream.kept
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
    """Return whether a response goes on with the text of its prompt, so that a first space is one.

    After a control token (the start of a text, an assistant's turn) a new text begins. A structured output is exactly
    what its grammar has said, a first space included.
    """
    return params.structured_outputs is not None or prompt[-1] not in tokenizer.special_ids


def with_text(event: TokenEvent, delta: Delta | None = None) -> Event:
    """An event with the text that its token released."""
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
