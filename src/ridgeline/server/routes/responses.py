"""The route /v1/responses, which returns chat completions as response items and events."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from typing_extensions import override

from ridgeline.server.errors import ApiError
from ridgeline.server.http.event_stream import StreamOutbox, frame
from ridgeline.server.in_flight import Generation
from ridgeline.server.routes.chat_completions import ChatChunks, ChatResponseWriter, chat_generation
from ridgeline.server.routes.generation import GenerationResult, new_id, run
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.routes.logprobs import PromptScores
from ridgeline.server.routes.responses_to_chat import ResponseFields, as_chat, named_as_here
from ridgeline.server.routes.served_model import ServedModel
from ridgeline.server.routes.stream_chunks import Chunks, obfuscated
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service

ROUTE = "/v1/responses"

Emit = Callable[[str, dict[str, object]], None]
"""A function that takes an event: its type and its fields."""


async def response_generation(
    fields: ResponseFields, model: ServedModel, settings: ServerSettings, grammars: GrammarCheck, arrived: int
) -> tuple[Generation, "ResponsesWriter"]:
    """Convert a /v1/responses request into a `Generation` and the writer of its response.

    Raises:
        ApiError: If the request is invalid; the error names the field of this route.
    """
    chat = as_chat(fields, settings)
    try:
        generation, answer = await chat_generation(chat, model, settings, grammars, arrived)
    except ApiError as error:
        raise named_as_here(error) from None
    generation = replace(generation, id=new_id("resp_"), route=ROUTE)
    return generation, ResponsesWriter(fields, answer)


@dataclass(frozen=True, slots=True)
class ResponsesWriter:
    """A writer of /v1/responses responses."""

    fields: ResponseFields
    chat: ChatResponseWriter

    def chunks(self, generation: Generation, outbox: StreamOutbox) -> Chunks:
        """Return the object that runs a generation and writes its events into an outbox."""
        return ResponseChunks(generation, self, outbox)

    def scores(self, generation: Generation) -> list[PromptScores]:
        """Return an empty `PromptScores` for the prompt, which collects scores as the engine computes them."""
        return self.chat.scores(generation)

    async def body(self, generation: Generation, gathered: GenerationResult) -> dict[str, object]:
        """Return the complete response, built like the last event of a stream whose only delta is the whole message."""
        choice: Any = (await self.chat.body(generation, gathered))["choices"]
        items = ResponseItems(lambda kind, event: None)
        items.take(choice[0]["message"])
        items.end(choice[0]["finish_reason"])
        return self.response(generation, items, gathered.usage.body())

    def response(
        self, generation: Generation, items: "ResponseItems", usage: Mapping[str, Any] | None
    ) -> dict[str, object]:
        """Return the /v1/responses object in its present state; it is in progress while `usage` is None."""
        fields, params = self.fields, generation.params
        return {
            "id": generation.id,
            "object": "response",
            "created_at": generation.created,
            "status": items.status if usage is not None else "in_progress",
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if items.status == "incomplete" else None,
            "instructions": fields.instructions,
            "max_output_tokens": fields.max_output_tokens,
            "metadata": fields.metadata or {},
            "model": generation.model,
            "output": items.output,
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": (fields.reasoning or {}).get("effort"), "summary": None},
            "store": False,
            "temperature": params.temperature,
            "text": fields.text or {"format": {"type": "text"}},
            "tool_choice": fields.tool_choice or "auto",
            "tools": fields.tools or [],
            "top_p": params.top_p,
            "truncation": "disabled",
            "usage": None if usage is None else _usage(usage),
        }


def _usage(usage: Mapping[str, Any]) -> dict[str, object]:
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": usage["prompt_tokens_details"],
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }


class ResponseItems:
    """The output items of a response, built from chat message deltas; each change is emitted as an event."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self.output: list[dict[str, Any]] = []
        self.status = "completed"
        self._key: object = None  # the open item: reasoning, message, or a call's index

    def take(self, delta: Mapping[str, Any]) -> None:
        """Add a delta of the chat message: reasoning, content or tool calls."""
        if delta.get("reasoning"):
            self._open("reasoning", {"id": new_id("rs_"), "type": "reasoning", "summary": [], "content": []})
            self._grow("reasoning_text", delta["reasoning"])
        if delta.get("content"):
            self._open("message", {"id": new_id("msg_"), "type": "message", "role": "assistant", "content": []})
            self._grow("output_text", delta["content"])
        for index, call in enumerate(delta.get("tool_calls") or ()):
            self._call(call.get("index", index), call)

    def end(self, finish: object) -> None:
        """End the message with the finish reason of the chat route, and close the open item."""
        if finish == "length":
            self.status = "incomplete"
        self._close()

    def _call(self, index: object, call: Mapping[str, Any]) -> None:
        function = call["function"]
        if call.get("id"):
            named = {"call_id": call["id"], "name": function["name"], "arguments": ""}
            self._open(index, {"id": new_id("fc_"), "type": "function_call", **named})
        if function.get("arguments"):
            self.output[-1]["arguments"] += function["arguments"]
            self._add_event("response.function_call_arguments.delta", {"delta": function["arguments"]})

    def _open(self, key: object, item: dict[str, Any]) -> None:
        if key == self._key:
            return
        self._close()
        self._key = key
        self.output.append({**item, "status": "in_progress"})
        self._emit("response.output_item.added", {"output_index": len(self.output) - 1, "item": self.output[-1]})

    def _grow(self, kind: str, text: str) -> None:
        """Append text to the only content part of the open item."""
        parts = self.output[-1]["content"]
        if not parts:
            parts.append({"type": kind, "text": ""} | ({"annotations": []} if kind == "output_text" else {}))
            self._add_event("response.content_part.added", {"content_index": 0, "part": parts[0]})
        parts[0]["text"] += text
        self._add_event(f"response.{kind}.delta", {"content_index": 0, "delta": text} | self._no_logprobs(kind))

    def _close(self) -> None:
        """Emit the closing events of the open item, which is complete or was cut off."""
        if self._key is None:
            return
        item, self._key = self.output[-1], None
        item["status"] = self.status
        if item["type"] == "function_call":
            fields = {"arguments": item["arguments"], "name": item["name"]}
            self._add_event("response.function_call_arguments.done", fields)
        for part in item.get("content", ()):
            kind = part["type"]
            self._add_event(
                f"response.{kind}.done", {"content_index": 0, "text": part["text"]} | self._no_logprobs(kind)
            )
            self._add_event("response.content_part.done", {"content_index": 0, "part": part})
        self._emit("response.output_item.done", {"output_index": len(self.output) - 1, "item": item})

    def _add_event(self, kind: str, event: dict[str, object]) -> None:
        """Emit an event of the last output item."""
        place = {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}
        self._emit(kind, place | event)

    @staticmethod
    def _no_logprobs(kind: str) -> dict[str, object]:
        return {"logprobs": []} if kind == "output_text" else {}


