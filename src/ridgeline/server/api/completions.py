"""/v1/completions: prompts in, their continuations out."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.engine.events import Event
from ridgeline.engine.request import Finish
from ridgeline.engine.result import Choice, Completion
from ridgeline.engine.sampling.row import Sampled
from ridgeline.server.api.chunks import ChoiceState, Chunks
from ridgeline.server.api.fields import CompletionFields
from ridgeline.server.api.generation import Gathered, Generation, new_id
from ridgeline.server.api.grammar_check import GrammarCheck
from ridgeline.server.api.logprobs import CompletionLogprobs, PromptScores, TokenNames
from ridgeline.server.api.model import ServedModel, cache_root
from ridgeline.server.api.prompts import read_prompts
from ridgeline.server.api.sampling import room_for, sampling_params
from ridgeline.server.api.structured import asked_form
from ridgeline.server.errors import invalid
from ridgeline.server.event_loop import slices
from ridgeline.server.http.sse import Outbox
from ridgeline.server.settings import ServerSettings

ROUTE = "/v1/completions"
DEFAULT_TOKENS = 16
"""What OpenAI's interface generates where max_tokens is not given."""


async def completion_generation(
    fields: CompletionFields, model: ServedModel, settings: ServerSettings, grammars: GrammarCheck
) -> tuple[Generation, "CompletionAnswer"]:
    """What a request to this route has the engine do, and how the answer is written. Raises ApiError."""
    model.check_name(fields.model)
    if fields.echo and model.encoder:
        raise invalid("echo: the answer does not continue the prompt, which an encoder reads; leave it out", "echo")
    prompts = await read_prompts(fields.prompt, model, settings)
    asked = fields.max_tokens
    if asked == 0 and fields.echo:
        asked = 1  # only the prompt is wanted; the engine gives a token at least, which is not told
    longest = max(map(len, prompts))
    most = room_for(longest, model, asked, DEFAULT_TOKENS)
    params = sampling_params(fields, model, most, fields.logprobs)
    form, asked_by = asked_form(fields, settings)
    if form is not None:
        await grammars.check(form, asked_by)
        # All of the text is told, reasoning too, so that all of it has the form.
        params = replace(params, structured_outputs=replace(form, after_reasoning=False))
    if fields.echo and fields.logprobs is not None and params.prompt_logprobs is None:
        params = replace(params, prompt_logprobs=fields.logprobs)
    root = cache_root(fields.cache_salt, settings)
    generation = Generation(
        new_id("cmpl-"),
        model.called(fields.model),
        ROUTE,
        prompts,
        params,
        root,
        fields.stream,
        sections=False,  # the text as the model writes it
        only_prompt=fields.max_tokens == 0,
        adapter=model.adapter(fields.model),
        tier=fields.service_tier or "",
    )
    return generation, CompletionAnswer(fields, model)


@dataclass(frozen=True, slots=True)
class CompletionAnswer:
    """How this route writes an answer."""

    fields: CompletionFields
    model: ServedModel

    @property
    def names(self) -> TokenNames:
        return TokenNames(self.model.tokenizer, as_ids=self.fields.return_tokens_as_token_ids)

    @property
    def only_prompt(self) -> bool:
        """Whether nothing of what was generated is to be told."""
        return self.fields.max_tokens == 0

    def chunks(self, generation: Generation, outbox: Outbox) -> Chunks:
        """What writes it piece by piece."""
        return CompletionChunks(generation, self, outbox)

    def scores(self, generation: Generation) -> list[PromptScores]:
        """What is to be told of each prompt."""
        listed, echoed = self.fields.prompt_logprobs is not None, self.fields.echo and self.fields.logprobs is not None
        return [PromptScores(prompt, self.names, listed=listed, echoed=echoed) for prompt in generation.prompts]

    async def body(self, generation: Generation, gathered: Gathered) -> dict[str, object]:
        """An answer that is complete."""
        choices = [
            await self._choice(generation.index(prompt, choice.index), completion, choice, gathered.scores[prompt])
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
        self, index: int, completion: Completion, choice: Choice, scores: PromptScores
    ) -> dict[str, object]:
        writer = ChoiceWriter(self, index, completion.prompt_ids, scores)
        async for part in slices(choice.tokens):
            writer.add(part)
        return writer.entry(choice.text, choice.finish)


class ChoiceWriter:
    """Writes one choice, whole or piece by piece. The first piece has what is to be told of the prompt."""

    def __init__(self, answer: CompletionAnswer, index: int, prompt: Sequence[int], scores: PromptScores) -> None:
        """scores: of the prompt; read with the first token or entry."""
        self._answer, self._fields, self._index, self._prompt = answer, answer.fields, index, prompt
        self._scores, self._tokens = scores, list[int]()
        self._logprobs: CompletionLogprobs | None = None
        self._begun = False

    def add(self, tokens: Sequence[Sampled]) -> None:
        """Note tokens that the next entry tells."""
        if self._answer.only_prompt:
            return
        if self._fields.logprobs is not None:
            self._continued().add_output(tokens)
        if self._fields.return_token_ids:
            self._tokens += [one.token for one in tokens]

    def entry(self, text: str, finish: Finish | None) -> dict[str, object]:
        """An entry of `choices`, with the tokens that were added since the last one."""
        if self._answer.only_prompt:
            text = ""
        first, self._begun = not self._begun, True
        entry: dict[str, object] = {
            "index": self._index,
            "text": self._answer.model.tokenizer.decode(self._prompt) + text if first and self._fields.echo else text,
            "logprobs": None if self._fields.logprobs is None else self._continued().json(),
            "finish_reason": finish,
        }
        if self._fields.return_token_ids:
            entry["token_ids"], self._tokens = self._tokens, []
            if first:
                entry["prompt_token_ids"] = self._prompt
        return {**entry, **self._scores.told} if first else entry

    def _continued(self) -> CompletionLogprobs:
        """The log-probabilities, those of an echoed prompt first, which are all there with the first token."""
        if self._logprobs is None:
            self._logprobs = self._scores.continued()
        return self._logprobs


class CompletionChunks(Chunks):
    """Its frames."""

    def __init__(self, generation: Generation, answer: CompletionAnswer, outbox: Outbox) -> None:
        super().__init__(generation, answer.fields, outbox, "text_completion", answer.scores(generation))
        self._writers = [
            ChoiceWriter(answer, generation.index(index, choice), prompt, self.scores[index])
            for index, prompt in enumerate(generation.prompts)
            for choice in range(generation.params.n)
        ]

    def choice(self, prompt: int, index: int, state: ChoiceState, event: Event) -> dict[str, object]:
        writer = self._writers[index]
        writer.add(state.take(event))
        return writer.entry(event.text, event.finish)
