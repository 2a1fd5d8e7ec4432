"""The timeline of a request as it ran, without hooks: tokenise, queue, prefill, decode, sample, detokenise."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """A stretch of time, in seconds from the beginning of the request; its parts lie within it, in order."""

    name: str
    start: float
    seconds: float
    parts: tuple["TimelineSlice", ...] = ()

    @property
    def end(self) -> float:
        """When it ends."""
        return self.start + self.seconds


@dataclass(slots=True)
class TimelineRecorder:
    """Notes what was done and when."""

    clock: Clock
    noted: list[TimelineSlice] = field(default_factory=list)

    @contextmanager
    def note(self, name: str) -> Iterator[None]:
        """Note what is done in this context."""
        start = self.clock()
        yield
        self.noted.append(TimelineSlice(name, start, self.clock() - start))

    def take(self) -> tuple[TimelineSlice, ...]:
        """What was noted since the last call."""
        noted, self.noted = tuple(self.noted), []
        return noted


def shifted(moment: TimelineSlice, by: float) -> TimelineSlice:
    """The same slice, `by` seconds later."""
    return TimelineSlice(
        moment.name, moment.start + by, moment.seconds, tuple(shifted(part, by) for part in moment.parts)
    )
