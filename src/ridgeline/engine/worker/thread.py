"""An engine in a thread of its own, which alone touches it."""

import queue
import threading
from collections.abc import Callable, Sequence

from ridgeline.engine.setup import Loaded
from ridgeline.engine.transfer.settings import KVTransfer
from ridgeline.engine.worker.loop import EngineLoop
from ridgeline.engine.worker.messages import Died, FromEngine, ToEngine


class EngineThread:
    """Steps a loaded engine. What it says is said in its thread."""

    def __init__(self, loaded: Loaded, transfer: KVTransfer | None = None) -> None:
        """transfer: prompts' keys and values go to other engines, or come from them; None for neither."""
        self.texts, self.info = loaded.texts, loaded.info()
        self._loaded, self._transfer = loaded, transfer
        self._inbox: queue.SimpleQueue[ToEngine | None] = queue.SimpleQueue()
        self._closing = False
        self._thread: threading.Thread | None = None

    def connect(self, tell: Callable[[FromEngine], None]) -> None:
        """Start; `tell` takes what the engine says. Raises as EngineLoop.transfer."""
        loop = EngineLoop(self._loaded.engine, tell)
        if self._transfer is not None:
            loop.transfer(self._transfer, self._loaded, lambda: self._inbox.put(None))
        self._thread = threading.Thread(target=self._run, args=(loop, tell), name="ridgeline engine", daemon=True)
        self._thread.start()

    def send(self, message: ToEngine) -> None:
        """Have the engine do something, before its next step."""
        self._inbox.put(message)

    def close(self) -> None:
        """Stop after the present step."""
        self._closing = True
        self._inbox.put(None)
        assert self._thread is not None
        self._thread.join()

    def _run(self, loop: EngineLoop, tell: Callable[[FromEngine], None]) -> None:
        reason = "closed"
        try:
            loop.run(self._messages)
        except Exception as error:  # a bug of ours: whoever waits must hear of it rather than wait for ever
            reason = str(error)
            raise
        finally:
            tell(Died(reason))

    def _messages(self, wait: bool) -> Sequence[ToEngine] | None:
        messages = [self._inbox.get()] if wait else []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return None if self._closing else [message for message in messages if message is not None]
