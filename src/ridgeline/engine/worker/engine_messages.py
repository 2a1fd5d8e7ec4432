"""Messages between an engine and whoever uses it from another thread or process: plain data.

To the engine: Add, Abort, StopChoice, Watch, Look, Inspect. From it: Ready once, then Added or Refused for each Add,
Inspected or Refused for each Inspect, Begun before the first step of a request, one Stepped a step, and a Snapshot for
each Look; where prompts are asked of other engines (engine/transfer), Transferred and PeerChanged. Died is said by
whoever notices that the engine is gone.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from ridgeline.engine.events import Stats, Stop, TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.pool import PageState
from ridgeline.engine.request import NANOSECONDS

_REQUESTS = 1 << 40  # numbers that a replica has for its requests: a page reads 2**53 of them exactly


def first_of(replica: int) -> int:
    """The number of the first request of one of several engines behind a server."""
    return replica * _REQUESTS + 1


def replica_of(request: int) -> int:
    """Which of them a request is with."""
    return request // _REQUESTS


class VectorInfo(msgspec.Struct, frozen=True):
    """What is said of a model whose answer to a text is a vector.

    width: its entries. pooling: how the states of a text become one. labels: whose scores they are; 0 where it is an
    embedding. squashed: whether a score is read as sigmoid(score). vocabulary: ids of one text. segments: texts that it
    tells apart, whose ids follow each other.
    """

    width: int
    pooling: str
    labels: int
    squashed: bool
    vocabulary: int
    segments: int


class EngineInfo(msgspec.Struct, frozen=True):
    """The description that an engine gives of itself when it is ready.

    context: positions a sequence may have. vocabulary: how many token ids there are. capacity: positions of one
    request that KV memory holds. page_size: positions a KV page. pages: how many there are. requests: most under way at
    a time. step_tokens: most positions a step runs. threads: that it computes with. weight_bytes, kv_bytes: taken.
    device: what steps are predicted for, None where nothing is predicted. calibrated: whether its figures were measured
    on this machine.
    dtype: the number format of the weights, of the embedding where they have several. adapters: the names of those that
    are loaded. vectors: None of a model that generates. encoder_context: positions that its encoder takes, 0 where it
    has none. encoder_width: numbers of each, where it reads features and no ids. held: what KV memory has room for, in
    words, "" where layers keep nothing. concurrency: requests of the whole context that it holds, with all that their
    encoder may read. unshared: why equal prefixes share none of it, "" where they may. replicas: engines
    whose requests, pages and bytes these are. warnings: as of Loaded.
    """

    context: int
    vocabulary: int
    capacity: int
    page_size: int
    pages: int
    requests: int
    step_tokens: int
    threads: int
    weight_bytes: int
    kv_bytes: int
    device: str | None = None
    calibrated: bool = False
    dtype: str = "float32"
    adapters: tuple[str, ...] = ()
    vectors: VectorInfo | None = None
    encoder_context: int = 0
    encoder_width: int = 0
    held: str = ""
    concurrency: float = 0.0
    unshared: str = ""
    replicas: int = 1
    warnings: tuple[str, ...] = ()


class StepReport(NamedTuple):
    """What one step did, without text.

    step: its number. started, finished: nanoseconds of the engine's clock (time.perf_counter_ns, one clock for all
    processes of a machine). items: of each sequence in it (request, choice, first position, positions). rows: logit
    rows. decodes_only: every sequence ran one position. predicted: seconds it should have taken, None where nothing is
    predicted. floor: seconds that nothing can beat. flops, nbytes: what it had to compute, and to read and write.
    """

    step: int
    started: int
    finished: int
    items: Sequence[tuple[int, int, int, int]]
    rows: int
    decodes_only: bool
    predicted: float | None = None
    floor: float | None = None
    flops: float = 0.0
    nbytes: float = 0.0

    @property
    def seconds(self) -> float:
        """What it took."""
        return (self.finished - self.started) * NANOSECONDS

    @property
    def positions(self) -> int:
        """Positions that it ran, of all sequences."""
        return sum([count for _, _, _, count in self.items])  # a list: faster than a generator, in every step


Stage = Literal["waiting", "prefill", "decode"]


class PageChange(NamedTuple):
    """A page is in another state now. group: of layers, whose it is, or was. request: that holds it, the one that came
    last of those that share it; 0 for none. start: the first of the positions that it has of that request; -1 where
    nobody holds it, or where it holds no positions. references: page-table entries that are to it, and copies under way
    of it. before: the page with the positions before those; 0 where there is none, or nobody holds it.
    """

    group: int
    page: int
    state: PageState
    request: int
    start: int = -1
    references: int = 0
    before: int = 0


class SequenceState(NamedTuple):
    """One choice of a request. arrived: nanoseconds of the engine's clock. prompt: tokens; known: with what was
    sampled; computed: positions in KV memory; cached: those of its prompt that were found there.
    """

    request: int
    choice: int
    stage: Stage
    arrived: int
    prompt: int
    known: int
    computed: int
    cached: int
    preemptions: int


class EngineSnapshot(msgspec.Struct, tag="snapshot", array_like=True, frozen=True):
    """What an engine holds between two steps. at: nanoseconds of its clock. groups: how many layers each group of KV
    pages has. pages: all that are not free, where they were asked for.
    """

    at: int
    stats: Stats
    groups: list[int]
    pages: list[PageChange]
    sequences: list[SequenceState]


class AddRequest(msgspec.Struct, tag="add", array_like=True, frozen=True):
    """A message to queue a request. ticket: the asker's own number for it."""

    ticket: int
    spec: GenerationRequest


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """End a request, if it is still there."""

    request: int


