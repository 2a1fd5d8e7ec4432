"""Chunks: the frames of a streamed answer, event by event. What chat and completions have in common."""

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
"""Bytes: the length of an obfuscated event is a multiple of it, and most tokens fit into one length."""


def obfuscated(event: Mapping[str, object]) -> dict[str, object]:
    """Return an event with OpenAI's field `obfuscation`: random characters that fill its JSON up to whole blocks.

    The length of a streamed piece of text then does not tell what it says. Who sees the packets of an encrypted
    stream can guess much of an answer from the lengths of its tokens (Weiss et al., "What Was Your Prompt? A Remote
    Keylogging Attack on AI Assistants", USENIX Security 2024).
    """
    size = len(msgspec.json.encode({**event, "obfuscation": ""}))
    return {**event, "obfuscation": secrets.token_urlsafe(BLOCK)[: -size % BLOCK]}


@dataclass(slots=True)
class ChoiceState:
    """One choice of a streamed answer. tokens: those that are still to be told, as their text was not safe to show.
    told: how many have been. begun: whether it has had a chunk.
    """

    tokens: list[Sampled] = field(default_factory=list)
    told: int = 0
    begun: bool = False

    def take(self, event: Event, ready: int | None = None) -> tuple[Sampled, ...]:
        """Return the tokens to be told with an event that has text or is the last; drop those past the text's end.

        ready: The number of tokens to return; None for all.
        """
        if event.output_tokens is not None:
            del self.tokens[max(event.output_tokens - self.told, 0) :]
        tokens = tuple(self.tokens[:ready])
        del self.tokens[: len(tokens)]
        self.told += len(tokens)
        return tokens


class Chunks(ABC):
    """Makes the frames of one answer and puts them into its outbox."""

    def __init__(
        self,
        generation: Generation,
        fields: GenerationFields,
        outbox: StreamOutbox,
        kind: str,
        scores: Sequence[PromptScores],
    ) -> None:
        """Write a response. kind: OpenAI's name of the object. scores: the token scores of each prompt."""
        self.generation, self.fields, self.outbox = generation, fields, outbox
        self.options = fields.stream_options or _OPTIONS
        self.usage = Usage(generation.prompt_tokens)
        self._choices = [ChoiceState() for _ in range(generation.choices)]
        self._unfinished, self._times = len(self._choices), list[Timing]()
        self.scores = scores
        self._begun = False
        # Written once for all frames: what differs is encoded behind it.
        self._head = b"data: " + msgspec.json.encode(
            {"id": generation.id, "object": kind, "created": generation.created, "model": generation.model}
        ).removesuffix(b"}")

    async def produce(self, service: Service) -> None:
        """Run the generation, frame by frame to the last. Raises ApiError."""
        await run(service, self.generation, self.take, self.progress if self.fields.return_progress else None)
        if self.options.include_usage:
            self.put([], {"usage": self.usage.body()})
        self.outbox.put(DONE)

    def progress(self, prompt: int, before: int, after: int) -> None:
        """How far a prompt has been read, under llama.cpp's names. cache: what was found of it in KV memory."""
        cached = self.usage.cached.setdefault(prompt, before)
        told = {"total": len(self.generation.specs[prompt].prompt), "cache": cached, "processed": after}
        self.put([], {"prompt_progress": {"prompt": prompt, **told}})

    def take(self, prompt: int, event: Event) -> None:
        """An event's frame, if there is something to tell. Tokens wait for their text."""
        index = self.generation.index(prompt, event.choice)
        state = self._choices[index]
        self.usage.take(prompt, index, event)
        if event.token is not None:
            state.tokens.append(event.token)
        if event.prompt_logprobs is not None:
            self.scores[prompt].take(event.prompt_logprobs)
        if not self.has_news(index, event):
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

    def has_news(self, index: int, event: Event) -> bool:
        """Whether an event has something to tell."""
        return bool(event.text or event.reasoning or event.finish is not None)

    @abstractmethod
    def choice(self, prompt: int, index: int, state: ChoiceState, event: Event) -> dict[str, object]:
        """An event as an entry of `choices`."""

    def first(self) -> dict[str, object]:
        """What the first chunk has beside its choices."""
        return {}

    def put(self, choices: list[dict[str, object]], beside: Mapping[str, object]) -> None:
        """A frame. Every one of them has a list of choices."""
        chunk = {"choices": choices, **beside}
        if choices and self.options.include_obfuscation:
            chunk = obfuscated(chunk)
        self.outbox.put(self._head + b"," + msgspec.json.encode(chunk)[1:] + b"\n\n")

    def _beside(self, event: Event) -> dict[str, object]:
        """What stands beside the choices: usage where it was asked for, timings with the last choice's end."""
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
