"""The process that an engine runs in: a child of this process, or one that a higher layer starts elsewhere."""

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

_LAST_WORDS = 5.0  # seconds for an engine to end by itself before it is killed

NewLine = Callable[[], asyncio.Protocol]
"""A function that makes this process's end of a connection to the engine."""


class ProcessHandle(Protocol):
    """The handle of one process with an engine, from its start to its end."""

    @property
    def is_remote(self) -> bool:
        """Whether the process runs on another machine, which has another clock."""

    async def begin(self, line: NewLine, connected: "asyncio.Future[asyncio.Protocol]") -> None:
        """Start the process, and return when it has connected.

        Args:
            line: Makes this end of the connection.
            connected: A future that completes with this end of the connection.

        Raises:
            RuntimeError: If the process ends before; in one line.
        """

    def end(self, *, at_once: bool) -> None:
        """End the process. Any thread may call this.

        Args:
            at_once: Whether to kill it; if not, it gets a few seconds to end by itself because its connection has
                ended.
        """

    def exit_reason(self) -> str:
        """Return how the engine's process ended, after its connection has ended."""


class ChildProcess:
    """The handle of a child of this process, connected over a Unix socket.

    The socket has mode 0600 in a folder of mode 0700 and takes one connection; then both are gone from the disk.
    """

    is_remote = False

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id of the child."""
        assert self._child is not None
        return self._child.pid

    async def begin(self, line: NewLine, connected: "asyncio.Future[asyncio.Protocol]") -> None:
        """Start the child, and return when it has connected.

        Raises:
            RuntimeError: If the child ends before; in one line.
        """
        with tempfile.TemporaryDirectory(prefix="ridgeline-") as folder:  # has mode 0700
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
                            f"the engine's process ended at its start, with exit code {self._child.returncode}"
                        )
                    await asyncio.wait([connected], timeout=0.1)
            finally:
                server.close()

    def end(self, *, at_once: bool) -> None:
        """End the child: kill it, or wait a few seconds for it to end by itself and kill it then."""
        if self._child is None:
            return
        if at_once:
            self._child.kill()
        self._code()

    def exit_reason(self) -> str:
        """Return how the child process ended; one that still runs after its connection has ended gets a few seconds."""
        code = self._code()
        return f"its process was killed by signal {-code}" if code < 0 else f"its process ended with exit code {code}"

    def _code(self) -> int:
        """Return the child's exit code; kill a child that does not end by itself."""
        assert self._child is not None
        try:
            return self._child.wait(_LAST_WORDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            return self._child.wait()
