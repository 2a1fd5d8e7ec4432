"""The activity of an engine as JSON: a snapshot, then frames, each of which merges the steps since the last.

It has lengths and numbers, no text. docs/serving.md describes the columns. Steps are collected for frames only between
`begin` and `end`; a snapshot reports only the last few steps before it, one by one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ridgeline.engine.request import NANOSECONDS
from ridgeline.engine.worker.engine_messages import EngineInfo, EngineSnapshot, PageChange, SequenceState, StepReport
from ridgeline.engine.worker.priced_steps import PricedSteps
from ridgeline.util.json_data import json_select

_RECENT = 120
"""The number of newest engine steps that are reported one by one instead of merged."""
_ITEMS = 1000
"""The maximum number of sequences of individually reported steps in a message.

A large batch is not reported in full, because a client reads ten messages a second.
"""

NameOf = Callable[[int], str | None]
"""A function from the engine's id of a request to the id that clients know."""


class Feed:
    """The collection of an engine's steps and page changes for those who watch it."""

    def __init__(self) -> None:
        self._recent: deque[StepReport] = deque(maxlen=_RECENT)
        self._priced = PricedSteps()
        self._collects = False
        self.restart()

    @property
    def due(self) -> bool:
        """Whether there are steps, page changes or ended requests to report."""
        return bool(self._reports or self._pages or self._ended)

    def begin(self) -> None:
        """Start collecting steps and page changes."""
        self._collects = True

    def end(self) -> None:
        """Stop collecting steps and page changes, and forget those collected."""
        self._collects = False
        self.restart()

    def restart(self) -> None:
        """Start over, because another engine has replaced the previous one."""
        self._step, self._clock = 0, 0
        self._reports: list[StepReport] = []
        self._pages: dict[int, PageChange] = {}
        self._ended: list[dict[str, Any]] = []
        self._sequences: dict[tuple[int, int], SequenceState] = {}
        self._known = set[tuple[int, int]]()  # sequences that were reported, and not yet reported as gone

    def stepped(self, report: StepReport) -> None:
        """Add the report of a step of the engine."""
        self._recent.append(report)
        self._priced.add(report.seconds, report.predicted, report.floor)
        if self._collects:
            self._reports.append(report)

    def paged(self, pages: Iterable[PageChange]) -> None:
        """Add changes of KV pages to the next frame."""
        if self._collects:
            self._pages.update({change.page: change for change in pages})

    def ended(self, request: int, prompt: int, cached: int, output: int, finish: str, name: str | None) -> None:
        """Add the end of a request to the next frame.

        Args:
            request: The engine's id of the request.
            prompt: Number of tokens in its prompt.
            cached: Number of those that were found in the prefix cache.
            output: Number of sampled tokens.
            finish: The reason of the end; `abort` if the client gave up.
            name: The id of the request that clients know.
        """
        if self._collects:
            fields = {"id": name, "request": request, "prompt": prompt, "cached": cached}
            self._ended.append({**fields, "output": output, "finish": finish})

    def snapshot(self, info: EngineInfo, snapshot: EngineSnapshot, name_of: NameOf) -> dict[str, Any]:
        """Return what an engine holds, with its latest steps, as JSON data."""
        if self._collects:
            self._known |= {(each.request, each.choice) for each in snapshot.sequences}
        return {
            "type": "snapshot",
            "step": snapshot.stats.steps,
            "clock": snapshot.at * NANOSECONDS,
            "limits": json_select(info, "context", "requests", "step_tokens", "page_size", "pages")
            | {"groups": snapshot.groups},
            **json_select(info, "device", "calibrated", "predicted_intervals"),
            "counters": asdict(snapshot.stats),
            "pages": snapshot.pages,
            "requests": [_sequence_json(each, name_of) for each in snapshot.sequences],
            "recent": _steps_json(self._recent),
            "priced": asdict(self._priced),
        }

    def frame(self, snapshot: EngineSnapshot, name_of: NameOf) -> dict[str, Any]:
        """Return the steps since the last frame, merged, with the changes that came with them, as JSON data.

        The collection then starts over for the next frame.

        Args:
            snapshot: The current state of the engine; its pages are not read.
            name_of: Returns the id of a request that clients know.
        """
        reports, pages, ended = self._reports, self._pages, self._ended
        if reports:
            self._step, self._clock = reports[-1].step, reports[-1].finished
        sequences = {(each.request, each.choice): each for each in snapshot.sequences}
        changed = [each for key, each in sequences.items() if self._sequences.get(key) != each]
        gone = sorted(self._known - sequences.keys())
        self._reports, self._pages, self._ended = [], {}, []
        self._sequences, self._known = sequences, set(sequences)
        since = PricedSteps()
        for report in reports:
            since.add(report.seconds, report.predicted, report.floor)
        return {
            "type": "steps",
            "step": self._step,
            "steps": len(reports),
            "clock": self._clock * NANOSECONDS,
            "items": _merged(reports),
            "decodes": sum(_decodes(report) for report in reports),
            "pages": list(pages.values()),
            "requests": [_sequence_json(each, name_of) for each in changed],
            "gone": gone,
            "ended": ended,
            "counters": asdict(snapshot.stats),
            "seconds": sum(report.seconds for report in reports),
            "predicted": since.predicted if since.measured else None,
            "priced_seconds": since.measured,
            "priced": asdict(self._priced),
            "recent": _steps_json(reports[-_RECENT:]),
        }


def _merged(reports: Iterable[StepReport]) -> list[list[int]]:
    """Return the runs of positions of each sequence, [request, first, count, choice], merged over successive steps."""
    runs: dict[tuple[int, int], list[list[int]]] = {}
    for report in reports:
        for request, choice, start, count in report.items:
            own = runs.setdefault((request, choice), [])
            if own and own[-1][0] + own[-1][1] == start:
                own[-1][1] += count
            else:
                own.append([start, count])
    return [[request, *run, choice] for (request, choice), own in runs.items() for run in own]


def _steps_json(reports: Sequence[StepReport]) -> list[dict[str, Any]]:
    """Return reports of steps as JSON data, in order; only the newest steps, up to a limit, list their sequences."""
    steps, room = list[dict[str, Any]](), _ITEMS
    for report in reversed(reports):
        room -= len(report.items)
        steps.append(_step_json(report, with_items=room >= 0))
    return steps[::-1]


def _step_json(report: StepReport, *, with_items: bool) -> dict[str, Any]:
    return {
        "step": report.step,
        "seconds": report.seconds,
        "predicted": report.predicted,
        "floor": report.floor,
        "sequences": len(report.items),
        "positions": report.positions,
        "decodes": _decodes(report),
        "items": [[request, start, count, choice] for request, choice, start, count in report.items]
        if with_items
        else None,
    }


def _decodes(report: StepReport) -> int:
    """Return the number of decoding sequences of a step; in a step with prefills, those that ran one position."""
    return len(report.items) if report.decodes_only else sum([item[3] == 1 for item in report.items])


def _sequence_json(state: SequenceState, name_of: NameOf) -> dict[str, Any]:
    return {"id": name_of(state.request), **state._asdict(), "arrived": state.arrived * NANOSECONDS}
