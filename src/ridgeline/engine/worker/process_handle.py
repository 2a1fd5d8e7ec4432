"""Where an engine's process runs: a child of this process, or, for rooms above, wherever they can start one."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_LAST_WORDS = 5.0  # seconds that an engine has to end by itself before it is killed

NewLine = Callable[[], asyncio.Protocol]
"""Makes this end of a connection."""


class ProcessHandle(Protocol):
    """One process with an engine, from its start to its end."""

    @property
    def far(self) -> bool:
        """Whether it is on another machine, whose clock is another."""

    async def begin(self, line: NewLine, connected: "asyncio.Future[asyncio.Protocol]") -> None:
        """Start it, and return when it has connected: `connected` is then done, with what `line` made. Raises
        RuntimeError in one line where it ends before.
        """

    def end(self, *, at_once: bool) -> None:
        """Have it end: killed, or by itself as its connection has ended, for which it gets a few seconds. From any
        thread.
        """

    def exit_reason(self) -> str:
        """How it ended, after its connection has."""


class ChildProcess:
    """A child of this process, connected over a Unix socket.

    The socket has mode 0600 in a folder of mode 0700 and takes one connection; then both are gone from the disk.
    """

    far = False

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process's."""
        assert self._child is not None
        return self._child.pid

    async def begin(self, line: NewLine, connected: "asyncio.Future[asyncio.Protocol]") -> None:
        """As Place.begin."""
        with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:  # of mode 0700
            path = Path(folder) / "engine"
            server = await asyncio.get_running_loop().create_unix_server(line, path)
            path.chmod(0o600)
            self._child = subprocess.Popen(
                [sys.executable, "-m", "ridgeline.engine.worker.engine_child", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
            try:
                while not connected.done():
                    if self._child.poll() is not None:
                        raise RuntimeError(
                            f"the engine's process ended as it began, with exit code {self._child.returncode}"
                        )
                    await asyncio.wait([connected], timeout=0.1)
            finally:
                server.close()

    def end(self, *, at_once: bool) -> None:
        """As Place.end."""
        if self._child is None:
            return
        if at_once:
            self._child.kill()
        self._code()

    def exit_reason(self) -> str:
        """As Place.exit_reason; its end is awaited or brought about: nobody talks to it any more."""
        code = self._code()
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with exit code {code}"

    def _code(self) -> int:
        """Its exit code; one that does not end by itself is killed."""
        assert self._child is not None
        try:
            return self._child.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()
