"""What an engine is doing, as JSON has it: a snapshot, then frames, each the merge of the steps since the last.

Lengths and numbers, no text. docs/serving.md has the columns. Steps are collected for frames only between `begin` and
`end`; what a snapshot tells of those before is the last few reports, kept as they came.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from ridgeline.engine.request import NANOSECONDS
from ridgeline.engine.worker.engine_messages import EngineInfo, EngineSnapshot, PageChange, SequenceState, StepReport
from ridgeline.engine.worker.priced_steps import PricedSteps

_RECENT = 120
"""Steps that are told one by one: the newest."""
_ITEMS = 1000
"""Items of those steps that a message tells: of a large batch not all, for a message has to be read ten times a
second."""

NameOf = Callable[[int], str | None]
"""A request's id outside, by the engine's number for it."""


class Feed:
    """An engine's steps and pages on their way to those who watch it."""

    def __init__(self) -> None:
        self._recent: deque[StepReport] = deque(maxlen=_RECENT)
        self._priced = PricedSteps()
        self._collects = False
        self.restart()

    @property
    def due(self) -> bool:
        """Whether there is something to tell."""
        return bool(self._reports or self._pages or self._ended)

    def begin(self) -> None:
        """Collect from now on."""
        self._collects = True

    def end(self) -> None:
        """Collect no longer, and forget what was collected."""
        self._collects = False
        self.restart()

    def restart(self) -> None:
        """Begin anew: another engine has taken the place of the one before."""
        self._step, self._clock = 0, 0
        self._reports: list[StepReport] = []
        self._pages: dict[int, PageChange] = {}
        self._ended: list[dict[str, Any]] = []
        self._sequences: dict[tuple[int, int], SequenceState] = {}
        self._known = set[tuple[int, int]]()  # sequences that were told of and have not been said to be gone

    def stepped(self, report: StepReport) -> None:
        """Take the report of a step."""
        self._recent.append(report)
        self._priced.add(report.seconds, report.predicted, report.floor)
        if self._collects:
            self._reports.append(report)

    def paged(self, pages: Iterable[PageChange]) -> None:
        """Take changes of pages."""
        if self._collects:
            self._pages.update({change.page: change for change in pages})

    def ended(self, request: int, prompt: int, cached: int, output: int, finish: str, name: str | None) -> None:
        """A request is over. prompt, cached, output: tokens of its prompt, those found in KV memory, those sampled.
        finish: why, `abort` where it was given up.
        """
        if self._collects:
            told = {"id": name, "request": request, "prompt": prompt, "cached": cached}
            self._ended.append({**told, "output": output, "finish": finish})

    def snapshot(self, info: EngineInfo, snapshot: EngineSnapshot, name_of: NameOf) -> dict[str, Any]:
        """What an engine holds, with the steps that led to it."""
        if self._collects:
            self._known |= {(each.request, each.choice) for each in snapshot.sequences}
        return {
            "type": "snapshot",
            "step": snapshot.stats.steps,
            "clock": snapshot.at * NANOSECONDS,
            "limits": {
                "context": info.context,
                "requests": info.requests,
                "step_tokens": info.step_tokens,
                "page_size": info.page_size,
                "pages": info.pages,
                "groups": snapshot.groups,
            },
            "device": info.device,
            "calibrated": info.calibrated,
            "counters": asdict(snapshot.stats),
            "pages": snapshot.pages,
            "requests": [_told_sequence(each, name_of) for each in snapshot.sequences],
            "recent": _told_steps(self._recent),
            "priced": asdict(self._priced),
        }

    def frame(self, snapshot: EngineSnapshot, name_of: NameOf) -> dict[str, Any]:
        """The steps since the last frame as one, and what has changed with them. snapshot: of now; its pages are not
        read. Collecting begins anew.
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
            "requests": [_told_sequence(each, name_of) for each in changed],
            "gone": gone,
            "ended": ended,
            "counters": asdict(snapshot.stats),
            "seconds": sum(report.seconds for report in reports),
            "predicted": since.predicted if since.measured else None,
            "priced_seconds": since.measured,
            "priced": asdict(self._priced),
            "recent": _told_steps(reports[-_RECENT:]),
        }


def _merged(reports: Iterable[StepReport]) -> list[list[int]]:
    """Of each sequence the runs of positions that it ran, [request, first, count, choice]: those of successive steps
    as one.
    """
    runs: dict[tuple[int, int], list[list[int]]] = {}
    for report in reports:
        for request, choice, start, count in report.items:
            own = runs.setdefault((request, choice), [])
            if own and own[-1][0] + own[-1][1] == start:
                own[-1][1] += count
            else:
                own.append([start, count])
    return [[request, *run, choice] for (request, choice), own in runs.items() for run in own]


def _told_steps(reports: Sequence[StepReport]) -> list[dict[str, Any]]:
    """Steps one by one, in their order; the items of the newest, as many as there is room for."""
    told, room = list[dict[str, Any]](), _ITEMS
    for report in reversed(reports):
        room -= len(report.items)
        told.append(_told_step(report, with_items=room >= 0))
    return told[::-1]


def _told_step(report: StepReport, *, with_items: bool) -> dict[str, Any]:
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
    """Sequences that ran one position."""
    return len(report.items) if report.decodes_only else sum([item[3] == 1 for item in report.items])


def _told_sequence(state: SequenceState, name_of: NameOf) -> dict[str, Any]:
    return {"id": name_of(state.request), **state._asdict(), "arrived": state.arrived * NANOSECONDS}
