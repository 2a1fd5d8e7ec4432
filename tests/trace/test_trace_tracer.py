"""The tracer: it changes no token, leaves nothing behind, and takes its own time out of what it measures."""

import itertools
from collections.abc import Sequence

import pytest
import torch
from msgspec import structs
from torch import nn
from trace_models import DEVICE, FAMILIES, GREEDY, NO_HOOKS, TEXT, Maker, Ticks

from ridgeline.engine import LLM, SamplingParams
from ridgeline.engine.sampling import Sampled
from ridgeline.engine.sampling.sampler import Sampler
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.insight.trace import TraceSubject, trace
from ridgeline.insight.trace.anatomy import blocks, final_norm
from ridgeline.insight.trace.measure import _MeasuredRun, _medians
from ridgeline.insight.trace.request_trace import TraceOptions
from ridgeline.insight.trace.tracer import HookCost, TracedCall, Tracer, hook_cost
from ridgeline.price.price import Price

SAMPLED = SamplingParams(temperature=1.3, top_p=0.95, seed=11, max_tokens=6, ignore_eos=True)


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_tokens_are_the_same_with_and_without(tiny: Maker, family: str, dtype: torch.dtype) -> None:
    llm = tiny(family, dtype).llm
    tracer = Tracer(llm.loaded.model)
    for params in (GREEDY, SAMPLED):
        plain = llm.generate([TEXT], params)[0].choices[0].token_ids
        with tracer.timing() as (starts, ends):
            hooked = llm.generate([TEXT], params)[0].choices[0].token_ids
        with tracer.recording() as calls:
            recorded = llm.generate([TEXT], params)[0].choices[0].token_ids
        traced = tiny(family, dtype).trace(params=params)
        assert plain == hooked == recorded == [token.id for token in traced.written]
        assert len(starts) == len(ends) == len(calls) == len(tracer.ops) * len(plain)
        assert all(start <= end for start, end in zip(starts, ends, strict=True))


def test_nothing_is_left_behind(tiny: Maker) -> None:
    subject = tiny("qwen3")
    engine = subject.llm.engine
    before = engine.executor, engine.on_step, engine.kv_cache_manager.prefix_cache
    subject.trace(TraceOptions(attention=True, lens=True, memory=True, repeats=1))
    assert (engine.executor, engine.on_step, engine.kv_cache_manager.prefix_cache) == before
    assert not engine.has_work
    assert hooks_of(subject.llm.loaded.model) == 0


def _stop_if(condition: bool) -> None:
    if condition:
        raise KeyboardInterrupt


def test_nothing_is_left_behind_when_it_fails(tiny: Maker) -> None:
    subject = tiny("llama")
    model = subject.llm.loaded.model
    for tracing in (Tracer(model).timing(), Tracer(model).recording()):
        with pytest.raises(KeyboardInterrupt), tracing:
            _stop_if(hooks_of(model) > 0)
    engine = subject.llm.engine
    executor = engine.executor
    clock = Ticks(1e-6)

    def stops() -> float:
        if clock.reads > 300:
            raise KeyboardInterrupt
        return clock()

    with pytest.raises(KeyboardInterrupt):
        trace(subject.llm, TraceSubject("tiny", TEXT, lambda: subject.ids), GREEDY, DEVICE, clock=stops, cost=NO_HOOKS)
    assert hooks_of(model) == 0
    assert engine.executor is executor
    for request in list(engine.requests):
        engine.abort(request)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_hooked_is_what_is_priced(tiny: Maker, family: str) -> None:
    """One list of ops, and none inside another: its cost and its time would count twice."""
    model = tiny(family).llm.loaded.model
    paths = [path for path, _ in Tracer(model).ops]
    assert paths == [path for path, _ in Price(model).calls]
    assert not any(path.startswith(f"{outer}.") for outer in paths for path in paths)


@pytest.mark.parametrize("family", FAMILIES)
def test_anatomy_of_every_family(tiny: Maker, family: str) -> None:
    model = tiny(family).llm.loaded.model
    assert len(blocks(model)) == 3
    assert dict(final_norm(model).named_parameters())["weight"].shape == (model.lm_head.matrix.inputs,)


