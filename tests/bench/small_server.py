"""A small OpenAI-compatible server on a free port, in a thread: what it does is known, how fast is not asked."""

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

METRICS = """
ridgeline:step_seconds_count{{phase="decode"}} {count}
ridgeline:step_seconds_sum{{phase="decode"}} {seconds}
ridgeline:step_predicted_seconds_count{{phase="decode"}} {count}
ridgeline:step_predicted_seconds_sum{{phase="decode"}} {predicted}
"""


@dataclass
class SmallServer:
    """A token a word of the prompt and two more; an answer of max_tokens tokens. owner: what it says it is. key: what
    it wants. context: tokens of prompt and answer that it takes. refuse: status of every answer but the first so many.
    seen: bodies and headers of what was asked."""

    owner: str = "somebody"
    root: str = "tales"
    key: str | None = None
    context: int = 256
    refuse: int | None = None
    before_refusing: int = 0
    port: int = 0
    seen: list[dict[str, Any]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def models(self, request: web.Request) -> web.Response:
        if self.key is not None and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"error": {"message": "no"}}, status=401)
        card = {
            "id": "small",
            "object": "model",
            "owned_by": self.owner,
            "root": self.root,
            "max_model_len": self.context,
        }
        return web.json_response({"object": "list", "data": [card]})

    async def metrics(self, request: web.Request) -> web.Response:
        count = len(self.seen)
        return web.Response(text=METRICS.format(count=count, seconds=0.02 * count, predicted=0.01 * count))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        fields = await request.json()
        self.seen.append(fields)
        self.headers.append(request.headers)
        if self.refuse is not None and len(self.seen) > self.before_refusing:
            return web.json_response({"error": {"message": "not now"}}, status=self.refuse)
        given = fields["prompt"] if "prompt" in fields else fields["messages"][-1]["content"]
        given = given.split() if isinstance(given, str) else given
        count = fields.get("max_tokens", 4)
        if len(given) + 2 + count > self.context:
            message = f"This model's maximum context length is {self.context} tokens"
            return web.json_response({"error": {"message": message}}, status=400)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(count):
            await response.write(frame({"choices": [{"text": "x", "delta": {"content": "x"}}]}))
        usage = {"prompt_tokens": len(given) + 2, "completion_tokens": count}
        await response.write(frame({"choices": [{"finish_reason": "length"}]}) + frame({"choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response


def frame(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


@contextmanager
def running(server: SmallServer) -> Iterator[SmallServer]:
    """The server on a free port."""
    app = web.Application()
    app.add_routes(
        [
            web.get("/v1/models", server.models),
            web.get("/metrics", server.metrics),
            web.post("/v1/completions", server.complete),
            web.post("/v1/chat/completions", server.complete),
        ]
    )
    loop, ready = asyncio.new_event_loop(), threading.Event()

    async def start() -> web.AppRunner:
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        server.port = runner.addresses[0][1]
        return runner

    def run() -> None:
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