class ResponseChunks(ChatChunks):
    """The producer of the events of a streamed /v1/responses response.

    The first two events are sent together with the first delta, so that an earlier error can still set the HTTP status.
    """

    def __init__(self, generation: Generation, answer: ResponsesWriter, outbox: StreamOutbox) -> None:
        super().__init__(generation, answer.chat, outbox)
        self._response = answer
        self._items = ResponseItems(self._emit)
        self._number = 0

    @override
    async def produce(self, service: Service) -> None:
        await run(service, self.generation, self.take)
        response = self._response.response(self.generation, self._items, self.usage.body())
        self._emit(f"response.{self._items.status}", {"response": response})

    @override
    def put(self, choices: list[dict[str, Any]], beside: Mapping[str, object]) -> None:
        """Emit the events of a /v1/responses stream in place of a chat chunk."""
        if not self._number:
            response = self._response.response(self.generation, self._items, None)
            for kind in ("response.created", "response.in_progress"):
                self._emit(kind, {"response": response})
        for choice in choices:
            self._items.take(choice["delta"])
            if choice["finish_reason"] is not None:
                self._items.end(choice["finish_reason"])

    def _emit(self, kind: str, event: dict[str, object]) -> None:
        event_fields = {"type": kind, "sequence_number": self._number, **event}
        if self.options.include_obfuscation and kind.endswith(".delta"):
            event_fields = obfuscated(event_fields)
        self._number += 1
        self.outbox.put(b"event: " + kind.encode() + b"\n" + frame(event_fields))
