"""The sender of benchmark requests, which records the timing and the outcome of each."""

import asyncio
from collections import deque

from ridgeline.insight.bench.clock import Clock
from ridgeline.insight.bench.sse_parser import EventStreamParser
from ridgeline.insight.bench.streamed_response import StreamedResponse, error_in
from ridgeline.insight.bench.transport import HttpResponse, NoResponse, Transport, error_body
from ridgeline.insight.traffic.request_record import RequestRecord

REJECTED = (429, 503)
_MAX_LEAD = 2_000_000  # nanoseconds
_ENOUGH = 4  # requests before `lead` is known; the first ones open connections


class RequestSender:
    """A sender that posts requests and records their timing.

    Records count time from `start` on the clock. A request fails after `timeout` seconds.
    """

    def __init__(self, transport: Transport, clock: Clock, start: int, timeout: float) -> None:
        self.transport, self.clock, self.start, self.timeout = transport, clock, start, timeout
        self._took: deque[int] = deque(maxlen=32)

    @property
    def lead(self) -> int:
        """The recent median of nanoseconds from starting a request to its bytes reaching the socket, at most 2 ms.

        A request that starts this much earlier is sent at its intended time. It is 0 until enough requests were sent.
        """
        return min(_MAX_LEAD, sorted(self._took)[len(self._took) // 2]) if len(self._took) >= _ENOUGH else 0

    async def aim(self, intended: int) -> int:
        """Wait until a request must start being sent to reach the socket at its intended time; return that start."""
        begun = self.start + intended - self.lead
        await self.clock.until(begun)
        return begun

    def now(self) -> int:
        """Return the nanoseconds since the start of the run."""
        return self.clock.now() - self.start

    async def send(self, body: bytes, record: RequestRecord, begun: int | None = None) -> str:
        """Send a request, fill its record, and return the text of the response.

        It raises nothing but CancelledError.

        Args:
            body: The JSON body.
            record: The record to fill.
            begun: When sending began, from `aim`; None if it was not timed.
        """
        answer = StreamedResponse()
        try:
            async with asyncio.timeout(self.timeout), self.transport.post(body) as reply:
                if begun is not None:
                    self._took.append(reply.sent - begun)
                record.sent, record.status = reply.sent - self.start, reply.status
                if reply.status == 200:
                    await self._read(reply, record, answer)
                else:
                    _refused(record, error_in(await error_body(reply)))
        except TimeoutError:
            _failed(record, f"no complete response within {self.timeout:g} s")
        except NoResponse as error:
            _failed(record, error.reason)
        except ValueError as error:
            _failed(record, str(error))
        finally:
            record.ended = self.now()
        return answer.text

    async def _read(self, reply: HttpResponse, record: RequestRecord, answer: StreamedResponse) -> None:
        """Read a streamed response into its record; all chunks of one socket read get the same time."""
        events = EventStreamParser()
        try:
            async for piece in reply.pieces():
                now = self.now()
                for frame in events.feed(piece):
                    if answer.take(frame):
                        record.chunks.append(now)
        finally:  # also for a response that broke off
            record.input, record.cached = answer.prompt, answer.cached
            record.counted = answer.output is not None
            record.output = len(record.chunks) if answer.output is None else answer.output
            record.server_queue, record.server_ttft = map(answer.timings.get, ("queued_ms", "first_token_ms"))
        if answer.error is not None:
            _failed(record, f"an error in the stream: {answer.error}")
        elif not answer.finished:
            _failed(record, "the stream ended before the response was complete")
        elif not record.chunks:
            _failed(record, "a response without content")
        else:
            record.outcome = "ok"


def _refused(record: RequestRecord, words: str) -> None:
    record.outcome = "rejected" if record.status in REJECTED else "failed"
    record.reason = f"HTTP {record.status}" + (f": {words}" if words else "")


def _failed(record: RequestRecord, reason: str) -> None:
    record.outcome, record.reason = "failed", reason
