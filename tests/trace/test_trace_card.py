"""A trace of a model that runs on a card."""

from time import perf_counter, sleep

import pytest
import torch

from engine.small_models import LLAMA, small_model
from ridgeline.engine import LLM, SamplingParams
from ridgeline.engine.kv.memory import kv_layout
from ridgeline.engine.runner import Runner
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.roofline.cards import load_card
from ridgeline.roofline.price import Price
from ridgeline.trace.card import CardStep, card_clock, measure_on_card, without_gaps
from ridgeline.trace.request import Subject, Wanted, trace
from ridgeline.trace.tracer import Tracer
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

    step = CardStep(lambda: runner.forward(plan), result, lambda _: sleep(0.002), recorded=True)
    found = measure_on_card(tracer, plan.work(model.reaches), step, repeats=3)
    assert [call.path for call in found.calls] == [path for path, _ in Price(model).calls]
    assert len(found.seconds) == len(found.calls)
    assert min(found.seconds) > 0
    assert found.between >= 0.003
    assert found.sampling >= 0.002
    assert found.whole == pytest.approx(found.unhooked)
    assert (found.repeats, found.recorded) == (3, True)
    assert not any(part._forward_hooks for part in model.modules())


def test_a_long_op_keeps_its_seconds() -> None:
    """Events cost each call the same: of a product that takes as long as a thousand small ops nothing goes to them."""
    own = [1e-3] + 100 * [2e-6]
    with_events = [seconds + 3e-6 for seconds in own]
    assert without_gaps(with_events, sum(own)) == pytest.approx(own)
    # One that was shorter than the gap it is given: still more than nothing, and the step's seconds in all.
    uneven = without_gaps([1e-6, 1e-3, 1e-3], 1.5e-3)
    assert min(uneven) > 0
    assert sum(uneven) == pytest.approx(1.5e-3)


@needs_card
@pytest.mark.parametrize("repeats", [None, 3])
def test_ops_and_what_lies_between_them_are_the_step(repeats: int | None) -> None:
    """Each op takes some time, and no more in all than the step; a captured step gives the tokens of the processor."""
    llm, here = LLM("tales", device="cuda"), LLM("tales", threads=1)
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    ids = llm.encode("Once upon a time")
    ledger = trace(
        llm, Subject("tales", "", lambda: ids), params, load_card("h100-sxm"), Wanted(repeats=repeats),
        clock=card_clock(perf_counter),
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
