"""A server in this process: the real application on a free port, `tales` behind it."""

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.llm import LLM
from ridgeline.engine.setup import LoadedEngine, load_engine
from ridgeline.media.speech.speech_vocabulary import SpeechVocabulary
from ridgeline.server.admission import RequestQueue
from ridgeline.server.app import build_app
from ridgeline.server.http.exchanges import ExchangeObserver
from ridgeline.server.http.health import Health, HealthSource, ReadinessGate
from ridgeline.server.http.http_server import http_server
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.lifecycle import build_service, with_access_control
from ridgeline.server.routes.grammar_check import GrammarCheck
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.service import Service
from server.wire import eventually


class Everybody:
    """An admission that turns nobody away."""

    def admit(self, live: InFlightRequest) -> None:
        pass

    def leave(self, live: InFlightRequest) -> None:
        pass


@dataclass(frozen=True)
class Reply:
    """An answer to a plain request."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    def json(self) -> Any:
        return json.loads(self.data)


@dataclass(frozen=True)
class Listening:
    """A server that runs."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Reply:
        """One request on a connection of its own. body: bytes as they are, anything else as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {"content-type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("POST", path, body, headers)

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.request("GET", path, None, headers)


@dataclass(frozen=True)
class Running(Listening):
    """A server of a language model, and what is behind it."""

    service: Service

    def check(self) -> None:
        """One normal request succeeds, and no KV page is held afterwards."""
        reply = self.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0})
        assert reply.status == 200, reply.data
        assert reply.json()["usage"]["completion_tokens"] == 2
        self.idle()

    def idle(self, seconds: float = 60.0) -> None:
        """Nothing is under way and no KV page is held, at once or soon."""
        assert eventually(self._is_idle, seconds), (self.service.live, self.service.llm.stats)

    def _is_idle(self) -> bool:
        stats = self.service.llm.stats
        return not (self.service.live or stats.running or stats.waiting or stats.held_pages)


@contextmanager
def running(
    service: Service,
    settings: ServerSettings,
    *,
    speech: SpeechVocabulary | None = None,
    routes: Sequence[BaseRoute] = (),
    observers: Sequence[ExchangeObserver] = (),
) -> Iterator[Running]:
    """A service on a free port, in a thread, with all that stands before it."""
    grammars = GrammarCheck(settings)
    app = build_app(service, settings, grammars, speech=speech, routes=routes)
    with listening(app, service.llm, settings, observers, grammars.aclose) as port:
        yield Running(port, service)


async def _nothing() -> None:
    pass


@contextmanager
def listening(
    app: ASGIApp,
    watched: HealthSource,
    settings: ServerSettings,
    observers: Sequence[ExchangeObserver] = (),
    close: Callable[[], Awaitable[None]] = _nothing,
) -> Iterator[int]:
    """The port of an application with all that stands before it. watched: what health is that of. close: done on the
    event loop in the end."""
    front = ReadinessGate(Health(settings.stalled_seconds))
    front.health.watched, front.app = watched, app
    outermost = with_access_control(front, settings, observers)

    async def live() -> None:
        await server.serve([listener])
        await close()

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = http_server(outermost, settings, observers)
        thread = threading.Thread(target=lambda: asyncio.run(live()), daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            time.sleep(0.002)
        try:
            yield listener.getsockname()[1]
        finally:
            server.end()
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture(scope="session")
def tales() -> LoadedEngine:
    """`tales`, loaded once."""
    return load_engine("tales")


@pytest.fixture(scope="session")
def server(tales: LoadedEngine) -> Iterator[Running]:
    """A server of `tales` with default limits, shared by all tests: leave it idle."""
    llm = AsyncLLM(tales)
    try:
        settings = ServerSettings(models=("tales",))
        with running(build_service(llm, RequestQueue(llm.info, settings), settings), settings) as up:
            yield up
    finally:
        llm.close()


@pytest.fixture(scope="session")
def llm() -> LLM:
    """The same model without a server: what answers are compared with."""
    return LLM("tales", threads=1)


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    """The official client. Its test leaves the server idle."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    server.idle()
