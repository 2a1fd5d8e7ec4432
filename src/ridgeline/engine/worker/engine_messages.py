"""The messages between an engine and its user in another thread or process, as plain data.

The engine receives AddRequest, Abort, StopChoice, WatchPages, GetSnapshot and Inspect. It sends EngineReady once; then
RequestAdded or Refused for each AddRequest, Inspected or Refused for each Inspect, RequestsBegun before the first step
of a request, one Stepped per step, and an EngineSnapshot for each GetSnapshot. If it gets KV pages from other engines
(engine/transfer), it also sends Transferred and PeerChanged. Whoever notices that the engine is gone sends Died.
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

from ridgeline.engine.events import Stats, Stop, TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.pool import PageState
from ridgeline.engine.request import NANOSECONDS

_REQUESTS = 1 << 40  # ids per replica; JavaScript represents integers exactly up to 2**53


def first_of(replica: int) -> int:
    """Return the id of the first request of a replica: one of several engines behind a server."""
    return replica * _REQUESTS + 1


def replica_of(request: int) -> int:
    """Return the index of the replica that runs a request."""
    return request // _REQUESTS


class VectorInfo(msgspec.Struct, frozen=True):
    """The description of a model whose response to a text is a vector."""

    width: int
    """The number of entries of the model's vectors."""
    pooling: str
    """The way in which the hidden states of a text become one vector."""
    labels: int
    """The number of labels for which the vector's entries are scores; 0 if the vector is an embedding."""
    squashed: bool
    """Whether a score is to be read as sigmoid(score)."""
    vocabulary: int
    """The number of different token ids that a single text may contain."""
    segments: int
    """The number of texts that the model distinguishes by token type; each has its own range of ids."""


class EngineInfo(msgspec.Struct, frozen=True):
    """The description that an engine gives of itself when it is ready."""

    context: int
    """The maximum number of positions of a sequence."""
    vocabulary: int
    """The number of token ids of the model."""
    capacity: int
    """The number of positions of a single request that KV memory holds."""
    page_size: int
    """The number of positions in a KV page."""
    pages: int
    """The number of KV pages of the engine."""
    requests: int
    """The maximum number of requests that run at the same time."""
    step_tokens: int
    """The maximum number of positions in a step."""
    threads: int
    """The number of threads that torch computes with."""
    weight_bytes: int
    """The bytes of the weights, of all ranks."""
    kv_bytes: int
    """The bytes of the KV cache, of all ranks."""
    device: str | None = None
    """The device for which step times are predicted; None if nothing is predicted."""
    calibrated: bool = False
    """Whether the performance constants of the device for predictions were measured on this machine."""
    stale_calibration: str = ""
    """The message of StaleCalibration, with its remedy, if this machine's calibration no longer holds; otherwise ""."""
    dtype: str = "float32"
    """The dtype of the weights; if they have several, that of the embedding."""
    adapters: tuple[str, ...] = ()
    """The names of the loaded LoRA adapters."""
    vectors: VectorInfo | None = None
    """The description of the vectors that the model gives; None for a model that generates."""
    encoder_context: int = 0
    """The number of positions that the model's encoder takes; 0 without an encoder."""
    encoder_width: int = 0
    """The number of features of an encoder position; 0 if the encoder reads token ids."""
    held: str = ""
    """The capacity of KV memory in words; "" if layers keep nothing."""
    concurrency: float = 0.0
    """The number of requests of the whole context that KV memory holds, with all that their encoders may read."""
    unshared: str = ""
    """The reason why equal prefixes share no KV memory; "" if they may."""
    replicas: int = 1
    """The number of engines that this description covers.

    Requests, concurrency, pages and bytes are their sums; all else describes one of them.
    """
    warnings: tuple[str, ...] = ()
    """Lines on how the model's files or the settings change its responses."""
    definition: str = ""
    """The class that defines the model and its package, like "OlmoeForCausalLM of transformers 5.24".

    It is "" for the model of a family here.
    """
    predicted_intervals: dict[str, tuple[float, float]] = {}
    """The factors on predicted step times between which 8 of 10 measured times lie: prefill, decode and mixed.

    It is empty if nothing is predicted.
    """


