"""`serve --record FILE`: what traffic came and what steps it made, as lines of JSON to be replayed. No text.

Prompts and answers are told by their lengths and names of their full pages, hashes under a key that is drawn at the
start and kept nowhere: equal beginnings have equal names, and nobody can tell from a name which text it stands for, or
try one. docs/serving.md has the columns.
"""

import hashlib
import logging
import os
import queue
import re
import secrets
import threading
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ridgeline.engine.events import Event, Stats
from ridgeline.engine.request import NANOSECONDS, FinishReason
from ridgeline.engine.worker.engine_messages import EngineInfo, StepReport, replica_of
from ridgeline.insight.traffic.slo import MAX_CLASSES
from ridgeline.server.errors import ApiError
from ridgeline.server.in_flight import InFlightRequest
from ridgeline.server.service import failed_by_engine

_ORDINARY = ("", "auto", "default")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,40}")
_MAX_WAITING = 100_000  # lines that the disk may lag behind; further ones are lost, and counted
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pending:
    """A request whose line waits for its end, and for those that came before it: the file is in order of arrival."""

    line: dict[str, Any]
    names: "_Names"
    ended: bool = False


class TrafficRecorder:
    """Told of requests as an Observer, of steps by `stepped`. `close` ends the file."""

    def __init__(self, path: Path, info: EngineInfo, model: str, now: int) -> None:
        """now: nanoseconds of time.perf_counter_ns, from which moments are counted. Raises ValueError if the file
        exists or cannot be made: a recording is never written over.
        """
        self._start, self._page, self._key = now, info.page_size, secrets.token_bytes(32)
        self._at = now
        self._pending: deque[_Pending] = deque()
        self._open: dict[InFlightRequest, _Pending] = {}
        self._classes: set[str] = set()
        self._lines = _Lines(_create(path), path)
        self._lines.write(
            {
                "kind": "ridgeline-record",
                "format": 1,
                "page_size": info.page_size,
                "model": model,
                "pages": info.pages,
                "context": info.context,
                "requests": info.requests,
                "step_tokens": info.step_tokens,
                "device": info.device,
                **({"replicas": info.replicas} if info.replicas > 1 else {}),
            }
        )

    def refused(self, live: InFlightRequest, error: ApiError) -> None:
        """A line of its own kind: it is no traffic that the engine had, but load that was offered."""
        self._lines.write({"kind": "refused", "at": self._seconds(live.spec.arrived), "input": live.prompt_tokens})

    def arrived(self, live: InFlightRequest) -> None:
        """Name its pages; its line comes with its end."""
        params, names = live.spec.params, _Names(self._key, self._page, live.spec.cache_namespace)
        names.extend(live.spec.prompt)
        # A request whose prompt took long to read comes after those that overtook it.
        self._at = max(self._at, live.spec.arrived)
        line = {
            "kind": "request",
            "at": self._seconds(self._at),
            "queued": None,
            "input": live.prompt_tokens,
            "output": 0,
            "pages": names.pages,
            "n": params.n,
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "stream": live.generation.stream,
            **self._class(live.spec.service_tier),
        }
        self._open[live] = pending = _Pending(line, names)
        self._pending.append(pending)

    def event(self, live: InFlightRequest, event: Event) -> None:
        """Say when the engine had it: after its text was read, and after the step that ran then. Tokens are counted by
        the request itself; those of an only answer go on with the pages, for the next prompt of a conversation has
        them.
        """
        pending = self._open[live]
        if pending.line["queued"] is None and event.timing is not None:
            pending.line["queued"] = self._seconds(event.timing.arrived)
        if event.token is not None and live.spec.params.n == 1:
            pending.names.extend((event.token.token,))

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """A line."""
        self._lines.write(
            {
                "kind": "step",
                **self._replica(report),
                "step": report.step,
                "at": self._seconds(report.started),
                "seconds": report.seconds,
                "predicted": report.predicted,
                "sequences": len(report.items),
                "positions": report.positions,
                "running": stats.running,
                "waiting": stats.waiting,
                "held_pages": stats.held_pages,
            }
        )

    def _class(self, tier: str) -> dict[str, str]:
        """The class that a tier is recorded as. None where it asks for nothing in particular, or is no name: a line
        holds no text. None, too, once there are as many as are told apart.
        """
        if tier in _ORDINARY or not _NAME.fullmatch(tier):
            return {}
        if tier not in self._classes and len(self._classes) >= MAX_CLASSES - 1:  # beside those without
            return {}
        self._classes.add(tier)
        return {"class": tier}

    def _replica(self, report: StepReport) -> dict[str, int]:
        """Which of several replicas ran a step, where it is not the first: its requests' numbers say it."""
        replica = replica_of(report.items[0][0]) if report.items else 0
        return {"replica": replica} if replica else {}

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Write it, and those that waited for it."""
        pending = self._open.pop(live)
        whole = len(live.finishes) == live.spec.params.n and FinishReason.ERROR not in live.finishes
        finish = str(live.finishes[-1]) if whole else "error" if failed_by_engine(error) else "abort"
        pending.line |= {"output": live.tokens, "cached": live.cached, "finish": finish}
        pending.ended = True
        while self._pending and self._pending[0].ended:
            self._lines.write(self._pending.popleft().line)

    def close(self) -> None:
        """Write what is left, and wait until it is on the disk."""
        self._lines.close()

    def _seconds(self, at: int) -> float:
        return round((at - self._start) * NANOSECONDS, 6)


class _Names:
    """Names for the full pages of tokens that come one after the other: each stands for all up to its end, and for what
    separates tenants. pages: those so far; of what fills none only the ids are kept, until it does.
    """

    def __init__(self, key: bytes, page: int, root: bytes) -> None:
        self._key, self._page = key, page
        self._last, self._left = self._digest(root), array("q")
        self.pages: list[str] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Further tokens."""
        self._left.extend(tokens)
        full = len(self._left) // self._page * self._page
        for start in range(0, full, self._page):
            self._last = self._digest(self._last + self._left[start : start + self._page].tobytes())
            self.pages.append(self._last.hex())
        del self._left[:full]

    def _digest(self, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self._key, digest_size=8).digest()


def _create(path: Path) -> BinaryIO:
    """A new file, for its owner alone. Raises ValueError."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except FileExistsError:
        raise ValueError(f"{path} exists; a recording is not written over: name another file") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


class _Lines:
    """Lines of a file, written by a thread: a disk that hangs does not stop the server."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._path, self._file = path, file
        self._queue: queue.Queue[dict[str, Any] | None] = queue.Queue(_MAX_WAITING)
        self._lost = 0
        self._thread = threading.Thread(target=self._run, name="ridgeline record", daemon=True)
        self._thread.start()

    def write(self, line: dict[str, Any]) -> None:
        try:
            self._queue.put_nowait(line)
        except queue.Full:
            self._lost += 1

    def close(self) -> None:
        self._queue.put(None)
        self._thread.join()
        if self._lost:
            logger.warning("%d lines of %s are missing: the disk did not keep up", self._lost, self._path)

    def _run(self) -> None:
        encode = msgspec.json.Encoder().encode
        line: dict[str, Any] | None = None
        try:
            with self._file as file:
                while (line := self._queue.get()) is not None:
                    file.write(encode(line) + b"\n")
                    if self._queue.empty():
                        file.flush()
        except OSError as error:
            logger.error("%s cannot be written any more: %s; the recording ends here", self._path, error.strerror)
            self._lost += 1
            while line is not None:
                line = self._queue.get()
                self._lost += line is not None
