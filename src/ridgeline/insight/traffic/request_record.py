"""Record: what a client saw of one request, in nanoseconds; and many of them as columns."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Literal

import msgspec

Outcome = Literal["ok", "rejected", "failed", "unfinished"]
"""ok: answered to its end. rejected: 429 or 503. failed: anything else. unfinished: given up when the run ended."""


class RequestRecord(msgspec.Struct):
    """One request. All moments are nanoseconds after the start of the run.

    index: its place in the schedule. session, turn: the conversation that it belongs to. intended: when it was to be
    sent (a); in a closed loop, where nothing is scheduled, when it was. ready: when it might be: later than intended
    where the number of requests under way is capped, and when its user was free in a closed loop. sent:
    its bytes handed to the socket (s). chunks: when each piece with content was decoded (c_1..c_k). ended: when the
    answer was over. input, output: tokens by the server's count; counted: whether it gave one, else output is the
    number of pieces. cached: prompt tokens that the server had kept. server_queue, server_ttft: milliseconds that the
    request waited, and took to its first token, by the server's own clock, where it says. reason: of what is not ok.
    """

    index: int
    intended: int
    ready: int
    session: int = 0
    turn: int = 0
    process: int = 0
    sent: int | None = None
    ended: int | None = None
    chunks: list[int] = msgspec.field(default_factory=list)
    input: int | None = None
    output: int = 0
    counted: bool = False
    cached: int | None = None
    server_queue: float | None = None
    server_ttft: float | None = None
    status: int | None = None
    outcome: Outcome = "unfinished"
    reason: str = ""

    @property
    def ttft(self) -> int | None:
        """c_1 - a."""
        return self.chunks[0] - self.intended if self.chunks else None

    @property
    def service_ttft(self) -> int | None:
        """c_1 - s: without what the client itself waited."""
        return self.chunks[0] - self.sent if self.chunks and self.sent is not None else None

    @property
    def tpot(self) -> float | None:
        """(c_k - c_1) / (T - 1); None for fewer than two tokens, and for an answer that came in one piece."""
        several = len(self.chunks) > 1 and self.output > 1
        return (self.chunks[-1] - self.chunks[0]) / (self.output - 1) if several else None

    @property
    def e2e(self) -> int | None:
        """c_k - a."""
        return self.chunks[-1] - self.intended if self.chunks else None

    @property
    def queue_delay(self) -> int | None:
        """S - a: waiting on the client's side."""
        return self.sent - self.intended if self.sent is not None else None

    @property
    def lateness(self) -> int | None:
        """S less when it might be sent: what the load generator is to blame for."""
        return self.sent - max(self.ready, self.intended) if self.sent is not None else None

    @property
    def gaps(self) -> list[int]:
        """Between successive pieces."""
        return [after - before for before, after in pairwise(self.chunks)]

    @property
    def tokens_per_gap(self) -> float:
        """Tokens that came after each gap, on average: (T - 1) / (k - 1)."""
        return (self.output - 1) / (len(self.chunks) - 1) if len(self.chunks) > 1 and self.output > 1 else 1.0

    @property
    def over(self) -> int:
        """The last moment that is known of it: c_k of an answer, the end of what is none."""
        if self.outcome == "ok" and self.chunks:
            return self.chunks[-1]
        return next(at for at in (self.ended, self.sent, self.ready) if at is not None)


COLUMNS = (
    "index", "session", "turn", "process", "outcome", "status", "reason", "intended", "ready", "sent", "first_token",
    "last_token", "ended", "input_tokens", "output_tokens", "output_counted", "cached_tokens", "chunks", "ttft",
    "service_ttft", "tpot", "e2e", "queue_delay", "worst_gap", "server_queue", "server_ttft",
)  # fmt: skip


def row(record: RequestRecord) -> tuple[object, ...]:
    """The columns of one request; moments and lengths of time in seconds, None for what it has not."""
    return (
        record.index, record.session, record.turn, record.process, record.outcome, record.status, record.reason,
        *map(_seconds, (record.intended, record.ready, record.sent)),
        *map(_seconds, (record.chunks[0], record.chunks[-1]) if record.chunks else (None, None)),
        _seconds(record.ended), record.input, record.output, record.counted, record.cached, len(record.chunks),
        *map(_seconds, (record.ttft, record.service_ttft, record.tpot, record.e2e, record.queue_delay)),
        _seconds(max(record.gaps, default=None)),
        *(None if told is None else told / 1e3 for told in (record.server_queue, record.server_ttft)),
    )  # fmt: skip


def columns(records: Iterable[RequestRecord]) -> dict[str, list[object]]:
    """Many requests, column by column."""
    rows = [row(record) for record in records]
    return {name: [cells[place] for cells in rows] for place, name in enumerate(COLUMNS)}


def _seconds(value: float | None) -> float | None:
    return None if value is None else value / 1e9
