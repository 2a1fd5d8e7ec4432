"""The timeline of a request as it ran, without hooks: tokenise, queue, prefill, decode, sample, detokenise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ridgeline.engine.engine import OpenStream
from ridgeline.engine.plan import StepPlan
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import RowFailure, Sampled, SampleRow, sample
from ridgeline.text import Delta, OutputStream

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of time, in seconds from the beginning of the request; its parts lie within it, in order."""

    name: str
    start: float
    seconds: float
    parts: tuple["Slice", ...] = ()

    @property
    def end(self) -> float:
        """When it ends."""
        return self.start + self.seconds


@dataclass(slots=True)
class Watch:
    """Notes what the engine does and when: an Executor around its runner, and a stream around each request's."""

    runner: Runner
    clock: Clock
    noted: list[Slice] = field(default_factory=list)

    def note(self, name: str, start: float) -> None:
        """Something that began at `start` has just ended."""
        self.noted.append(Slice(name, start, self.clock() - start))

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
        """As Executor.execute, in the two parts that Runner.execute has."""
        start = self.clock()
        logits_RV = self.runner.forward(plan)
        self.note("forward", start)
        start = self.clock()
        sampled = sample(logits_RV, rows) if rows else []
        self.note("sample", start)
        return sampled

    def opener(self, inner: OpenStream) -> OpenStream:
        """Makes streams that are watched."""
        return lambda params, prompt: _WatchedStream(inner(params, prompt), self)

    def take(self) -> tuple[Slice, ...]:
        """What was noted since the last call, neighbours of one name joined."""
        joined: list[Slice] = []
        for noted in self.noted:
            start = joined.pop().start if joined and joined[-1].name == noted.name else noted.start
            joined.append(Slice(noted.name, start, noted.end - start))
        self.noted = []
        return tuple(joined)


class _WatchedStream(OutputStream):
    """An output stream whose pushes are noted as "detokenise"."""

    def __init__(self, inner: OutputStream, watch: Watch) -> None:
        self._inner, self._watch, self.reasoning = inner, watch, inner.reasoning

    def push(self, token_id: int) -> Delta:
        start = self._watch.clock()
        delta = self._inner.push(token_id)
        self._watch.note("detokenise", start)
        return delta

    def finish(self) -> Delta:
        start = self._watch.clock()
        delta = self._inner.finish()
        self._watch.note("detokenise", start)
        return delta


def shifted(moment: Slice, by: float) -> Slice:
    """The same slice, `by` seconds later."""
    return Slice(moment.name, moment.start + by, moment.seconds, tuple(shifted(part, by) for part in moment.parts))
