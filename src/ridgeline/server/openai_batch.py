"""The OpenAI batch format: a JSON Lines file of requests, each answered by the application that the server runs.

A line {"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}} becomes {"id": ...,
"custom_id": ..., "response": {"status_code": ..., "request_id": ..., "body": {...}}, "error": null}. The output for an
invalid line has no response; its error states the reason and the line number.
"""

import asyncio
import math
import secrets
from collections.abc import AsyncIterable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message

from ridgeline.engine.async_llm import AsyncLLM, EngineDied
from ridgeline.server.app import build_app
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.routes.chat_completions import ROUTE as CHAT
from ridgeline.server.routes.completions import ROUTE as COMPLETIONS
from ridgeline.server.routes.generation import ENGINE_DIED, ENGINE_RESTARTING
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from ridgeline.server.type_errors import explain_json, explain_type

URLS = (CHAT, COMPLETIONS)
_LOST = (ENGINE_DIED, ENGINE_RESTARTING)
AHEAD = 16
"""The number of requests submitted beyond the engine's batch size, so that no place in the batch stays empty."""


class BatchLine(msgspec.Struct, frozen=True):
    """One request of a batch file."""

    custom_id: str
    url: str
    body: msgspec.Raw
    """The request body as raw JSON, which the application parses."""
    method: str = "POST"


class _Streamed(msgspec.Struct, frozen=True):
    stream: Any = None


class LineError(ValueError):
    """The error for a line that is not a valid request; the message gives the reason."""


@dataclass(slots=True)
class Tally:
    """The numbers of a batch file's lines by outcome, and the tokens of the successful responses."""

    answered: int = 0
    """The number of lines in a batch file whose response has status 200."""
    refused: int = 0
    """The number of lines in a batch file whose response is an error."""
    wrong: int = 0
    """The number of lines in a batch file that are not valid requests."""
    skipped: int = 0
    """The number of batch lines that an earlier run has already answered or reported as invalid."""
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def done(self) -> int:
        """The number of lines that this run has written an output for."""
        return self.answered + self.refused + self.wrong

    def take(self, status: int, body: bytes) -> None:
        """Count a batch response by its status, and add the tokens of a successful one."""
        if status != 200:
            self.refused += 1
            return
        self.answered += 1
        usage = msgspec.json.decode(body, type=_Answer).usage
        self.prompt_tokens += usage.prompt_tokens
        self.output_tokens += usage.completion_tokens