class StepReport(NamedTuple):
    """The report on one step of the engine: times, sequences and cost, without text."""

    step: int
    """The number of the step."""
    started: int
    """The start of the step, in nanoseconds of the engine's clock.

    That is time.perf_counter_ns, which all processes of a machine share.
    """
    finished: int
    """The end of the step, in nanoseconds of the engine's clock."""
    items: Sequence[tuple[int, int, int, int]]
    """The sequences that ran in the step: (request, choice, first position, number of positions) of each."""
    rows: int
    """The number of logit rows of the step."""
    decodes_only: bool
    """Whether every sequence ran one position, or one and the guesses that follow it."""
    predicted: float | None = None
    """The seconds that the step should have taken according to the cost model; None if nothing is predicted."""
    floor: float | None = None
    """The lower bound on the seconds of the step; None if nothing is predicted."""
    flops: float = 0.0
    """The number of floating-point operations of the step."""
    nbytes: float = 0.0
    """The number of bytes that the step had to read and write."""

    @property
    def seconds(self) -> float:
        """The duration of the step in seconds."""
        return (self.finished - self.started) * NANOSECONDS

    @property
    def positions(self) -> int:
        """The number of positions that the step ran, of all sequences."""
        # a list is faster than a generator, and this runs in every step
        return sum([count for _, _, _, count in self.items])


Stage = Literal["waiting", "prefill", "decode"]


class PageChange(NamedTuple):
    """The new state of a KV page that has changed."""

    group: int
    """The index of the layer group that uses the page, or used it last."""
    page: int
    """The number of the KV page."""
    state: PageState
    """The new state of the KV page."""
    request: int
    """The request that holds the page, the latest one if several share it; 0 for none."""
    start: int = -1
    """The first position of the request in the page; -1 if no request holds it, or it holds no positions."""
    references: int = 0
    """The number of page-table entries and pending copies that refer to the page."""
    before: int = 0
    """The page with the request's positions before those of this page; 0 if none, or if no request holds the page."""


class SequenceState(NamedTuple):
    """The state of one choice of a request, for those who watch the engine."""

    request: int
    """The id of the request."""
    choice: int
    """The index of the choice."""
    stage: Stage
    """The stage of the sequence: waiting, prefill or decode."""
    arrived: int
    """The time of the request's arrival, in nanoseconds of the engine's clock."""
    prompt: int
    """The number of tokens in the prompt."""
    known: int
    """The number of tokens in the prompt and the output so far."""
    computed: int
    """The number of the sequence's positions that are in KV memory."""
    cached: int
    """The number of prompt positions that were found in the prefix cache."""
    preemptions: int
    """The number of times that the sequence was preempted."""


class EngineSnapshot(msgspec.Struct, tag="snapshot", array_like=True, frozen=True):
    """The state of an engine between two steps: counters, sequences and KV pages."""

    at: int
    """The time of the snapshot, in nanoseconds of the engine's clock."""
    stats: Stats
    """The counters of the engine so far."""
    groups: list[int]
    """The number of layers in each group of KV pages."""
    pages: list[PageChange]
    """All KV pages that are not free, if they were requested."""
    sequences: list[SequenceState]
    """The state of each choice of each request."""


class AddRequest(msgspec.Struct, tag="add", array_like=True, frozen=True):
    """The message to the engine to queue a request."""

    ticket: int
    """The sender's number for the request."""
    spec: GenerationRequest
    """The request to queue."""


class Abort(msgspec.Struct, tag="abort", array_like=True, frozen=True):
    """The message to the engine to end a request, if it has not ended."""

    request: int
    """The id of the request to end."""


