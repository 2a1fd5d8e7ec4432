"""The parts of a step that belong to no op: how they are measured, and that their constants are found again."""

import dataclasses
from typing import ClassVar, cast

import numpy as np
import pytest
import torch

from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import LOGITS, TOKENS, StepSegment, Work
from ridgeline.engine.engine_builder import run_requests
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling.in_numpy import NumpySampler
from ridgeline.engine.sampling.sample_row import Sampled, SampleRow
from ridgeline.insight.calibrate.overhead import TOKENS as NEW
from ridgeline.insight.calibrate.overhead import StepOverhead, fit_host
from ridgeline.insight.calibrate.part_times import StepParts, fit_parts, part_times, run_in_parts
from ridgeline.insight.calibrate.probe import PaceProbe
from ridgeline.insight.calibrate.sampling_trials import (
    WAYS,
    SampledRows,
    fit_sampling,
    likely_logits,
    sampling_times,
    way_of,
)
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.insight.calibrate.trials import TRIALS
from ridgeline.price.device import HostTime
from ridgeline.price.host_parts import HostParts, PartTime, SamplingTime
from ridgeline.price.slowdown import Slowdown

CPU = torch.device("cpu")
EVEN = Slowdown(1.0, 1.0, 1.0)
PARTS = HostParts(
    PartTime(1e-5, 2e-6, 1e-7, 0.0, 9e-5, 2e-5),
    PartTime(3e-5, 3e-6, 2e-7, 8e-5, 1e-5, 4e-5),
    {"greedy": SamplingTime(5e-5, 3e-6, 3e-10), "top-p": SamplingTime(6e-5, 4e-6, 1e-9)},
)


