"""The route /v1/chat/completions, which generates the next message of a conversation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from ridgeline.core.text import RenderedPrompt
from ridgeline.core.text.chat_template import ROLES
from ridgeline.core.text.tools import CallDelta, ToolParser
from ridgeline.engine.events import Event
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import FinishReason
from ridgeline.engine.result import Choice
from ridgeline.engine.sampling.sample_row import Sampled
from ridgeline.engine.structured_output_params import StructuredOutputs
from ridgeline.server.errors import invalid
from ridgeline.server.event_loop import LONG, offload_if_long
from ridgeline.server.http.event_stream import StreamOutbox
from ridgeline.server.in_flight import Generation
from ridgeline.server.routes.generation import GenerationResult, new_id
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.routes.logprobs import PromptScores, TokenNames, chat_logprobs, long_chat_logprobs
from ridgeline.server.routes.request_fields import ChatFields, Conversation
from ridgeline.server.routes.request_sampling import room_for, sampling_params
from ridgeline.server.routes.response_format import read_output_constraint
from ridgeline.server.routes.served_model import ServedModel, cache_salt
from ridgeline.server.routes.stream_chunks import ChoiceState, Chunks
from ridgeline.server.routes.template_variables import template_variables
from ridgeline.server.routes.tool_use import ToolCalls, ToolUse, call_delta, check_calls, read_tools
from ridgeline.server.server_settings import ServerSettings
from ridgeline.util.untrusted import ModelRefused

ROUTE = "/v1/chat/completions"

_NEED_CONTENT = frozenset({"system", "developer", "user"})


async def render(fields: Conversation, model: ServedModel, settings: ServerSettings) -> RenderedPrompt:
    """Apply the chat template to a conversation and return the prompt, as text and as token ids.

    Raises:
        ApiError: If the conversation is invalid or too long, the model has no template, or the template fails on it.
    """
    tools = None if getattr(fields, "tool_choice", None) == "none" else fields.tools
    template = model.template(tools=bool(tools))
    messages = read_messages(fields.messages)
    check_calls(messages)
    variables = template_variables(fields, template)
    size, most = sum(len(message["content"] or "") for message in messages), settings.template_bytes(model.info.context)
    if size > most:
        raise invalid(
            f"messages: they have {size} characters, but the limit is {most} bytes: send fewer or shorter messages",
            "messages",
        )

    def encode() -> RenderedPrompt:
        return template.encode(
            messages,
            tools=tools,
            documents=fields.documents,
            add_generation_prompt=fields.add_generation_prompt,
            add_special=bool(fields.add_special_tokens),
            most_tokens=model.info.context,
            **variables,
        )

    try:
        return await offload_if_long(_weight(fields, size), encode)
    except ModelRefused as error:  # the template is at fault, not the request
        raise invalid(
            f"messages: the model's chat template fails on this conversation: {error}; send other messages, or their "
            "text as the prompt of /v1/completions",
            "messages",
            code="template",
        ) from None
    except ValueError as error:  # the template rejects the messages, or they are too long or no Unicode
        raise invalid(str(error), "messages") from None


_PLAIN = frozenset({"role", "content"})
_MESSAGE = 256  # the characters that take as long to render as an empty message


def _weight(fields: Conversation, size: int) -> int:
    """Return an estimate of the work to render a conversation, in characters.

    A conversation with tools, documents, calls or other entries counts as long, because these may hold anything.

    Args:
        fields: The conversation.
        size: The characters of its messages' contents.
    """
    plain = all(message.keys() <= _PLAIN for message in fields.messages)
    if fields.tools or fields.documents or fields.chat_template_kwargs or not plain:
        return max(size, LONG)
    return size + _MESSAGE * len(fields.messages)


async def chat_generation(
    fields: ChatFields, model: ServedModel, settings: ServerSettings, grammars: GrammarCheck, arrived: int
) -> tuple[Generation, "ChatResponseWriter"]:
    """Convert a chat request into a `Generation` and the writer of its response.

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
    if fields.top_logprobs is not None and not fields.logprobs:
        raise invalid("top_logprobs: it needs logprobs: true", "top_logprobs")
    form, constraint_field = read_output_constraint(fields, settings)
    tools = read_tools(fields, model.template(tools=bool(fields.tools)), settings, shaped=form is not None)
    prompt = (await render(fields, model, settings)).ids
    max_tokens = fields.max_tokens if fields.max_completion_tokens is None else fields.max_completion_tokens
    most = room_for(len(prompt), model, max_tokens, model.texts.max_new_tokens)
    logprobs = (fields.top_logprobs or 0) if fields.logprobs else None
    params = sampling_params(fields, model, most, logprobs)
    if tools is not None:
        params = await with_tools(params, tools, form, model, grammars)
    elif form is not None:
        await grammars.check(form, constraint_field)
        params = replace(params, structured_outputs=form)
    spec = GenerationRequest(
        prompt,
        params,
        adapter=model.adapter(fields.model),
        cache_salt=cache_salt(fields.cache_salt, settings),
        service_tier=fields.service_tier or "",
        arrived=arrived,
    )
    generation = Generation(new_id("chatcmpl-"), model.response_name(fields.model), ROUTE, [spec], fields.stream)
    return generation, ChatResponseWriter(fields, model, tools)


