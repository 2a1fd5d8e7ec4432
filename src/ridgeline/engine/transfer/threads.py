"""The threads of an end of a transfer, next to the engine's: each reads or writes one connection, and ends with it."""

import threading
import time
from collections.abc import Callable

_BOUND = 2.0  # seconds to wait for all of them


class ConnectionThreads:
    """The threads of connections, which start as needed and are joined when all connections are closed.

    Each holds a reference to the engine that it works for. If a thread were the last to hold it, it would free the
    engine's tensors while the interpreter shuts down. Python ends a thread that then requests the GIL in the middle of
    torch's C++ code, which ends the process with `terminate called without an active exception`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, run: Callable[[], None], name: str) -> None:
        """Run a function in a new thread. Any thread may call this.

        Raises:
            OSError: If there are too many threads.
        """
        thread = threading.Thread(target=run, name=f"ridgeline kv {name}", daemon=True)
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(f"cannot start a thread for a connection: {error}") from None
            self._threads.append(thread)

    def join(self) -> None:
        """Wait, for a limited time, until all threads have ended, also those that they start meanwhile."""
        end = time.monotonic() + _BOUND
        while (left := end - time.monotonic()) > 0 and (thread := self._alive()) is not None:
            thread.join(left)

    def _alive(self) -> threading.Thread | None:
        with self._lock:
            return next((each for each in self._threads if each.is_alive()), None)