class StopChoice(msgspec.Struct, tag="stop", array_like=True, frozen=True):
    """The message to the engine that the text of a choice has ended (events.Stop)."""

    stop: Stop
    """The completion to stop, and how many of its tokens count."""


class WatchPages(msgspec.Struct, tag="watch", array_like=True, frozen=True):
    """The message to the engine to report, or no longer report, the KV pages that change with each step."""

    on: bool
    """Whether the engine should report the KV pages that change with each step."""


class GetSnapshot(msgspec.Struct, tag="look", array_like=True, frozen=True):
    """The message to the engine to send a snapshot of what it holds."""

    pages: bool = True
    """Whether the snapshot includes KV pages, of which there may be many."""


class Inspect(msgspec.Struct, tag="inspect", array_like=True, frozen=True):
    """The message to the engine to have its inspector answer a question about the model.

    The next step waits for the answer (inspector.py).
    """

    ticket: int
    """The sender's number for the question."""
    question: bytes
    """The question to the inspector, in the inspector's own format."""


class RequestAdded(msgspec.Struct, tag="added", array_like=True, frozen=True):
    """The message that the engine has queued a request."""

    ticket: int
    """The sender's number for the request."""
    request: int
    """The engine's id for the request."""


class RequestsBegun(msgspec.Struct, tag="begun", array_like=True, frozen=True):
    """The message with the requests whose first step begins now."""

    requests: Sequence[int]
    """The ids of the requests whose first step begins now."""


class Inspected(msgspec.Struct, tag="inspected", array_like=True, frozen=True):
    """The message with the inspector's answer."""

    ticket: int
    """The sender's number for the question."""
    answer: bytes
    """The inspector's answer, in its own format."""


class Refused(msgspec.Struct, tag="refused", array_like=True, frozen=True):
    """The message that a request cannot run, or that a question has no answer."""

    ticket: int
    """The sender's number for the request or question."""
    reason: str
    """The reason for the refusal, in one line."""
    fault: bool = False
    """Whether a bug of the engine is the cause, not the request."""


class EngineReady(msgspec.Struct, tag="ready", array_like=True, frozen=True):
    """The message that the engine accepts requests from now on."""

    info: EngineInfo
    """The engine's description of itself."""


class Stepped(msgspec.Struct, tag="stepped", array_like=True, frozen=True):
    """The message with the events of a step, or of an abort between two steps, which has no report."""

    events: list[TokenEvent]
    """The token events of the step."""
    stats: Stats
    """The counters of the engine after the step."""
    report: StepReport | None = None
    """The report on the step; None if no step ran or it failed."""
    pages: list[PageChange] = []
    """The KV pages that changed, if they are watched."""


class Died(msgspec.Struct, tag="died", array_like=True, frozen=True):
    """The message that the engine is gone, with all requests that had not ended."""

    reason: str
    """The reason why the engine is gone, in one line."""
    final: bool = True
    """Whether the engine stays gone; if not, it sends EngineReady when it is back."""


class Transferred(msgspec.Struct, tag="transferred", array_like=True, frozen=True):
    """The message on the KV pages of a prompt that this engine requested from another."""

    peer: str
    """The address of the engine that computed the prompt."""
    positions: int = 0
    """The number of prompt positions whose KV pages came."""
    nbytes: int = 0
    """The bytes of the KV pages that came."""
    seconds: float = 0.0
    """The seconds that the KV pages were in transit."""
    predicted: float | None = None
    """The seconds that the transfer should have taken by measurements of the connection; None without any."""
    waited: float = 0.0
    """The seconds from the request until the pages were in KV memory."""
    reason: str = ""
    """The reason why no pages came, so that this engine computes the prompt itself; "" if they did."""


class PeerChanged(msgspec.Struct, tag="peer", array_like=True, frozen=True):
    """The message that an engine that computes prompts for this one became available or unavailable."""

    peer: str
    """The address of the other engine."""
    up: bool
    """Whether the other engine is available."""
    description: str
    """The speed of the connection, or the reason why the other engine is unavailable, in words."""


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