async def with_tools(
    params: SamplingParams, tools: ToolUse, answer: StructuredOutputs | None, model: ServedModel, grammars: GrammarCheck
) -> SamplingParams:
    """Return the sampling parameters of a request that offers tools.

    Args:
        params: The sampling parameters without tools.
        tools: The tools.
        answer: The output constraint of a response that calls no tool; None for no constraint.
        model: The served model.
        grammars: Checks the resulting grammar.

    Raises:
        ApiError: If the grammar cannot be enforced, or the constraint conflicts with the tools.
    """
    trial = tools.trial(answer)
    if trial is not None:
        await grammars.check(trial, "tools")
    shows = tools.shows_special(model.tokenizer)
    return replace(
        params,
        structured_outputs=tools.outputs(model.tokenizer, answer),
        skip_special_tokens=params.skip_special_tokens and not shows,
    )


@dataclass(frozen=True, slots=True)
class ChatResponseWriter:
    """A writer of /v1/chat/completions responses."""

    fields: ChatFields
    model: ServedModel
    tools: ToolUse | None = None
    """The tools that the response may call; None if it may call none."""

    @property
    def names(self) -> TokenNames:
        """The naming of tokens in the response, as text or as ids."""
        return TokenNames(self.model.tokenizer, as_ids=self.fields.return_tokens_as_token_ids)

    def chunks(self, generation: Generation, outbox: StreamOutbox) -> Chunks:
        """Return the object that runs a chat generation and writes its chunks into an outbox."""
        return ChatChunks(generation, self, outbox)

    def scores(self, generation: Generation) -> list[PromptScores]:
        """Return an empty `PromptScores` for the prompt, which collects scores as the engine computes them."""
        listed = self.fields.prompt_logprobs is not None
        return [PromptScores(spec.prompt, self.names, listed=listed, echoed=False) for spec in generation.requests]

    async def body(self, generation: Generation, gathered: GenerationResult) -> dict[str, object]:
        """Return the complete body of a chat response that is not streamed."""
        completion = gathered.completions[0]
        body: dict[str, object] = {
            "id": generation.id,
            "object": "chat.completion",
            "created": generation.created,
            "model": generation.model,
            "choices": [await self._choice(choice) for choice in completion.choices],
            "usage": gathered.usage.body(),
            "timings": gathered.timings(),
        }
        return body | self.of_prompt(completion.prompt_ids, gathered.scores[0])

    def of_prompt(self, prompt: Sequence[int], scores: PromptScores) -> dict[str, object]:
        """Return the response fields about the prompt: its token ids and log-probabilities, if requested."""
        fields = dict(scores.response_fields)
        if self.fields.return_token_ids:
            fields["prompt_token_ids"] = prompt
        return fields

    async def _choice(self, choice: Choice) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.reasoning:
            message |= self.reasoning(choice.reasoning)
        finish: str | None = choice.finish
        if self.tools is not None:
            parser, calls = self.tools.parser(self.model.tokenizer), ToolCalls()
            calls.take(
                (parser.push(choice.text, choice.token_ids), parser.finish(cut=choice.finish is FinishReason.LENGTH))
            )
            message["content"] = calls.content
            if calls.by_index:
                message |= {"content": calls.content or None, "tool_calls": calls.body()}
            finish = finish_reason(choice.finish, parser)
        entry = self.choice(choice.index, "message", message, (), finish)
        if self.fields.logprobs:
            entry["logprobs"] = await long_chat_logprobs(choice.tokens, self.names)
        if self.fields.return_token_ids:
            entry["token_ids"] = choice.token_ids
        return entry

    def reasoning(self, text: str) -> dict[str, object]:
        """Return the reasoning of the model under both field names that clients read; {} if the request excludes it."""
        return {"reasoning": text, "reasoning_content": text} if self.fields.include_reasoning else {}

    def choice(
        self, index: int, name: str, message: dict[str, object], tokens: Sequence[Sampled], finish: str | None
    ) -> dict[str, object]:
        """Return an entry of `choices`, which holds a complete message or a delta under `name`."""
        choice: dict[str, object] = {
            "index": index,
            name: message,
            "logprobs": chat_logprobs(tokens, self.names) if self.fields.logprobs else None,
            "finish_reason": finish,
        }
        if self.fields.return_token_ids:
            choice["token_ids"] = [one.token for one in tokens]
        return choice