class Clock:
    """Time that passes by one second for each look."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        self.time += 1.0
        return self.time


class Probing:
    """A probe of a machine that runs at half the pace."""

    taken: ClassVar[list[Slowdown]] = []

    def __call__(self) -> None:
        self.taken.append(Slowdown(2.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def tiny() -> Model:
    return TRIALS[0].model(torch.float32, CPU)


def test_the_parts_of_each_step_are_timed(tiny: Model) -> None:
    """Check that of the four spans between five looks at the clock, two are the scheduler's and one is the batch's."""
    found = list(run_in_parts(tiny, (18, 18), Clock()))
    assert [step.work for step in found] == [work for work, _ in run_requests(tiny, (18, 18), NEW, Clock())]
    assert {(step.schedule, step.batch, step.whole) for step in found} == {(2.0, 1.0, 4.0)}
    assert not found[0].recorded
    assert len({step.recorded for step in found[1:]}) == 1


def test_parts_are_converted_to_one_pace(tiny: Model) -> None:
    clock = Clock()
    found = part_times(tiny, Timer(CPU, 1, clock, wall=clock), cast(PaceProbe, Probing()), EVEN, 1.0)
    assert {each.work.sequences for each in found} >= {1, 4}
    assert {each.work.is_verify for each in found} == {False, True}
    assert {(each.schedule, each.batch, each.whole) for each in found} == {(1.0, 0.5, 2.0)}


def steps() -> list[tuple[Work, bool]]:
    """Return decode steps, recorded and not, and steps with prompts, of several sizes."""
    decodes = [(Work.decode([20] * count), recorded) for count in (1, 4, 16) for recorded in (False, True)]
    prompts = [(16,), (64,), (256,), (18,) * 4, (17,) * 16, (3, 1, 1)]
    return decodes + [(Work.of([StepSegment(length, length) for length in each]), False) for each in prompts]


def test_the_constants_of_the_parts_are_found_again() -> None:
    made = [
        StepParts(
            work,
            recorded,
            PARTS.schedule.seconds(work, work.prompts, recorded=recorded),
            PARTS.batch.seconds(work, work.prompts, recorded=recorded),
            1e-3 * work.tokens,
        )
        for work, recorded in steps()
    ]
    schedule, batch = fit_parts(made)
    assert dataclasses.astuple(schedule) == pytest.approx(dataclasses.astuple(PARTS.schedule))
    assert dataclasses.astuple(batch) == pytest.approx(dataclasses.astuple(PARTS.batch))


def test_the_other_constants_hold_for_what_the_parts_leave() -> None:
    rest = HostTime(1e-4, 2e-6, 3e-6, 4e-7, 0.0, asked=5e-5, prompts=7e-5)
    between = []
    for index, (work, recorded) in enumerate(steps()):
        ops = 40 + 25 * (index % 3)
        seconds = rest.step + rest.sequence * work.sequences + rest.token * work.tokens
        seconds += 0.0 if recorded else rest.asked + rest.op * ops
        seconds += 0.0 if work.is_verify else rest.prompts
        seconds += PARTS.seconds(work, work.prompts, 800, recorded=recorded)
        between.append(StepOverhead(work, ops, 0.0, seconds, 4 * seconds, recorded, 800))
    found, error = fit_host(between, PARTS)
    assert found.parts == PARTS
    assert dataclasses.astuple(found)[:5] == pytest.approx(dataclasses.astuple(rest)[:5], rel=1e-4, abs=1e-12)
    assert (found.asked, found.prompts) == pytest.approx((rest.asked, rest.prompts), rel=1e-4)
    assert error == pytest.approx(0.0, abs=1e-9)


def test_a_sequence_that_runs_several_positions_is_a_prompt() -> None:
    assert Work.of([StepSegment(1, 9), StepSegment(3, 5), StepSegment(40, 40)]).prompts == 2
    assert Work.decode([9] * 5).prompts == Work({TOKENS: 8, LOGITS: 1}, 1).prompts == 0


def test_every_way_of_sampling_is_timed_in_several_sizes() -> None:
    clock = Clock()
    found = sampling_times(Timer(CPU, 1, clock, wall=clock), cast(PaceProbe, Probing()), EVEN, 1.0)
    assert {each.seconds for each in found} == {0.5}
    sizes = {way: [(each.rows, each.vocabulary) for each in found if each.way == way] for way in WAYS}
    for own in sizes.values():
        assert own == sizes["greedy"]
        assert len({rows for rows, _ in own}) == 3
        assert {vocabulary for rows, vocabulary in own if rows == 1} >= {500, 128_000}


def test_the_constants_of_sampling_are_found_again() -> None:
    times = [
        SampledRows(way, rows, vocabulary, own.seconds(rows, vocabulary))
        for way, own in PARTS.sampling.items()
        for rows in (1, 4, 16)
        for vocabulary in (500, 32_000, 128_000)
    ]
    found = fit_sampling(times)
    assert list(found) == list(PARTS.sampling)
    for way, own in PARTS.sampling.items():
        assert dataclasses.astuple(found[way]) == pytest.approx(dataclasses.astuple(own))


@pytest.mark.parametrize(
    ("params", "way"),
    [
        ({"temperature": 0.0, "top_k": 5}, "greedy"),
        ({}, "all"),
        ({"top_k": 5}, "top-k"),
        ({"top_p": 0.9}, "top-p"),
        ({"min_p": 0.1}, "top-p"),
        ({"top_k": 5, "top_p": 0.9}, "top-k"),
    ],
)
def test_parameters_belong_to_a_way_of_sampling(params: dict[str, float], way: str) -> None:
    assert way_of(SamplingParams(**params)) == way  # type: ignore[arg-type]
    assert all(way_of(own) == name for name, own in WAYS.items())


def test_a_cut_leaves_the_likely_tokens_of_a_trial() -> None:
    """Check that a cut leaves as few tokens as in the text of a trained model, on which its time depends."""
    logits_RV = likely_logits(2, 50_000)
    shares_RV = torch.softmax(logits_RV.double() / WAYS["top-p"].temperature, 1).numpy()
    for shares_V in shares_RV:
        assert 2 <= int(np.searchsorted(np.cumsum(np.sort(shares_V)[::-1]), WAYS["top-p"].top_p)) <= 10
    rows = [SampleRow(WAYS["top-p"], seed, 9) for seed in range(2)]
    assert all(isinstance(each, Sampled) for each in NumpySampler().sample(logits_RV, rows))