class BatchUsage(msgspec.Struct, frozen=True):
    """The token counts of a response."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct, frozen=True):
    usage: BatchUsage = BatchUsage()


class _AdmitAll:
    """An admission policy that admits every request, because a batch limits its own concurrency."""

    def admit(self, live: InFlightRequest) -> None:
        """Admit any request without a check."""

    def leave(self, live: InFlightRequest) -> None:
        """Ignore the end of a request, because this policy does not count requests."""


class BatchReader:
    """A parser of batch lines that skips answered lines and writes an error output for each newly found invalid one.

    Args:
        tally: Counts skipped and invalid lines.
        write: Takes each error output.
        done: `custom_id`s that an earlier run has answered.
        wrong: Numbers of the lines that an earlier run has reported as invalid.
    """

    def __init__(
        self, tally: Tally, write: Callable[[bytes], None], done: frozenset[str], wrong: frozenset[int]
    ) -> None:
        self._tally, self._write, self._done, self._wrong = tally, write, done, wrong
        self._number = 0
        self._seen: dict[str, int] = {}  # line number by custom_id

    def read(self, text: bytes) -> BatchLine | None:
        """Parse the next line of a batch file; return None if it is empty, invalid, or answered by an earlier run."""
        self._number += 1
        return self._request(self._number, text) if text.strip() else None

    def _request(self, number: int, text: bytes) -> BatchLine | None:
        try:
            line = read_line(text)
            first = self._seen.setdefault(line.custom_id, number)
            if first != number:
                raise LineError(f"its custom_id is already used in line {first}")
        except LineError as error:
            if number in self._wrong:
                self._tally.skipped += 1
            else:
                self._tally.wrong += 1
                self._write(_output(None, error={"code": "invalid_line", "message": str(error), "line": number}))
            return None
        if line.custom_id in self._done:
            self._tally.skipped += 1
            return None
        return line


class BatchRunner:
    """A runner that answers the lines of a batch with one engine, as many concurrently as keep its batch full.

    Args:
        llm: The engine.
        settings: The limits that each request has to meet.
        write: Takes each complete line of the output.
        done: `custom_id`s that an earlier run has answered.
        wrong: Numbers of the lines that an earlier run has reported as invalid.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        settings: ServerSettings,
        write: Callable[[bytes], None],
        done: frozenset[str] = frozenset(),
        wrong: frozenset[int] = frozenset(),
    ) -> None:
        self._llm = llm
        self._grammars = GrammarCheck(settings, most_waiting=math.inf)  # a batch limits its own concurrency
        self._app = build_app(Service(llm, _AdmitAll()), settings, self._grammars)
        self._write, self.tally = write, Tally()
        self._requests = BatchReader(self.tally, write, done, wrong)

    async def run(self, lines: AsyncIterable[bytes]) -> None:
        """Answer all requests of a batch file and write each output as soon as it is complete, in any order.

        Raises:
            EngineDied: If the engine stops.
        """
        gate = asyncio.Semaphore(self._llm.info.requests + AHEAD)
        try:
            async with asyncio.TaskGroup() as group:
                async for line in lines:
                    request = self._requests.read(line)
                    if request is not None:
                        await gate.acquire()
                        group.create_task(self._answer(request)).add_done_callback(lambda _: gate.release())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            await self._grammars.aclose()

    async def _answer(self, line: BatchLine) -> None:
        status, request_id, body = await call(self._app, line.url, bytes(line.body))
        if status == 503 and msgspec.json.decode(body)["error"]["code"] in _LOST:
            raise EngineDied("the engine stopped")  # without an output, so that the next run answers the line
        response = {"status_code": status, "request_id": request_id or None, "body": msgspec.Raw(body)}
        self._write(_output(line.custom_id, response=response))
        self.tally.take(status, body)


def read_line(text: bytes) -> BatchLine:
    """Parse one line of a batch file into a request.

    Raises:
        LineError: If the line is not a valid request.
    """
    try:
        line = msgspec.json.decode(text, type=BatchLine)
        streamed = msgspec.json.decode(line.body, type=_Streamed).stream if bytes(line.body).startswith(b"{") else None
    except msgspec.ValidationError as error:
        raise LineError(f"it is not a valid request: {explain_type(error, None, BatchLine)[1]}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LineError(f"it is not valid JSON: {explain_json(error, text)}") from None
    if not line.custom_id:
        raise LineError("its custom_id is empty")
    if line.method != "POST":
        raise LineError(f"its method is {line.method!r}; give POST")
    if line.url not in URLS:
        raise LineError(f"its url is {line.url!r}; give {' or '.join(URLS)}")
    if streamed:
        raise LineError("its body sets stream to true, which a batch does not support: leave stream out")
    return line


def _output(custom_id: str | None, response: object = None, error: object = None) -> bytes:
    record = {"id": f"batch_req_{secrets.token_hex(12)}", "custom_id": custom_id, "response": response, "error": error}
    return msgspec.json.encode(record) + b"\n"


async def call(app: ASGIApp, path: str, body: bytes) -> tuple[int, str, bytes]:
    """Send a POST request with a JSON body to an ASGI application; return the status, the request id and the body."""
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())],
        "client": None,
        "server": None,
    }
    unread = [body]
    answer: list[Message] = []

    async def receive() -> Message:
        if unread:
            return {"type": "http.request", "body": unread.pop(), "more_body": False}
        return await asyncio.Future()  # a client that never leaves

    async def send(message: Message) -> None:
        answer.append(message)

    try:
        await app(scope, receive, send)
    except Exception:
        if not answer:  # otherwise the application has responded with 500
            raise
    head = answer[0]
    headers = dict(head["headers"])
    parts = [message.get("body", b"") for message in answer[1:]]
    return head["status"], headers.get(b"x-request-id", b"").decode("latin-1"), b"".join(parts)
