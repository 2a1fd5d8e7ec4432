"""The threads of an end of transfers, beside the engine's: each reads or writes one connection, and ends with it."""

import threading
import time
from collections.abc import Callable

_BOUND = 2.0  # seconds to wait for all of them


class ConnectionThreads:
    """Started as they are needed, and waited for when all connections are closed.

    Each holds the engine that it works for. One that were the last to hold it would free its tensors while the
    interpreter ends, and Python ends a thread that then asks for its lock in the midst of torch's C++, which ends the
    process with `terminate called without an active exception`.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def start(self, run: Callable[[], None], name: str) -> None:
        """Run something in a thread of its own. From any thread. Raises OSError where there are too many."""
        thread = threading.Thread(target=run, name=f"ridgeline kv {name}", daemon=True)
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()]
            try:
                thread.start()
            except RuntimeError as error:
                raise OSError(f"no thread for a connection: {error}") from None
            self._threads.append(thread)

    def join(self) -> None:
        """Wait until they have ended, and those that they start meanwhile, if that does not take long."""
        end = time.monotonic() + _BOUND
        while (left := end - time.monotonic()) > 0 and (thread := self._alive()) is not None:
            thread.join(left)

    def _alive(self) -> threading.Thread | None:
        with self._lock:
            return next((each for each in self._threads if each.is_alive()), None)
