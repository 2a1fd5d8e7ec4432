"""The record of a request as its client observed it, in nanoseconds, and tables of many records."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

import msgspec

Outcome = Literal["ok", "rejected", "failed", "unfinished"]
"""The outcome of a request.

`ok`: the response is complete. `rejected`: HTTP 429 or 503. `failed`: any other failure. `unfinished`: the run ended
first.
"""


class RequestRecord(msgspec.Struct):
    """The record of one request. Times are nanoseconds after the start of the run."""

    index: int
    """The position of the request's conversation in the schedule."""
    intended: int
    """The intended send time (a); in a closed loop, which schedules nothing, the actual one."""
    ready: int
    """The earliest possible send time of the request.

    It is later than intended if the request had to wait for a slot under limited concurrency; in a closed loop, it is
    when the user became free, after any think time.
    """
    session: int = 0
    """The number of the conversation to which the request belongs."""
    turn: int = 0
    """The number of the turn in its conversation."""
    process: int = 0
    sent: int | None = None
    """The time at which the request was written to the socket (s)."""
    ended: int | None = None
    """The time at which the response ended."""
    chunks: list[int] = msgspec.field(default_factory=list)
    """The time at which each chunk with content was decoded (c_1..c_k)."""
    input: int | None = None
    """The prompt tokens by the server's count."""
    output: int = 0
    """The output tokens by the server's count, or the number of chunks if it did not count."""
    counted: bool = False
    """Whether the server reported a token count."""
    cached: int | None = None
    """The prompt tokens that the server found in its cache."""
    server_queue: float | None = None
    """The milliseconds that the request waited in the server, if it reports them."""
    server_ttft: float | None = None
    """The milliseconds to the first token by the server's clock, if it reports them."""
    status: int | None = None
    outcome: Outcome = "unfinished"
    reason: str = ""
    """The reason why the request was not completed; empty if it was."""

    @property
    def ttft(self) -> int | None:
        """The time to first token from the intended send time: c_1 - a."""
        return self.chunks[0] - self.intended if self.chunks else None

    @property
    def service_ttft(self) -> int | None:
        """The time to first token from the actual send time: c_1 - s."""
        return self.chunks[0] - self.sent if self.chunks and self.sent is not None else None

    @property
    def tpot(self) -> float | None:
        """The time per output token after the first: (c_k - c_1) / (T - 1).

        It is None for fewer than two tokens, and for a response in one chunk.
        """
        several = len(self.chunks) > 1 and self.output > 1
        return (self.chunks[-1] - self.chunks[0]) / (self.output - 1) if several else None

    @property
    def e2e(self) -> int | None:
        """The end-to-end latency from the intended send time: c_k - a."""
        return self.chunks[-1] - self.intended if self.chunks else None

    @property
    def queue_delay(self) -> int | None:
        """The time that the request waited at the client: s - a."""
        return self.sent - self.intended if self.sent is not None else None

    @property
    def lateness(self) -> int | None:
        """The delay that the load generator caused: the send time less the earliest possible one.

        It is 0 in a closed loop, whose intended send times are the actual ones, and for a request that a timer sent
        some microseconds early.
        """
        return max(0, self.sent - max(self.ready, self.intended)) if self.sent is not None else None

    @property
    def gaps(self) -> list[int]:
        """The times between successive chunks of the response."""
        return [after - before for before, after in pairwise(self.chunks)]

    @property
    def tokens_per_gap(self) -> float:
        """The average number of output tokens per gap between chunks, for T tokens in k chunks: (T - 1) / (k - 1).

        It is 1 for a response with fewer than two tokens or chunks.
        """
        return (self.output - 1) / (len(self.chunks) - 1) if len(self.chunks) > 1 and self.output > 1 else 1.0

    @property
    def over(self) -> int:
        """The last known time of the request: c_k of a complete response, else its end, else the time it was sent."""
        if self.outcome == "ok" and self.chunks:
            return self.chunks[-1]
        return next(at for at in (self.ended, self.sent, self.ready) if at is not None)


COLUMNS = (
    "index", "session", "turn", "process", "outcome", "status", "reason", "intended", "ready", "sent", "first_token",
    "last_token", "ended", "input_tokens", "output_tokens", "output_counted", "cached_tokens", "chunks", "ttft",
    "service_ttft", "tpot", "e2e", "queue_delay", "worst_gap", "server_queue", "server_ttft",
)  # fmt: skip


def row(record: RequestRecord) -> tuple[object, ...]:
    """Return one request's record as a table row, with times in seconds and None for missing values."""
    return (
        record.index, record.session, record.turn, record.process, record.outcome, record.status, record.reason,
        *map(_seconds, (record.intended, record.ready, record.sent)),
        *map(_seconds, (record.chunks[0], record.chunks[-1]) if record.chunks else (None, None)),
        _seconds(record.ended), record.input, record.output, record.counted, record.cached, len(record.chunks),
        *map(_seconds, (record.ttft, record.service_ttft, record.tpot, record.e2e, record.queue_delay)),
        _seconds(max(record.gaps, default=None)),
        *(None if own is None else own / 1e3 for own in (record.server_queue, record.server_ttft)),
    )  # fmt: skip


def columns(records: Iterable[RequestRecord]) -> dict[str, list[object]]:
    """Return many request records as a table: a list of values for each column name."""
    rows = [row(record) for record in records]
    return {name: [cells[place] for cells in rows] for place, name in enumerate(COLUMNS)}


def _seconds(value: float | None) -> float | None:
    return None if value is None else value / 1e9