def finish_reason(finish: FinishReason | None, parser: ToolParser) -> str | None:
    """Return "tool_calls" if the model stopped after a complete tool call, else the engine's finish reason.

    A response that was cut off at the token limit keeps "length".
    """
    return "tool_calls" if finish is FinishReason.STOP and parser.complete else finish


class ChatChunks(Chunks):
    """The producer of the chunks of a streamed chat response.

    The role is sent together with the first content, because alone it would look like a first token.
    """

    def __init__(self, generation: Generation, answer: ChatResponseWriter, outbox: StreamOutbox) -> None:
        super().__init__(generation, answer.fields, outbox, "chat.completion.chunk", answer.scores(generation))
        self._answer = answer
        self._parsers: dict[int, ToolParser] = {}
        self._calls: dict[int, list[CallDelta]] = {}

    @override
    def take(self, prompt: int, event: Event) -> None:
        """Separate tool calls from the text of an event before it is handled like any other."""
        if self._answer.tools is not None:
            event = event._replace(text=self._without_calls(self.generation.index(prompt, event.choice), event))
        super().take(prompt, event)

    @override
    def has_content(self, index: int, event: Event) -> bool:
        return super().has_content(index, event) or bool(self._calls.get(index))

    def _without_calls(self, index: int, event: Event) -> str:
        """Return the text of an event without its tool calls, which are stored for the next chunk."""
        assert self._answer.tools is not None
        if index not in self._parsers:
            self._parsers[index] = self._answer.tools.parser(self._answer.model.tokenizer)
        parser = self._parsers[index]
        deltas = [parser.push(event.text, () if event.token is None else (event.token.token,))]
        if event.finish is not None:
            deltas.append(parser.finish(cut=event.finish is FinishReason.LENGTH))
        self._calls.setdefault(index, []).extend(call for delta in deltas for call in delta.calls)
        return "".join(delta.content for delta in deltas)

    @override
    def choice(self, prompt: int, index: int, state: ChoiceState, event: Event) -> dict[str, object]:
        delta: dict[str, Any] = {} if state.begun else {"role": "assistant"}
        calls = self._calls.pop(index, [])
        if event.text or not (state.begun or event.reasoning):
            delta["content"] = event.text or (None if calls else "")
        if event.reasoning:
            delta |= self._answer.reasoning(event.reasoning)
        if calls:
            delta["tool_calls"] = [call_delta(call) for call in calls]
        finish: str | None = event.finish
        if index in self._parsers:
            finish = finish_reason(event.finish, self._parsers[index])
        return self._answer.choice(index, "delta", delta, state.take(event), finish)

    @override
    def first(self) -> dict[str, object]:
        return self._answer.of_prompt(self.generation.requests[0].prompt, self.scores[0])


def read_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a conversation in the form that templates take: roles checked, text parts joined.

    The content of URLs in messages is not fetched.

    Raises:
        ApiError: If a message is malformed; the error names the message.
    """
    if not messages:
        raise invalid("messages: give at least one message", "messages", code="missing_field")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise invalid(f"{where}.role: give one of system, developer, user, assistant, tool", "messages")
    content = _content(message.get("content"), f"{where}.content")
    if content is None and role in _NEED_CONTENT:
        raise invalid(f"{where}.content: a {role} message needs text: give it", "messages")
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        raise invalid(f"{where}.tool_call_id: a tool message needs the id of the call that it answers", "messages")
    return {**message, "content": content}


def _content(content: Any, where: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise invalid(f"{where}: give a string or a list of parts", "messages")
    return "\n".join(_part(part, f"{where}[{index}]") for index, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in ("text", "input_text", "output_text"):
        what = f"a part of the type {kind}" if isinstance(kind, str) and kind.isidentifier() else "such a part"
        raise invalid(
            f"{where}: this model reads only text; {what} is not supported", "messages", code="unsupported_part"
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise invalid(f"{where}.text: give the part's text", "messages")
    return text
