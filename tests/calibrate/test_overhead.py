"""What a step takes beside its ops: which steps count, and at what pace."""

from collections.abc import Iterator
from typing import ClassVar, cast

import pytest
import torch

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.insight.calibrate import overhead
from ridgeline.insight.calibrate.overhead import COLD, StepTime, overheads
from ridgeline.insight.calibrate.probe import PaceProbe
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.insight.calibrate.trials import TRIALS
from ridgeline.price.device import Device
from ridgeline.price.slowdown import Slowdown

CPU = torch.device("cpu")
BARE = Device("this", "this", "cpu", {"fp32": 1e11}, 1e10, 1e9)
WARM = 4  # decode steps that count


@pytest.fixture(scope="module")
def tiny() -> Model:
    return next(trial for trial in TRIALS if trial.name == "tiny").model(torch.float32, CPU)


def steps(prompts: int) -> Iterator[StepTime]:
    """A prompt of twenty tokens in two parts; decode steps that take ten times as long while they are cold; the last,
    which ends all, a hundred times."""
    for start in (0, 10):
        yield StepTime(Work.of([StepSegment(10, start + 10)] * prompts, logit_rows=prompts if start else 0), 5.0, 3.0)
    for place in range(COLD + WARM):
        yield StepTime(Work.decode([21 + place] * prompts), 10.0 if place < COLD else 1.0, 0.5)
    yield StepTime(Work.decode([99] * prompts), 100.0, 0.5)


def timed(monkeypatch: pytest.MonkeyPatch, model: Model, paces: list[Slowdown]) -> list[overhead.StepOverhead]:
    """By a machine whose probes take these paces, of one turn each."""
    moments, called = iter(range(100)), iter(paces)

    class Probing:
        taken: ClassVar[list[Slowdown]] = []

        def __call__(self) -> None:
            self.taken.append(next(called))

    monkeypatch.setattr(overhead, "run_requests", lambda *_: iter(()))
    monkeypatch.setattr(overhead, "_step_times", lambda _model, _watch, prompts: list(steps(len(prompts))))
    timer = Timer(CPU, 1, wall=lambda: float(next(moments)))
    return overheads(model, timer, cast(PaceProbe, Probing()), Slowdown(1.0, 1.0, 1.0), BARE, float(len(paces)) - 0.5)


def test_cold_steps_and_the_last_do_not_count(monkeypatch: pytest.MonkeyPatch, tiny: Model) -> None:
    """Those of prompts do, and the decode steps from the seventh on."""
    found = timed(monkeypatch, tiny, [Slowdown(1.0, 1.0, 1.0)] * 3)
    assert len(found) == len(overhead.TRAFFIC) * (2 + WARM)
    for each in found:
        assert (each.whole, each.seconds) == ((1.0, 0.5) if each.work.is_verify else (5.0, 2.0))


def test_all_is_as_if_at_the_pace_of_the_trials(monkeypatch: pytest.MonkeyPatch, tiny: Model) -> None:
    """Probes that took twice as long here, but for one, which nothing was in the way of less."""
    found = timed(monkeypatch, tiny, [Slowdown(2.0, 9.0, 9.0), Slowdown(2.0, 9.0, 9.0), Slowdown(4.0, 9.0, 9.0)])
    assert {(each.whole, each.seconds) for each in found} == {(0.5, 0.25), (2.5, 1.0)}
