"""The route /v1/completions, which continues prompts."""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs
from typing_extensions import override

from ridgeline.core.text import TokenOffsets
from ridgeline.engine.events import Event
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.output_processor import continues_prompt
from ridgeline.engine.request import FinishReason
from ridgeline.engine.result import Choice
from ridgeline.engine.sampling.sample_row import Sampled
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.event_loop import slices
from ridgeline.server.http.event_stream import StreamOutbox
from ridgeline.server.in_flight import Generation
from ridgeline.server.routes.generation import GenerationResult, new_id
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.routes.logprobs import CompletionLogprobs, PromptScores, TokenNames
from ridgeline.server.routes.request_fields import CompletionFields
from ridgeline.server.routes.request_sampling import room_for, sampling_params
from ridgeline.server.routes.response_format import read_output_constraint
from ridgeline.server.routes.served_model import ServedModel, cache_salt
from ridgeline.server.routes.stream_chunks import ChoiceState, Chunks
from ridgeline.server.server_settings import ServerSettings

ROUTE = "/v1/completions"
DEFAULT_TOKENS = 16
"""The number of tokens to generate if max_tokens is missing, as in OpenAI's API."""


async def completion_generation(
    fields: CompletionFields, model: ServedModel, settings: ServerSettings, grammars: GrammarCheck, arrived: int
) -> tuple[Generation, "CompletionResponseWriter"]:
    """Convert a completion request into a `Generation` and the writer of its response.

    Args:
        fields: The fields of the request.
        model: The served model.
        settings: The limits of the server.
        grammars: Checks a structured output before the engine gets it.
        arrived: When the server received the request, in nanoseconds as in `GenerationRequest`.

    Raises:
        ApiError: If the request is invalid.
    """
    model.check_name(fields.model)
    if fields.echo and model.info.encoder_context:
        raise invalid(
            "echo: the output of an encoder-decoder model does not continue its prompt: leave echo out", "echo"
        )
    prompts = await read_prompts(fields.prompt, model, settings, add_special=fields.add_special_tokens)
    # max_tokens = 0 makes sense only if the request wants the prompt's own text or log-probabilities.
    least = 0 if fields.echo or fields.prompt_logprobs is not None else 1
    most = room_for(max(map(len, prompts)), model, fields.max_tokens, DEFAULT_TOKENS, least)
    params = sampling_params(fields, model, most, fields.logprobs)
    form, constraint_field = read_output_constraint(fields, settings)
    if form is not None:
        await grammars.check(form, constraint_field)
        # The response contains the reasoning too, so the constraint applies to all of the text.
        params = replace(params, structured_outputs=replace(form, after_reasoning=False))
    if fields.echo and fields.logprobs is not None and params.prompt_logprobs is None:
        params = replace(params, prompt_logprobs=fields.logprobs)
    first = GenerationRequest(
        prompts[0],
        params,
        adapter=model.adapter(fields.model),
        cache_salt=cache_salt(fields.cache_salt, settings),
        service_tier=fields.service_tier or "",
        separate_reasoning=False,  # the text exactly as generated
        arrived=arrived,
    )
    specs = [structs.replace(first, prompt=prompt) for prompt in prompts]
    generation = Generation(new_id("cmpl-"), model.response_name(fields.model), ROUTE, specs, fields.stream)
    return generation, CompletionResponseWriter(fields, model)


