"""The undocumented parts of uvicorn that the server relies on, each checked on uvicorn itself, without our classes.

A failure names the part that the installed release has changed: then server/http/uvicorn_adapter.py has to follow.
"""

import ast
import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h11
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from ridgeline.server.http import protocol, uvicorn_adapter

GET = b"GET /x HTTP/1.1\r\nHost: localhost\r\n\r\n"
POST = b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n\r\n"


class Wire(asyncio.Transport):
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("192.0.2.7", 1234), "sockname": ("192.0.2.1", 80)})
        self.written, self.closed, self.paused = b"", False, False

    @override
    def write(self, data: Any) -> None:
        self.written += data

    @override
    def close(self) -> None:
        self.closed = True

    @override
    def is_closing(self) -> bool:
        return self.closed

    @override
    def pause_reading(self) -> None:
        self.paused = True

    @override
    def resume_reading(self) -> None:
        self.paused = False


class App:
    """An application that keeps its scopes and messages, and answers when it may."""

    def __init__(self) -> None:
        self.scopes: list[Scope] = []
        self.messages: list[str] = []
        self.may_begin, self.may_end = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        await self.may_begin.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await self.may_end.wait()
        while len(self.messages) < 2 and self.messages[-1:] != ["http.disconnect"]:
            self.messages.append((await receive())["type"])
            if scope["method"] == "GET":
                break
        await send({"type": "http.response.body", "body": b"ok"})


async def settle() -> None:
    """Let all tasks run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


def connection(app: Any, kind: type[H11Protocol] = H11Protocol) -> tuple[H11Protocol, Wire, ServerState]:
    """Return a connection of uvicorn that is open."""
    config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none", proxy_headers=False)
    config.load()
    state, wire = ServerState(), Wire()
    made = kind(config, state, {}, asyncio.get_running_loop())
    made.connection_made(wire)
    return made, wire, state


class Watched(uvicorn.Server):
    """A server that notes what is called."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.calls: list[str] = []

    @contextmanager
    @override
    def capture_signals(self) -> Iterator[None]:
        self.calls.append("capture_signals")
        yield
        self.calls.append("signals end")

    @override
    async def main_loop(self) -> None:
        self.calls.append("main_loop")


def server(http: Any = "h11") -> Watched:
    """Return a server that has not started."""
    return Watched(
        uvicorn.Config(
            App(), http=http, lifespan="off", log_config=None, ws="none", headers=[("x-a", "b")], server_header=False
        )
    )


# -- the checks ------------------------------------------------------------------------------------------------------


async def startup() -> None:
    given: list[set[str]] = []

    class Noted(asyncio.Protocol):
        def __init__(self, **words: Any) -> None:
            given.append(set(words))

    class Serving(Watched):
        @override
        async def main_loop(self) -> None:
            _, writer = await asyncio.open_connection(*listener.getsockname())
            while not given:
                await asyncio.sleep(0.01)
            writer.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        await Serving(server(Noted).config).serve([listener])
    assert given == [{"config", "server_state", "app_state", "_loop"}]


async def serve_calls() -> None:
    watched = server()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await watched.serve([listener])
    assert watched.calls == ["capture_signals", "main_loop", "signals end"]


async def on_tick() -> None:
    one = server()
    one.config.load()
    assert await one.on_tick(0) is False
    assert [name for name, _ in one.server_state.default_headers] == [b"date", b"x-a"]
    one.should_exit = True
    assert await one.on_tick(0) is True


async def shutdown() -> None:
    ended: list[str] = []
    one = server()

    class Open:
        def shutdown(self) -> None:
            ended.append("shutdown")
            one.server_state.connections.clear()

    one.server_state.connections.add(Open())  # type: ignore[arg-type]
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await one.serve([listener])
    assert ended == ["shutdown"]
    idle, wire, _ = connection(App())
    idle.shutdown()
    assert wire.closed


async def conn() -> None:
    parsed: list[object] = []

    class Parser(h11.Connection):
        @override
        def next_event(self) -> Any:
            event = super().next_event()
            parsed.append(type(event))
            return event

    one, _, _ = connection(App())
    assert type(one.conn) is h11.Connection
    one.conn = Parser(h11.SERVER)
    one.data_received(GET)
    assert h11.Request in parsed


async def app() -> None:
    configured, other = App(), App()
    one, _, _ = connection(configured)
    assert one.app is configured
    one.app = other
    one.data_received(GET)
    await settle()
    assert (configured.scopes, other.scopes[0]["http_version"]) == ([], "1.1")


async def attributes() -> None:
    one, wire, state = connection(App())
    assert (one.loop, one.transport, one.client) == (asyncio.get_running_loop(), wire, ("192.0.2.7", 1234))
    assert one.connections is state.connections
    assert one.connections == {one}
    one.connection_lost(None)
    assert one.connections == set()


