"""The timeline of a request that runs without tracing hooks: tokenise, queue, prefill and decode steps.

Each step is divided into schedule, forward, sample and detokenise.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """A span of time in seconds from the start of the request; its parts lie within it, in order."""

    name: str
    start: float
    seconds: float
    parts: tuple["TimelineSlice", ...] = ()

    @property
    def end(self) -> float:
        """The time at which the timeline slice ends."""
        return self.start + self.seconds


@dataclass(slots=True)
class TimelineRecorder:
    """A recorder of the named time spans of a request."""

    clock: Clock
    noted: list[TimelineSlice] = field(default_factory=list)

    @contextmanager
    def note(self, name: str) -> Iterator[None]:
        """Record the time spent in this context under a name."""
        start = self.clock()
        yield
        self.noted.append(TimelineSlice(name, start, self.clock() - start))

    def take(self) -> tuple[TimelineSlice, ...]:
        """Return and forget the spans recorded since the last call."""
        noted, self.noted = tuple(self.noted), []
        return noted


def shifted(moment: TimelineSlice, by: float) -> TimelineSlice:
    """Return a slice with its parts, moved later by a number of seconds."""
    return TimelineSlice(
        moment.name, moment.start + by, moment.seconds, tuple(shifted(part, by) for part in moment.parts)
    )
