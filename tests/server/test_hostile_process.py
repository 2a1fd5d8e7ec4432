"""44, 45 and 55 of the hostile inputs on one real server: the engine's process is killed, the server is told to end,
and long bodies leave no memory behind."""

import http.client
import json
import os
import platform
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from server.attacked import LEAKS
from server.attacks import COMPLETE, CROWDED
from server.crowds import at_once
from server.wire import eventually

SERVE = ("-m", "ridgeline", "serve", "tales", "--port", "0", "--kv-memory", "64MiB", "--threads", "1")
STREAM = {"prompt": "Once", "ignore_eos": True, "stream": True, "temperature": 0}


class Server:
    """A server in processes of its own."""

    def __init__(self, log: Path) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen([sys.executable, *SERVE], stdout=file, stderr=subprocess.STDOUT)
        assert eventually(lambda: self.process.poll() is not None or self._port(), 60)
        self.port = self._port()

    def _port(self) -> int:
        """The port that the log names; 0 if it names none."""
        found = re.search(r"at http://[^ :]+:(\d+)", self.log.read_text())
        return int(found[1]) if found else 0

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body if body is None or isinstance(body, bytes) else json.dumps(body))
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, json.loads(data)

    def completes(self) -> bool:
        status, body = self.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2, "ignore_eos": True})
        return status == 200 and body["usage"]["completion_tokens"] == 2

    def children(self) -> list[int]:
        """Processes that it has started and that are there."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]

    def resident(self) -> int:
        """Resident bytes of the server's own process."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stream(self, tokens: int) -> "Stream":
        return Stream(self.port, tokens)


class Stream(threading.Thread):
    """A stream that is read to its end. begun: its first token is there."""

    def __init__(self, port: int, tokens: int) -> None:
        super().__init__(daemon=True)
        self.port, self.tokens, self.begun, self.frames = port, tokens, threading.Event(), list[Any]()
        self.start()
        assert self.begun.wait(30)

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({**STREAM, "max_tokens": self.tokens}))
        for line in connection.getresponse():
            assert not LEAKS.search(line)
            if line.startswith(b"data: {"):
                self.frames.append(json.loads(line[6:]))
                self.begun.set()
        connection.close()

    def last(self) -> Any:
        self.join(30)
        assert not self.is_alive()
        return self.frames[-1]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server") / "log")
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library is left as it is")
def test_55_what_long_bodies_took_is_given_back(server: Server) -> None:
    """Each thread that has read one would keep about 80 MiB."""
    before = server.resident()
    assert at_once(6, lambda: server.ask("POST", COMPLETE, CROWDED[0][1])[0]) == [400] * 6
    assert server.resident() - before < 64 << 20
    assert server.completes()


def test_44_an_engine_that_is_killed_is_started_again_once(server: Server) -> None:
    """What it had ends with an error, health is red meanwhile, and then all is as before."""
    (child,) = server.children()
    streams = [server.stream(400) for _ in range(2)]
    os.kill(child, signal.SIGKILL)
    for stream in streams:
        assert stream.last()["error"]["code"] == "engine_died"
    assert eventually(lambda: server.ask("GET", "/health/ready")[0] == 503)
    assert server.ask("GET", "/health/live") == (200, {"status": "restarting"})
    status, body = server.ask("POST", "/v1/completions", {"prompt": "a"})
    assert (status, body["error"]["code"]) == (503, "engine_restarting")
    assert eventually(lambda: server.ask("GET", "/health")[0] == 200, 60)
    assert server.completes()
    assert eventually(lambda: server.ask("GET", "/v1/engine/state")[1]["counters"]["held_pages"] == 0)
    assert server.children() != [child]


def test_45_a_signal_lets_streams_end_and_leaves_no_child(server: Server) -> None:
    """Also one for the whole group of processes, as Ctrl-C sends it: the engine's process does not take it."""
    children = server.children()
    assert children
    for child in children:
        os.kill(child, signal.SIGINT)
        os.kill(child, signal.SIGTERM)
    stream = server.stream(40)
    server.process.send_signal(signal.SIGTERM)
    assert eventually(lambda: stream.frames[-1]["choices"][0]["finish_reason"] == "length", 30)
    assert server.process.wait(30) == 0
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    log = server.log.read_text()
    assert "Traceback" not in log
    assert "Once" not in log
    assert all(line.isprintable() for line in log.splitlines())