class StopChoice(msgspec.Struct, tag="stop", array_like=True, frozen=True):
    """A choice's text has ended (events.Stop)."""

    stop: Stop


class WatchPages(msgspec.Struct, tag="watch", array_like=True, frozen=True):
    """Say with each step from now on which pages changed; or no longer."""

    on: bool


class GetSnapshot(msgspec.Struct, tag="look", array_like=True, frozen=True):
    """Say what the engine holds: a Snapshot comes. pages: with its pages, of which there may be many."""

    pages: bool = True


class Inspect(msgspec.Struct, tag="inspect", array_like=True, frozen=True):
    """Have the engine's inspector (inspector.py) look at the model before the next step, which waits for it. ticket:
    the asker's own number; question: as that inspector reads it.
    """

    ticket: int
    question: bytes


class RequestAdded(msgspec.Struct, tag="added", array_like=True, frozen=True):
    """The request of a ticket has this id."""

    ticket: int
    request: int


class RequestsBegun(msgspec.Struct, tag="begun", array_like=True, frozen=True):
    """A message with the requests whose first step begins now."""

    requests: Sequence[int]


class Inspected(msgspec.Struct, tag="inspected", array_like=True, frozen=True):
    """What the inspector found."""

    ticket: int
    answer: bytes


class Refused(msgspec.Struct, tag="refused", array_like=True, frozen=True):
    """The request of a ticket cannot run, or its question has no answer; why, in one line. fault: the engine is to
    blame, not the request.
    """

    ticket: int
    reason: str
    fault: bool = False


class EngineReady(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The engine takes requests from now on."""

    info: EngineInfo


class Stepped(msgspec.Struct, tag="stepped", array_like=True, frozen=True):
    """What a step gave, or an abort between two steps, which has no report. pages: that changed, where they are
    watched.
    """

    events: list[TokenEvent]
    stats: Stats
    report: StepReport | None = None
    pages: list[PageChange] = []


class Died(msgspec.Struct, tag="died", array_like=True, frozen=True):
    """The engine is gone; why, in one line. final: it is not started again; else it says Ready when it is back."""

    reason: str
    final: bool = True


class Transferred(msgspec.Struct, tag="transferred", array_like=True, frozen=True):
    """A prompt's keys and values were asked of another engine, at the address `peer`. positions: that came; nbytes: of
    their pages. seconds: that those were on their way, predicted: as the connection was measured. waited: seconds from
    asking until they were in KV memory. reason: why none came, so that the prompt is computed here; "" where they
    did.
    """

    peer: str
    positions: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    predicted: float | None = None
    waited: float = 0.0
    reason: str = ""


class PeerChanged(msgspec.Struct, tag="peer", array_like=True, frozen=True):
    """An engine that prompts are asked of may be asked now (up), or not any more. said: how fast its pages come, or why
    not, in words.
    """

    peer: str
    up: bool
    said: str


ToEngine = AddRequest | Abort | StopChoice | WatchPages | GetSnapshot | Inspect
FromEngine = (
    EngineReady
    | RequestAdded
    | RequestsBegun
    | Refused
    | Stepped
    | EngineSnapshot
    | Inspected
    | Transferred
    | PeerChanged
    | Died
)