@dataclass(frozen=True, slots=True)
class CompletionResponseWriter:
    """A writer of /v1/completions responses."""

    fields: CompletionFields
    model: ServedModel

    @property
    def names(self) -> TokenNames:
        """The naming of tokens in the response, as text or as ids."""
        return TokenNames(self.model.tokenizer, as_ids=self.fields.return_tokens_as_token_ids)

    def chunks(self, generation: Generation, outbox: StreamOutbox) -> Chunks:
        """Return the object that runs a completion generation and writes its chunks into an outbox."""
        return CompletionChunks(generation, self, outbox)

    def scores(self, generation: Generation) -> list[PromptScores]:
        """Return an empty `PromptScores` per prompt, which collects scores as the engine computes them."""
        listed, echoed = self.fields.prompt_logprobs is not None, self.fields.echo and self.fields.logprobs is not None
        return [PromptScores(spec.prompt, self.names, listed=listed, echoed=echoed) for spec in generation.requests]

    async def body(self, generation: Generation, gathered: GenerationResult) -> dict[str, object]:
        """Return the complete body of a completion response that is not streamed."""
        choices = [
            await self._choice(generation, generation.index(prompt, choice.index), choice, gathered.scores[prompt])
            for prompt, completion in enumerate(gathered.completions)
            for choice in completion.choices
        ]
        return {
            "id": generation.id,
            "object": "text_completion",
            "created": generation.created,
            "model": generation.model,
            "choices": choices,
            "usage": gathered.usage.body(),
            "timings": gathered.timings(),
        }

    async def _choice(
        self, generation: Generation, index: int, choice: Choice, scores: PromptScores
    ) -> dict[str, object]:
        writer = ChoiceWriter(self, generation, index, scores)
        writer.add_text(choice.text)
        async for part in slices(choice.tokens):
            writer.add(part)
        return writer.entry(choice.finish)