async def flow() -> None:
    one, wire, _ = connection(App())
    assert not one.flow.read_paused
    one.data_received(POST + b"x" * 150_000)
    assert (one.flow.read_paused, wire.paused) == (True, True)
    one.flow.resume_reading()
    assert (one.flow.read_paused, wire.paused) == (False, False)


async def cycle() -> None:
    called = App()
    one, _, _ = connection(called)
    assert one.cycle is None
    one.data_received(POST)
    await settle()
    assert one.cycle.scope is called.scopes[0]
    assert (one.cycle.response_started, one.cycle.response_complete, one.cycle.disconnected) == (False, False, False)
    called.may_begin.set()
    await settle()
    assert (one.cycle.response_started, one.cycle.response_complete) == (True, False)
    called.may_end.set()
    await settle()
    assert called.messages == []  # it waits for the body
    one.cycle.disconnected = True
    one.cycle.message_event.set()
    await settle()
    assert called.messages == ["http.disconnect"]


async def send_400_response() -> None:
    refused: list[str] = []

    class Refusing(H11Protocol):
        @override
        def send_400_response(self, msg: str) -> None:
            refused.append(msg)

    one, wire, _ = connection(App(), Refusing)
    one.data_received(b"\0\r\n\r\n")
    assert (len(refused), wire.written) == (1, b"")


async def on_response_complete() -> None:
    complete: list[bool] = []

    class Noting(H11Protocol):
        @override
        def on_response_complete(self) -> None:
            super().on_response_complete()
            complete.append(self.cycle.response_complete)

    called = App()
    called.may_begin.set()
    called.may_end.set()
    one, wire, _ = connection(called, Noting)
    one.data_received(GET)
    await settle()
    assert complete == [True]
    assert wire.written.endswith(b"ok")
    assert one.timeout_keep_alive_task is not None
    timer = one.timeout_keep_alive_task
    assert not timer.cancelled()
    one._unset_keepalive_if_required()
    assert timer.cancelled()


async def unsupported_upgrade() -> None:
    warned: list[bool] = []

    class Warned(H11Protocol):
        @override
        def _unsupported_upgrade_warning(self) -> None:
            warned.append(True)

    called = App()
    one, _, _ = connection(called, Warned)
    one.data_received(GET.replace(b"\r\n\r\n", b"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"))
    await settle()
    assert (warned, len(called.scopes)) == ([True], 1)


CHECKS: dict[str, Callable[[], Awaitable[None]]] = {
    "Server.startup": startup,
    "Server.capture_signals()": serve_calls,
    "Server.main_loop()": serve_calls,
    "Server.on_tick(0)": on_tick,
    "Server.shutdown": shutdown,
    "H11Protocol.conn": conn,
    "H11Protocol.app": app,
    "H11Protocol.loop": attributes,
    "H11Protocol.flow": flow,
    "H11Protocol.cycle": cycle,
    "H11Protocol.send_400_response(msg)": send_400_response,
    "H11Protocol.on_response_complete()": on_response_complete,
    "H11Protocol._unset_keepalive_if_required()": on_response_complete,
    "H11Protocol._unsupported_upgrade_warning()": unsupported_upgrade,
}


@pytest.mark.parametrize("name", CHECKS)
def test_uvicorn_does_what_the_adapter_relies_on(name: str) -> None:
    check = CHECKS[name]
    try:
        asyncio.run(asyncio.wait_for(check(), 20))
    except (AssertionError, AttributeError, TypeError, TimeoutError) as error:
        pytest.fail(f"uvicorn {version('uvicorn')} has changed {name}, which uvicorn_adapter.py relies on: {error!r}")


def test_the_adapter_names_all_that_is_checked() -> None:
    assert re.findall(r"^- `([^`]+)`", uvicorn_adapter.__doc__ or "", re.M) == list(CHECKS)


def used_names(module: Any) -> set[str]:
    """Return the attributes of `self` and of `super()` that a module uses."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    holders = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
    return {node.attr for node in holders if ast.unparse(node.value) in ("self", "super()")}


def test_the_protocol_uses_no_other_part_of_uvicorn() -> None:
    """Check that it inherits only names of the adapter's docstring, asyncio's, and our own."""
    theirs: set[str] = set()

    async def look() -> None:
        one, _, _ = connection(App())
        theirs.update(vars(one), dir(one))

    asyncio.run(look())
    private = used_names(protocol) & theirs - set(dir(asyncio.Protocol)) - set(vars(uvicorn_adapter.UvicornProtocol))
    named = set(re.findall(r"\w+", uvicorn_adapter.__doc__ or ""))
    assert private - named == set()
    assert private == {"client", "connections", "flow", "loop", "shutdown", "transport"}


def test_only_the_adapter_imports_modules_that_uvicorn_does_not_document() -> None:
    source = Path(uvicorn_adapter.__file__)
    package = source.parents[2]
    imports = re.compile(r"(?:from|import) uvicorn\.|\buvicorn\._")
    found = [path for path in package.rglob("*.py") if imports.search(path.read_text(encoding="utf-8"))]
    assert found == [source]
