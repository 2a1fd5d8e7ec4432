"""The base of streamed responses, shared by chat and completions: it turns engine events into chunks."""

import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ridgeline.engine.events import Event
from ridgeline.engine.request import Timing
from ridgeline.engine.sampling.sample_row import Sampled
from ridgeline.server.http.event_stream import DONE, StreamOutbox
from ridgeline.server.in_flight import Generation
from ridgeline.server.routes.generation import run
from ridgeline.server.routes.logprobs import PromptScores
from ridgeline.server.routes.request_fields import GenerationFields, StreamOptions
from ridgeline.server.routes.usage import Usage, timings
from ridgeline.server.service import Service

_OPTIONS = StreamOptions()

BLOCK = 128
"""The block size of obfuscated events in bytes: their lengths are multiples, and most tokens fit into one block."""


def obfuscated(event: Mapping[str, object]) -> dict[str, object]:
    """Return an event with OpenAI's field `obfuscation`: random characters that pad its JSON to a multiple of `BLOCK`.

    The length of a streamed piece of text then does not reveal its content. An observer of the packets of an encrypted
    stream can otherwise guess much of a response from the lengths of its tokens (Weiss et al., "What Was Your Prompt? A
    Remote Keylogging Attack on AI Assistants", USENIX Security 2024).
    """
    size = len(msgspec.json.encode({**event, "obfuscation": ""}))
    return {**event, "obfuscation": secrets.token_urlsafe(BLOCK)[: -size % BLOCK]}


@dataclass(slots=True)
class ChoiceState:
    """The state of one choice of a streamed response."""

    tokens: list[Sampled] = field(default_factory=list)
    """Tokens that are not sent yet, because their text was not safe to show."""
    sent_tokens: int = 0
    """The number of the choice's tokens that were sent."""
    begun: bool = False
    """Whether a chunk of the choice was sent."""

    def take(self, event: Event, ready: int | None = None) -> tuple[Sampled, ...]:
        """Return the tokens to send with an event, and drop those past the end of the text.

        The event has text or is the last of its choice.

        Args:
            event: The event.
            ready: The number of tokens to return; None for all.
        """
        if event.output_tokens is not None:
            del self.tokens[max(event.output_tokens - self.sent_tokens, 0) :]
        tokens = tuple(self.tokens[:ready])
        del self.tokens[: len(tokens)]
        self.sent_tokens += len(tokens)
        return tokens


class Chunks(ABC):
    """The base class of a producer that writes the chunks of one response into its outbox."""

    def __init__(
        self,
        generation: Generation,
        fields: GenerationFields,
        outbox: StreamOutbox,
        kind: str,
        scores: Sequence[PromptScores],
    ) -> None:
        """Prepare a streamed response without chunks.

        Args:
            generation: The generation of the request.
            fields: The fields of the request.
            outbox: The queue of frames to send.
            kind: OpenAI's `object` name of the chunks.
            scores: Collect the log-probabilities of each prompt.
        """
        self.generation, self.fields, self.outbox = generation, fields, outbox
        self.options = fields.stream_options or _OPTIONS
        self.usage = Usage(generation.prompt_tokens)
        self._choices = [ChoiceState() for _ in range(generation.choices)]
        self._unfinished, self._times = len(self._choices), list[Timing]()
        self.scores = scores
        self._begun = False
        # The common start of all frames is encoded once.
        self._head = b"data: " + msgspec.json.encode(
            {"id": generation.id, "object": kind, "created": generation.created, "model": generation.model}
        ).removesuffix(b"}")

    async def produce(self, service: Service) -> None:
        """Run the generation and write its chunks, up to the final [DONE].

        Raises:
            ApiError: If the generation is rejected or fails.
        """
        await run(service, self.generation, self.take, self.progress if self.fields.return_progress else None)
        if self.options.include_usage:
            self.put([], {"usage": self.usage.body()})
        self.outbox.put(DONE)

    def progress(self, prompt: int, before: int, after: int) -> None:
        """Write a chunk with the prefill progress of a prompt, under llama.cpp's names.

        Args:
            prompt: The index of the prompt.
            before: Prompt positions computed before the step; at the first call, those found in the KV cache.
            after: Prompt positions computed after the step.
        """
        cached = self.usage.cached.setdefault(prompt, before)
        progress = {"total": len(self.generation.requests[prompt].prompt), "cache": cached, "processed": after}
        self.put([], {"prompt_progress": {"prompt": prompt, **progress}})

    def take(self, prompt: int, event: Event) -> None:
        """Write the chunk of an event if it has text, reasoning or an end; tokens wait until their text is complete."""
        index = self.generation.index(prompt, event.choice)
        state = self._choices[index]
        self.usage.take(prompt, index, event)
        if event.token is not None:
            state.tokens.append(event.token)
        if event.prompt_logprobs is not None:
            self.scores[prompt].take(event.prompt_logprobs)
        if not self.has_content(index, event):
            return
        choice = self.choice(prompt, index, state, event)
        if not state.begun and self.generation.params.prompt_logprobs is not None:
            self.outbox.expect(len(msgspec.json.encode(choice)))
        state.begun = True
        beside = self._beside(event)
        if not self._begun:
            self._begun = True
            beside |= self.first()
        self.put([choice], beside)

    def has_content(self, index: int, event: Event) -> bool:
        """Return whether an engine event has anything to send: text, reasoning or a finish reason."""
        return bool(event.text or event.reasoning or event.finish is not None)

    @abstractmethod
    def choice(self, prompt: int, index: int, state: ChoiceState, event: Event) -> dict[str, object]:
        """Return the entry of `choices` in a chunk for an engine event."""

    def first(self) -> dict[str, object]:
        """Return the fields that only the first chunk of a response has."""
        return {}

    def put(self, choices: list[dict[str, object]], beside: Mapping[str, object]) -> None:
        """Write one chunk into the outbox; every chunk has a list of choices."""
        chunk = {"choices": choices, **beside}
        if choices and self.options.include_obfuscation:
            chunk = obfuscated(chunk)
        self.outbox.put(self._head + b"," + msgspec.json.encode(chunk)[1:] + b"\n\n")

    def _beside(self, event: Event) -> dict[str, object]:
        """Return the fields next to `choices`: usage if requested, and timings with the end of the last choice."""
        beside: dict[str, object] = {}
        if self.options.include_usage:
            beside["usage"] = self.usage.body() if self.options.continuous_usage_stats else None
        if event.finish is not None:
            self._unfinished -= 1
            if event.timing is not None:
                self._times.append(event.timing)
            if not self._unfinished and self._times:
                beside["timings"] = timings(self.generation.arrived, self._times, self.usage)
        return beside