class ChoiceWriter:
    """A writer of the entries of one choice, whole or streamed; its first entry carries the data about the prompt."""

    def __init__(
        self, answer: CompletionResponseWriter, generation: Generation, index: int, scores: PromptScores
    ) -> None:
        """Start the entries of one completion choice.

        Args:
            answer: The writer of the response.
            generation: The generation of the request.
            index: The index of the choice in the response.
            scores: The log-probabilities of the prompt, which must be complete at the first token or entry.
        """
        self._fields, self._index, self._scores = answer.fields, index, scores
        self._prompt = prompt = generation.requests[index // generation.params.n].prompt
        self._sends_tokens = answer.fields.logprobs is not None or answer.fields.return_token_ids
        tokenizer, params = answer.model.tokenizer, generation.params
        self._echo = tokenizer.decode(prompt) if answer.fields.echo else ""
        self._offsets = TokenOffsets(
            tokenizer,
            skip_special=params.skip_special_tokens,
            continues=continues_prompt(tokenizer, answer.model.texts.decoder_prompt(prompt), params),
        )
        self._logprobs: CompletionLogprobs | None = None
        self._text = self._echo  # for the next entry
        self._tokens: list[int] = []  # for the next entry
        self._waiting: list[int] = []  # text offsets of pending tokens
        self._sent = len(self._echo)  # characters, including the next entry
        self._begun = False

    def ready(self, tokens: Sequence[Sampled], text: str) -> int | None:
        """Return how many of the pending tokens start within the text sent so far plus `text`; None for all.

        A token that starts later may turn out to be past the end, if a stop string ends the text.
        """
        if not self._sends_tokens:
            return None
        self._place(tokens)
        return bisect_right(self._waiting, self._sent + len(text))

    def add_text(self, text: str) -> None:
        """Add text to the next entry of a completion choice.

        Call this before `add`, because the tokens' offsets lie in this text.
        """
        self._text += text
        self._sent += len(text)

    def add(self, tokens: Sequence[Sampled]) -> None:
        """Add tokens to the next entry: those that are `ready`, or all pending ones at the end."""
        self._place(tokens)
        # A token may start in text that a stop string has cut off.
        places = [min(place, self._sent) for place in self._waiting[: len(tokens)]]
        del self._waiting[: len(tokens)]
        if self._fields.logprobs is not None:
            self._continued().add_output(tokens, places)
        if self._fields.return_token_ids:
            self._tokens += [one.token for one in tokens]

    def entry(self, finish: FinishReason | None) -> dict[str, object]:
        """Return an entry of `choices` with everything added since the last entry.

        Args:
            finish: Why the choice ended, or None while it continues.
        """
        first, self._begun = not self._begun, True
        entry: dict[str, object] = {
            "index": self._index,
            "text": self._text,
            "logprobs": None if self._fields.logprobs is None else self._continued().json(),
            "finish_reason": finish,
        }
        if self._fields.return_token_ids:
            entry["token_ids"] = self._tokens
            if first:
                entry["prompt_token_ids"] = self._prompt
        self._text, self._tokens = "", []
        return {**entry, **self._scores.response_fields} if first else entry

    def _continued(self) -> CompletionLogprobs:
        """Return the log-probabilities of the choice, started at its first token, after those of an echoed prompt."""
        if self._logprobs is None:
            self._logprobs = self._scores.continued()
        return self._logprobs

    def _place(self, tokens: Sequence[Sampled]) -> None:
        """Compute the text offsets of those pending tokens that have none yet."""
        new = tokens[len(self._waiting) :] if self._sends_tokens else ()
        self._waiting += [len(self._echo) + self._offsets.push(one.token) for one in new]


class CompletionChunks(Chunks):
    """The producer of the chunks of a streamed completion."""

    def __init__(self, generation: Generation, answer: CompletionResponseWriter, outbox: StreamOutbox) -> None:
        super().__init__(generation, answer.fields, outbox, "text_completion", answer.scores(generation))
        self._writers = [
            ChoiceWriter(answer, generation, generation.index(index, choice), self.scores[index])
            for index in range(len(generation.requests))
            for choice in range(generation.params.n)
        ]

    @override
    def choice(self, prompt: int, index: int, state: ChoiceState, event: Event) -> dict[str, object]:
        writer = self._writers[index]
        ready = None if event.finish is not None else writer.ready(state.tokens, event.text)
        writer.add_text(event.text)
        writer.add(state.take(event, ready))
        return writer.entry(event.finish)


async def read_prompts(
    prompt: Any, model: ServedModel, settings: ServerSettings, *, add_special: bool = True
) -> list[list[int]]:
    """Return the token ids of each prompt of a completion request.

    Args:
        prompt: A text, a list of texts, token ids, or a list of lists of token ids.
        model: The served model.
        settings: The limits of the server.
        add_special: Whether the tokenizer's own tokens (BOS) are added to texts. Ids stay as they are.

    Raises:
        ApiError: If a prompt is malformed, empty, too long or out of vocabulary.
    """
    prompts = _each(prompt)
    if len(prompts) > settings.prompts:
        raise invalid(
            f"prompt: the request has {len(prompts)} prompts, but the limit is {settings.prompts}: send fewer", "prompt"
        )
    among = sum(len(one) for one in prompts if isinstance(one, str))
    return list(await asyncio.gather(*(_ids(one, model, among, add_special) for one in prompts)))


def _each(prompt: Any) -> list[Any]:
    """Return the prompts as a list; a list of token ids is a single prompt."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise _malformed() if prompt is not None else _empty()
    if not prompt:
        raise _empty()
    return [prompt] if isinstance(prompt[0], int) else prompt


async def _ids(prompt: Any, model: ServedModel, among: int, add_special: bool) -> list[int]:
    """Return the token ids of one prompt.

    Args:
        prompt: A text, or token ids.
        model: The served model.
        among: The characters of all prompts of the request, which decide whether a thread is used.
        add_special: Whether the tokenizer adds its own tokens (BOS) to a text.

    Raises:
        ApiError: If the prompt is malformed, empty, too long or out of vocabulary.
    """
    if isinstance(prompt, str):
        ids = await model.encode(prompt, add_special=add_special, among=among) if prompt else []
    elif isinstance(prompt, list) and set(map(type, prompt)) <= {int}:
        ids = prompt
    else:
        raise _malformed()
    if not ids:
        raise _empty()
    model.check_ids(ids, "prompt")
    return ids


def _malformed() -> ApiError:
    return invalid("prompt: give a string, a list of strings, token ids, or a list of lists of token ids", "prompt")


def _empty() -> ApiError:
    return invalid("prompt: it is empty; give at least one character or one token id", "prompt", code="missing_field")
