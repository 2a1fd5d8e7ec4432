"""A server that is attacked: everything that it answers is kept and looked through, and it has to work afterwards."""

import re
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.setup import load_engine
from ridgeline.server.admission import RequestQueue
from ridgeline.server.http.exchanges import log_exchange
from ridgeline.server.lifecycle import build_service
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.observability import observe_one_engine
from server.attacks import CHAT, COMPLETE, GREET
from server.conftest import Reply, Running, running
from server.wire import connect, read_all, status_of

LEAKS = re.compile(
    rb" at 0x|Traceback|Exception|\b[A-Z]\w*Error\b|File \"|\bline \d+, in |site-packages|maximum recursion"
)
"""What no answer may have in it: addresses, and the words of exceptions (CVE-2026-22778 and CVE-2026-54236)."""


@dataclass(frozen=True)
class Attacked(Running):
    """answers: all bodies so far."""

    answers: list[bytes] = field(default_factory=list)

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        reply = super().request(method, path, body, headers)
        self.answers.append(reply.data)
        return reply

    def complete(self, prompt: Any = "Once", **fields: Any) -> Reply:
        return self.post(COMPLETE, {"prompt": prompt, "max_tokens": 2, "temperature": 0, **fields})

    def chat(self, messages: Any = GREET, **fields: Any) -> Reply:
        return self.post(CHAT, {"messages": messages, "max_tokens": 2, "temperature": 0, **fields})

    def raw(self, data: bytes) -> tuple[int, bytes]:
        """Status and all bytes that come back for these, until the server closes the connection."""
        with self.connect() as connection:
            connection.sendall(data)
            answer = read_all(connection)
        self.answers.append(answer)
        return status_of(answer), answer

    def connect(self) -> socket.socket:
        return connect(self.port)

    def pages(self) -> int:
        """KV pages that requests hold."""
        return self.service.llm.stats.held_pages

    def check(self) -> None:
        """One normal request succeeds, no KV page is held afterwards, and no answer so far had in it what none may."""
        assert self.complete(max_tokens=1).json()["usage"]["completion_tokens"] == 1
        self.idle()
        answers = self.answers[:]
        self.answers.clear()
        for answer in answers:
            assert not (leak := LEAKS.search(answer)), (leak, answer[:500])


@contextmanager
def attacked(
    settings: ServerSettings | None = None, model: str = "tales", limits: Limits | None = None
) -> Iterator[Attacked]:
    """A server with all that `ridgeline serve` puts before an engine, which is its own, in a thread."""
    settings = replace(settings or ServerSettings(), models=("tales",))
    llm = AsyncLLM(load_engine(model, EngineSettings(kv_bytes=64 << 20, limits=limits or Limits())))
    service = build_service(llm, RequestQueue(llm.info, settings), settings)
    watching = observe_one_engine(service, llm, settings, "tales")
    try:
        with running(
            service, settings, routes=watching.routes(), observers=[log_exchange, watching.metrics.exchanged]
        ) as up:
            yield Attacked(up.port, up.service)
    finally:
        llm.close()
