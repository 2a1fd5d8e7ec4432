"""A loop whose time is a number, and servers that are known exactly: what they do to a request is written down here."""

import asyncio
import json
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from ridgeline.insight.bench.transport import HttpResponse, NoResponse

MS = 1_000_000
_Value = TypeVar("_Value")


class _Skipping(selectors.SelectSelector):
    """Waits for nothing: the time that a loop would have waited is over at once."""

    def __init__(self, loop: "VirtualLoop") -> None:
        super().__init__()
        self.loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "everything waits, and nothing is to come"
        self.loop.nanoseconds += round(timeout * 1e9)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock stands still but while it would sleep."""

    def __init__(self) -> None:
        self.nanoseconds = 0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return self.nanoseconds / 1e9


class VirtualClock:
    """The loop's time."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.loop = loop

    def now(self) -> int:
        return self.loop.nanoseconds

    async def until(self, moment: int) -> None:
        await asyncio.sleep(max(0, moment - self.now()) / 1e9)


def play(scene: Callable[[VirtualClock], Coroutine[Any, Any, _Value]]) -> _Value:
    """What happens in a scene of virtual time."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(scene(VirtualClock(loop)))
    finally:
        loop.close()


# -- what a stream says -----------------------------------------------------------------------------------------------


def frame(value: object) -> bytes:
    return f"data: {json.dumps(value)}\n\n".encode()


def text(word: str = "x") -> bytes:
    return frame({"choices": [{"index": 0, "text": word, "finish_reason": None}]})


END = frame({"choices": [{"index": 0, "text": "", "finish_reason": "length"}]})
DONE = b"data: [DONE]\n\n"


def usage(prompt: int, output: int, cached: int | None = None) -> bytes:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return frame({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}})


Script = list[tuple[int, bytes]]
"""What comes of a request: nanoseconds after the server took it up, and bytes."""


def tokens(count: int, first: int, gap: int) -> Script:
    """Tokens one by one, then how it ended and the usage, 1 ms later."""
    pieces = [(first + place * gap, text()) for place in range(count)]
    return [*pieces, (first + (count - 1) * gap + MS, END + usage(7, count) + DONE)]


class FakeServer:
    """A transport to a server that answers as `answers` says, so many requests at a time, the rest in a queue.

    answers: from the body of a request (its fields) and its number to a status and a script. at_once: None for all.
    """

    def __init__(
        self,
        clock: VirtualClock,
        answers: Callable[[Mapping[str, Any], int], tuple[int, Script]],
        at_once: int | None = None,
        handing_over: int = 0,
    ) -> None:
        self.clock, self.answers, self.handing_over = clock, answers, handing_over
        self.bodies: list[dict[str, Any]] = []
        self.moments: list[int] = []
        self.under_way = self.most_under_way = 0
        self._places = asyncio.Semaphore(at_once or 1_000_000)

    @asynccontextmanager
    async def post(self, body: bytes) -> AsyncIterator[HttpResponse]:
        await self.clock.until(self.clock.now() + self.handing_over)
        self.bodies.append(json.loads(body))
        self.moments.append(self.clock.now())
        status, script = self.answers(self.bodies[-1], len(self.bodies) - 1)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            yield FakeReply(self.clock, self._places, status, script)
        finally:
            self.under_way -= 1


class FakeReply:
    def __init__(self, clock: VirtualClock, places: asyncio.Semaphore, status: int, script: Script) -> None:
        self.status, self.sent = status, clock.now()
        self._clock, self._places, self._script = clock, places, script

    async def pieces(self) -> AsyncIterator[bytes]:
        async with self._places:
            taken_up = self._clock.now()
            for after, piece in self._script:
                await self._clock.until(taken_up + after)
                if piece == CUT:
                    raise NoResponse("the connection broke: ServerDisconnectedError")
                yield piece


CUT = b"(the connection breaks here)"
