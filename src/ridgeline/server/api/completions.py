"""/v1/completions: prompts in, their continuations out."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.engine.events import Event
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import Finish
from ridgeline.engine.result import Choice, Completion
from ridgeline.engine.sampling.row import Sampled
from ridgeline.engine.transcript import continues_prompt
from ridgeline.server.api.chunks import ChoiceState, Chunks
from ridgeline.server.api.fields import CompletionFields
from ridgeline.server.api.generation import Gathered, Generation, new_id
from ridgeline.server.api.grammar_check import GrammarCheck
from ridgeline.server.api.logprobs import CompletionLogprobs, Scores, TokenNames, joined, prompt_logprobs
from ridgeline.server.api.model import ServedModel, cache_root
from ridgeline.server.api.prompts import read_prompts
from ridgeline.server.api.sampling import room_for, sampling_params
from ridgeline.server.api.structured import asked_form
from ridgeline.server.errors import invalid
from ridgeline.server.http.sse import Outbox
from ridgeline.server.settings import ServerSettings
from ridgeline.text import TokenOffsets

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
    # Without a token to come, a prompt is asked for what it is itself.
    least = 0 if fields.echo or fields.prompt_logprobs is not None else 1
    most = room_for(max(map(len, prompts)), model, fields.max_tokens, DEFAULT_TOKENS, least)
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

    def chunks(self, generation: Generation, outbox: Outbox) -> Chunks:
        """What writes it piece by piece."""
        return CompletionChunks(generation, self, outbox)

    def body(self, generation: Generation, gathered: Gathered) -> dict[str, object]:
        """An answer that is complete."""
        choices = [
            self._choice(generation, generation.index(prompt, choice.index), completion, choice)
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

    def _choice(self, generation: Generation, index: int, completion: Completion, choice: Choice) -> dict[str, object]:
        writer = ChoiceWriter(self, generation.params, index, completion.prompt_ids)
        return writer.entry(choice.text, choice.tokens, choice.finish, completion.prompt_logprobs)


class ChoiceWriter:
    """Writes one choice, whole or piece by piece. The first piece has what is to be told of the prompt."""

    def __init__(self, answer: CompletionAnswer, params: SamplingParams, index: int, prompt: Sequence[int]) -> None:
        self._answer, self._fields, self._index, self._prompt = answer, answer.fields, index, prompt
        self._tells_tokens = answer.fields.logprobs is not None or answer.fields.return_token_ids
        self._names = answer.names
        self._logprobs = CompletionLogprobs(self._names)
        tokenizer = answer.model.tokenizer
        self._echo = tokenizer.decode(prompt) if answer.fields.echo else ""
        begun = answer.model.texts.decoder_prompt(prompt)
        self._offsets = TokenOffsets(
            tokenizer,
            skip_special=params.skip_special_tokens,
            continues=continues_prompt(tokenizer, begun, params),
        )
        self._waiting: list[int] = []  # places of tokens that are not told yet
        self._sent = 0  # characters
        self._begun = False

    def ready(self, tokens: Sequence[Sampled], text: str) -> int | None:
        """Return how many of the tokens that wait begin in the text that is sent, once `text` is; None for all.

        A later one may turn out to be past the end of the text, if that ends with a stop string.
        """
        if not self._tells_tokens:
            return None
        self._place(tokens)
        return bisect_right(self._waiting, self._sent + len(text) + (0 if self._begun else len(self._echo)))

    def entry(
        self, text: str, tokens: Sequence[Sampled], finish: Finish | None, scores: Scores | None
    ) -> dict[str, object]:
        """Return an entry of `choices`.

        Args:
            text: More of the text.
            tokens: More of its tokens: as many as are `ready`, or all that are left if it is finished.
            finish: Why the choice ended, if it has.
            scores: Those of the prompt's tokens, which the first entry tells.
        """
        first, self._begun = not self._begun, True
        text = self._echo + text if first else text
        self._sent += len(text)
        self._place(tokens)
        columns = self._columns(tokens, scores if first and self._fields.echo else None)
        del self._waiting[: len(tokens)]
        entry: dict[str, object] = {
            "index": self._index,
            "text": text,
            "logprobs": columns,
            "finish_reason": finish,
        }
        if self._fields.return_token_ids:
            entry["token_ids"] = [one.token for one in tokens]
            if first:
                entry["prompt_token_ids"] = self._prompt
        if first and self._fields.prompt_logprobs is not None and scores is not None:
            entry["prompt_logprobs"] = prompt_logprobs(scores, self._names)
        return entry

    def _columns(self, tokens: Sequence[Sampled], scores: Scores | None) -> dict[str, list[object]] | None:
        """The log-probabilities, those of an echoed prompt first."""
        if self._fields.logprobs is None:
            return None
        columns = []
        if scores is not None:
            offsets = TokenOffsets(self._answer.model.tokenizer)
            columns.append(self._logprobs.of_prompt(self._prompt, scores, [offsets.push(t) for t in self._prompt]))
        # A token may begin in what a stop string has cut off.
        places = [min(place, self._sent) for place in self._waiting[: len(tokens)]]
        return joined([*columns, self._logprobs.of_output(tokens, places)])

    def _place(self, tokens: Sequence[Sampled]) -> None:
        """Find the places of tokens that wait, the first of which may have theirs."""
        new = tokens[len(self._waiting) :] if self._tells_tokens else ()
        self._waiting += [len(self._echo) + self._offsets.push(one.token) for one in new]


class CompletionChunks(Chunks):
    """Its frames."""

    def __init__(self, generation: Generation, answer: CompletionAnswer, outbox: Outbox) -> None:
        super().__init__(generation, answer.fields, outbox, "text_completion")
        self._writers = [
            ChoiceWriter(answer, generation.params, generation.index(index, choice), prompt)
            for index, prompt in enumerate(generation.prompts)
            for choice in range(generation.params.n)
        ]

    def choice(self, prompt: int, index: int, state: ChoiceState, event: Event) -> dict[str, object]:
        writer = self._writers[index]
        ready = None if event.finish is not None else writer.ready(state.tokens, event.text)
        return writer.entry(event.text, state.take(event, ready), event.finish, self.scores.get(prompt))
