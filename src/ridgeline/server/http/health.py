"""Health: what the server says of itself before anybody is asked for a key."""

import asyncio
import logging
from typing import Literal

from starlette.responses import JSONResponse, Response

from ridgeline.engine.async_llm import AsyncLLM

State = Literal["loading", "ready", "restarting", "stalled", "dead", "draining"]

WATCH_SECONDS = 1.0

logger = logging.getLogger(__name__)


class Health:
    """What state the server is in.

    `loading` until there is an engine, `restarting` while another is started in place of one that died, `stalled` when
    it has said nothing for `stalled_seconds` though requests wait for it, `dead` when it is gone for good. `draining`:
    the server is to end and finishes what it has.
    """

    def __init__(self, stalled_seconds: float) -> None:
        self.llm: AsyncLLM | None = None
        self.draining = False
        self._alive = True
        self._stalled_seconds = stalled_seconds
        self._heard = self._still = 0.0  # what the engine had said, and for how many seconds it has not said more

    @property
    def state(self) -> State:
        """Of the server now."""
        if self.llm is None:
            return "draining" if self.draining else "loading"
        if self.llm.ended.done():
            return "dead"
        if self._still >= self._stalled_seconds:
            return "stalled"
        if self.draining:
            return "draining"
        return "ready" if self.llm.alive else "restarting"

    async def watch(self) -> None:
        """Look whether the engine moves, for ever."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self.look(WATCH_SECONDS)

    def look(self, seconds: float) -> None:
        """So many seconds have passed since the last look."""
        if self.llm is None:
            return
        if self.llm.alive != self._alive and not self.llm.ended.done():
            self._alive = self.llm.alive
            logger.warning("the engine is back" if self._alive else "the engine's process died; another is started")
        waits = self.llm.awaited > 0 and self.llm.alive and self.llm.heard == self._heard
        self._heard, self._still = self.llm.heard, self._still + seconds if waits else 0.0

    def answer(self, path: str) -> Response:
        """To one of PUBLIC. /health/live: whether the process is worth keeping. The others: whether a request could be
        answered now."""
        state = self.state
        good = state not in ("dead", "stalled") if path == "/health/live" else state == "ready"
        return JSONResponse({"status": state}, 200 if good else 503, {"cache-control": "no-store"})