def test_a_hook_costs_something_and_not_much() -> None:
    cost = hook_cost()
    assert 0 < cost.inside < 1e-3
    assert 0 <= cost.outside < 1e-3


def test_what_hooks_take_is_subtracted() -> None:
    """Two ops of 5 s, found as 5.5 because a hook reads half a second inside; 2 s a hooked call go to it outside."""
    cost = HookCost(inside=0.5, outside=2.0)
    #        batch 3+1    op   gap 1+2  op   tail 4+1, sampling 2
    run = _MeasuredRun(0.0, 23.0, 25.0, True, starts=(4.0, 12.5), ends=(9.5, 18.0))
    plain = _MeasuredRun(0.0, 18.0, 20.0, True)
    calls = tuple(TracedCall(path, torch.nn.Identity(), (), ()) for path in "ab")  # type: ignore[arg-type]
    found = _medians(StepPlan(0, ()), calls, [run], [plain], cost)
    assert found.seconds == (5.0, 5.0)
    assert found.gaps == (0.0, 1.0)
    assert (found.batch, found.tail, found.sampling) == (3.0, 4.0, 2.0)
    assert found.whole == found.hooked == found.unhooked == 20.0
    assert found.hooks == 5.0


def test_interrupted_runs_are_left_out_while_enough_others_remain() -> None:
    def runs(calm: Sequence[bool]) -> list[_MeasuredRun]:
        lengths = [1.0 if ok else 9.0 for ok in calm]
        return [_MeasuredRun(0.0, n, n, ok, starts=(0.0,), ends=(n,)) for n, ok in zip(lengths, calm, strict=True)]

    call = (TracedCall("a", torch.nn.Identity(), (), ()),)  # type: ignore[arg-type]
    plan = StepPlan(0, ())
    some = _medians(plan, call, runs([True, False, True, False, False, False, True]), runs([True] * 3), NO_HOOKS)
    assert (some.seconds, some.repeats, some.left_out) == ((1.0,), 3, 4)
    few = _medians(plan, call, runs([True, False, False, False, True]), runs([True] * 3), NO_HOOKS)
    assert (few.seconds, few.repeats, few.left_out) == ((9.0,), 5, 0)


def test_a_step_that_is_run_again_changes_no_page() -> None:
    item = PlanItem(7, 5, (1, 2), ((3, 4), (5,)), True, (1,))
    plan = StepPlan(2, (item,), blank=(3,), forget=(6,))
    repeated = plan.rerun()
    assert repeated.items == (structs.replace(item, pages=((), ()), first=False),)
    assert (repeated.copies, repeated.blank, repeated.forget) == ((), (), ())
    assert repeated.work() == plan.work()


def test_keys_and_values_are_those_of_a_plain_run(tiny: Maker) -> None:
    """The pages that a traced request wrote equal those that a plain one writes."""
    llm: LLM = tiny("mistral-window").llm
    buffer = llm.engine.executor.store.buffer  # type: ignore[attr-defined]
    layers = llm.engine.executor.store.layers  # type: ignore[attr-defined]

    def pages_after(traced: bool) -> list[torch.Tensor]:
        buffer.zero_()
        if traced:
            tiny("mistral-window").trace(TraceOptions(repeats=4), SamplingParams(temperature=0.0, max_tokens=2))
        else:
            llm.engine.kv_cache_manager.prefix_cache = False
            llm.generate([TEXT], SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True))
            llm.engine.kv_cache_manager.prefix_cache = True
        return [half.abs().sum((1, 3)).sum(0) for pages in layers.values() for half in (pages.k, pages.v)]

    for plain, traced in zip(pages_after(False), pages_after(True), strict=True):
        torch.testing.assert_close(plain, traced)


def test_what_was_not_the_same_token_is_an_error(tiny: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step whose repeats disagree must not pass as measured."""
    drawn = itertools.count(1)
    monkeypatch.setattr(Sampler, "sample", lambda sampler, logits, rows: [Sampled(next(drawn)) for _ in rows])
    with pytest.raises(ValueError, match="another token"):
        tiny("llama").trace()
    assert hooks_of(tiny("llama").llm.loaded.model) == 0
