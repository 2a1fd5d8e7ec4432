"""The recorder of `serve --record FILE`: it writes requests and steps as JSON lines for a replay, without text.

Prompts and responses are recorded by their lengths and by names of their full pages. A name is a hash under a random
key that is never stored: equal prefixes get equal names, but a name does not reveal its text, and a guess cannot be
verified. docs/serving.md describes the columns.
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
_MAX_WAITING = 100_000  # lines that may wait for the disk; further ones are dropped and counted
logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pending:
    """A request whose line waits for its end and for the lines of earlier requests; the file is in order of arrival."""

    line: dict[str, Any]
    names: "_Names"
    ended: bool = False


class TrafficRecorder:
    """A recorder of requests and steps; an `Observer` of requests, which also gets each step (`stepped`).

    `close` ends the file.
    """

    def __init__(self, path: Path, info: EngineInfo, model: str, now: int) -> None:
        """Create the file of a recording and write its header.

        Args:
            path: The file.
            info: The description of the engine.
            model: The model name in responses.
            now: The time origin of the recording, in nanoseconds of `time.perf_counter_ns`.

        Raises:
            ValueError: If the file exists or cannot be created; a recording is never overwritten.
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
        """Write a line for a rejected request, which is offered load but not traffic of the engine."""
        self._lines.write({"kind": "refused", "at": self._seconds(live.spec.arrived), "input": live.prompt_tokens})

    def arrived(self, live: InFlightRequest) -> None:
        """Start the line of a request with hashes of its prompt's pages.

        The line is written once this request and all that arrived before it have ended.
        """
        params, names = live.spec.params, _Names(self._key, self._page, live.spec.cache_namespace)
        names.extend(live.spec.prompt)
        # A request whose prompt took long to tokenize is recorded after those that overtook it.
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
        """Record when the engine queued the request, and hash the pages of its output.

        The engine queues it after its text was encoded and the current step has ended. The request itself counts its
        tokens. With a single choice, the output continues the page names, because the next prompt of a conversation
        contains it.
        """
        pending = self._open[live]
        if pending.line["queued"] is None and event.timing is not None:
            pending.line["queued"] = self._seconds(event.timing.arrived)
        if event.token is not None and live.spec.params.n == 1:
            pending.names.extend((event.token.token,))

    def stepped(self, report: StepReport, stats: Stats) -> None:
        """Write a line for an engine step to the recording."""
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
        """Return a service tier as a field of a recorded line; {} for a tier that counts as no class.

        Default tiers and those that are no plain name have no class, because a line holds no text; neither have new
        tiers once there are as many classes as analysis distinguishes.
        """
        if tier in _ORDINARY or not _NAME.fullmatch(tier):
            return {}
        if tier not in self._classes and len(self._classes) >= MAX_CLASSES - 1:  # one more class is "none"
            return {}
        self._classes.add(tier)
        return {"class": tier}

    def _replica(self, report: StepReport) -> dict[str, int]:
        """Return the replica that ran a step as a field of a recorded line; {} for the first replica."""
        replica = replica_of(report.items[0][0]) if report.items else 0
        return {"replica": replica} if replica else {}

    def ended(self, live: InFlightRequest, error: BaseException | None) -> None:
        """Write the line of a finished request, and the lines that waited for it."""
        pending = self._open.pop(live)
        whole = len(live.finishes) == live.spec.params.n and FinishReason.ERROR not in live.finishes
        finish = str(live.finishes[-1]) if whole else "error" if failed_by_engine(error) else "abort"
        pending.line |= {"output": live.tokens, "cached": live.cached, "finish": finish}
        pending.ended = True
        while self._pending and self._pending[0].ended:
            self._lines.write(self._pending.popleft().line)

    def close(self) -> None:
        """Write the remaining lines and wait until they are in the file."""
        self._lines.close()

    def _seconds(self, at: int) -> float:
        return round((at - self._start) * NANOSECONDS, 6)


class _Names:
    """The hashes of the full pages of one growing token sequence, as the recording identifies them.

    Each name depends on all tokens up to the end of its page, and on the cache namespace of the tenant. `pages` holds
    the names so far; the ids of an incomplete page are stored until it is full.
    """

    def __init__(self, key: bytes, page: int, root: bytes) -> None:
        self._key, self._page = key, page
        self._last, self._left = self._digest(root), array("q")
        self.pages: list[str] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Add tokens to the sequence, and hash the pages that they fill."""
        self._left.extend(tokens)
        full = len(self._left) // self._page * self._page
        for start in range(0, full, self._page):
            self._last = self._digest(self._last + self._left[start : start + self._page].tobytes())
            self.pages.append(self._last.hex())
        del self._left[:full]

    def _digest(self, message: bytes) -> bytes:
        return hashlib.blake2b(message, key=self._key, digest_size=8).digest()


def check_new_file(path: Path) -> None:
    """Raise ValueError if a recording certainly cannot be created; servers call this before they load a model."""
    if path.exists():
        raise _exists(path)
    if not path.parent.is_dir():
        raise ValueError(f"cannot write {path}: there is no folder {path.parent}; make it first")


def _exists(path: Path) -> ValueError:
    return ValueError(f"{path} exists already, and a recording does not overwrite files: give another file")


def _create(path: Path) -> BinaryIO:
    """Create a new file that only its owner can access; raise ValueError if that fails."""
    try:
        return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
    except FileExistsError:
        raise _exists(path) from None
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


class _Lines:
    """The lines of a file, which a thread writes so that a slow disk does not stop the server."""

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
            logger.warning("the recording lacks %d lines of %s, because the disk was too slow", self._lost, self._path)

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
