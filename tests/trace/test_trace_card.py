"""A trace of a model that runs on a card."""

from time import perf_counter, sleep

import pytest
import torch

from engine.small_models import LLAMA, small_model
from ridgeline.engine import LLM, SamplingParams
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.insight.calibrate.gpu_timer import whole_seconds, without_gaps
from ridgeline.insight.trace.gpu_measurement import GpuStep, gpu_clock, measure_on_gpu
from ridgeline.insight.trace.request_trace import TraceOptions, TraceSubject, trace
from ridgeline.insight.trace.tracer import Tracer
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price
from support.cards import events_of_the_processor, needs_card


def test_a_step_is_taken_apart_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no card: each op has its own seconds, what the step takes beyond them lies between ops, and what
    follows its result is sampling."""
    events_of_the_processor(monkeypatch)
    model = small_model(LLAMA)
    layout = kv_layout(model, 1e9, 4, most_tokens=100)
    runner, plan = Runner(model, layout), StepPlan(0, (PlanItem(1, 0, (1, 2, 3), ((1,),), True, (2,)),))
    tracer = Tracer(model)

    def result() -> torch.Tensor:
        sleep(0.003)
        return runner.forward(plan)

    step = GpuStep(lambda: runner.forward(plan), result, lambda _: sleep(0.002), recorded=True)
    found = measure_on_gpu(tracer, plan.work(model.attention_patterns), step, repeats=3)
    assert [call.path for call in found.calls] == [path for path, _ in Price(model).calls]
    assert len(found.seconds) == len(found.calls)
    assert min(found.seconds) > 0
    assert found.between >= 0.002  # less what the ops took longer than in `result`
    assert found.sampling >= 0.002
    assert found.whole == pytest.approx(found.unhooked)
    assert (found.repeats, found.recorded) == (3, True)
    assert not any(part._forward_hooks for part in model.modules())


def test_a_long_op_keeps_its_seconds() -> None:
    """Events cost each call the same: of a product that takes as long as a thousand small ops nothing goes to them."""
    own = [1e-3] + 100 * [2e-6]
    with_events = [seconds + 3e-6 for seconds in own]
    assert without_gaps(with_events, sum(own)) == pytest.approx(own)
    # One that was shorter than the gap: a third of its own is left, and the step's seconds in all.
    uneven = without_gaps([1e-6, 1e-3, 1e-3], 1.5e-3)
    assert uneven[0] == pytest.approx(1e-6 / 3)
    assert sum(uneven) == pytest.approx(1.5e-3)
    # Where events cost nothing, nothing is taken off.
    assert without_gaps([1e-6, 2e-6], 3.3e-6) == pytest.approx([1.1e-6, 2.2e-6])


def test_a_step_is_asked_for_before_any_of_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the card has begun before, it is made to wait longer, and what it said of that run is not taken."""
    events_of_the_processor(monkeypatch)
    waits: list[float] = []
    monkeypatch.setattr(torch.cuda, "_sleep", waits.append)
    monkeypatch.setattr(torch.cuda.Event, "query", lambda _: len(waits) < 3)
    runs: list[float] = []

    def step() -> None:
        runs.append(0.002 * (len(runs) + 1))
        sleep(runs[-1])

    assert whole_seconds(step, 0.01) >= runs[2] == 0.006
    assert len(runs) == len(waits) == 3
    assert waits[0] < waits[1] < waits[2]


@needs_card
@pytest.mark.parametrize("repeats", [None, 3])
def test_ops_and_what_lies_between_them_are_the_step(repeats: int | None) -> None:
    """Each op takes some time, and no more in all than the step; a captured step gives the tokens of the processor."""
    llm, here = LLM("tales", device="cuda"), LLM("tales", threads=1)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    ids = llm.encode("Once upon a time")
    ledger = trace(
        llm, TraceSubject("tales", "", lambda: ids), params, load_device("h100-sxm"), TraceOptions(repeats=repeats),
        clock=gpu_clock(perf_counter),
    )  # fmt: skip
    assert [token.id for token in ledger.written] == [
        one.token for one in here.generate([ids], params)[0].choices[0].tokens
    ]
    decode = next(step for step in ledger.steps if step.name == "decode")
    assert decode.recorded
    for step in ledger.steps:
        seconds = [row.entries[step.name].measured for row in ledger.rows]
        assert min(seconds) > 0
        assert sum(seconds) <= 1.05 * step.unhooked
