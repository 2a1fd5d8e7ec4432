"""The ledger: the ops that ran, in order, at the price that the model has; and sums that hold exactly."""

from typing import Any

import pytest
import torch
from torch import nn
from trace_models import DEVICE, FAMILIES, GREEDY, NO_HOOKS, Maker, Ticks, Tiny

from ridgeline.backends.cpu.library import library
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import build
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import RowAxis, StepSegment, Work
from ridgeline.engine import LLM, EngineSettings
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.insight.trace import TraceSubject, trace
from ridgeline.insight.trace.measurement import Measurement
from ridgeline.insight.trace.pricing import price_steps
from ridgeline.insight.trace.request_trace import TraceOptions
from ridgeline.insight.trace.run_stats import RunStats
from ridgeline.insight.trace.trace_ledger import Ledger, LedgerTotal
from ridgeline.insight.trace.tracer import TracedCall
from ridgeline.price import price as pricing
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price, traced_calls


def executed(tiny: Tiny) -> list[list[tuple[str, list[int]]]]:
    """Paths of the ops that a run of three tokens calls, and the shape that each gives out: a list for each step."""
    steps: list[list[tuple[str, list[int]]]] = []
    paths = {module: path for path, module in tiny.llm.loaded.model.named_modules() if isinstance(module, Op)}

    def note(op: nn.Module, _: Any, output: Any) -> None:
        if not steps or paths[op] == steps[0][0][0]:  # the first op of a step runs once in it
            steps.append([])
        first = output[0] if isinstance(output, tuple) else output
        steps[-1].append((paths[op], list(first.shape)))

    handles = [op.register_forward_hook(note) for op in paths]
    ledger = tiny.llm.engine.kv_cache_manager
    before, ledger.prefix_cache = ledger.prefix_cache, False
    tiny.llm.generate([tiny.ids], GREEDY)
    ledger.prefix_cache = before
    for handle in handles:
        handle.remove()
    return steps


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_are_the_ops_that_ran_in_order(tiny: Maker, family: str) -> None:
    subject = tiny(family)
    prefill, decode, *_ = executed(subject)
    ledger = subject.trace()
    assert [(row.path, list(row.entries["prefill"].outputs[0])) for row in ledger.rows] == prefill
    assert [(row.path, list(row.entries["decode"].outputs[0])) for row in ledger.rows] == decode
    assert len(ledger.rows) >= 3 * 6, "a model of three layers has more ops"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", FAMILIES)
def test_sums_equal_the_price_of_the_step(tiny: Maker, family: str, dtype: torch.dtype) -> None:
    subject = tiny(family, dtype)
    ledger = subject.trace()
    price = Price(subject.llm.loaded.model)
    assert [step.name for step in ledger.steps] == ["prefill", "decode"]
    assert [step.work.tokens for step in ledger.steps] == [len(subject.ids), 1]
    for step in ledger.steps:
        total, cost = ledger.ops(step.name), price.step(step.work)
        on = price.price_step(DEVICE, step.work)
        assert total.count == len(subject.llm.loaded.model.ops())
        assert total.cost.flops == pytest.approx(dict(cost.flops), rel=1e-12)
        assert total.cost.total_bytes == pytest.approx(cost.total_bytes, rel=1e-12)
        assert total.cost.memory_bytes == pytest.approx(cost.memory_bytes, rel=1e-12)
        assert total.bound == pytest.approx(on.bound, rel=1e-9)
        assert total.expected + step.host == pytest.approx(on.expected, rel=1e-9)
        assert step.floor == on.floor
        assert step.memory_level == "L2"


@pytest.mark.parametrize("family", ["llama", "qwen3-moe", "gpt2"])
def test_groups_add_up_to_the_rows(tiny: Maker, family: str) -> None:
    ledger = tiny(family).trace()
    for groups in (ledger.groups(), ledger.classes()):
        for step in ledger.steps:
            whole = ledger.ops(step.name)
            assert sum(group.totals[step.name].count for group in groups) == len(ledger.rows)
            assert sum(group.totals[step.name].cost.total_flops for group in groups) == pytest.approx(
                whole.cost.total_flops
            )
            measured = [group.totals[step.name].measured for group in groups]
            assert sum(measured) == pytest.approx(whole.measured)
    layered = [group for group in ledger.groups() if group.first.layer is not None]
    assert all("*" in group.label for group in layered)
    assert {group.totals["decode"].count for group in layered} <= {1, 2, 3}


def test_ops_and_rests_are_the_whole_step(tiny: Maker) -> None:
    """With a clock that ticks at every reading, each op, each gap, the batch, the tail and sampling take one tick. Of a
    recorded step each call does, of which attention has two, and two more gather the rows whose logits are wanted."""
    tick = 1e-3
    ledger = tiny("llama").trace(TraceOptions(repeats=3), clock=Ticks(tick))
    count = len(ledger.rows)
    assert [step.recorded for step in ledger.steps] == [False, library() is not None]
    for step in ledger.steps:
        if step.recorded:
            for row in ledger.rows:
                calls = 2 if row.kind == "attention" else 1
                assert row.entries[step.name].measured == pytest.approx(calls * tick)
            between = next(overhead.seconds for overhead in step.overheads if overhead.name == "between ops")
            assert between == pytest.approx(2 * tick)
            continue
        assert all(entry.measured == pytest.approx(tick) for entry in ledger.entries(step.name))
        overheads = {overhead.name: overhead.seconds for overhead in step.overheads}
        assert overheads == pytest.approx({"batch": tick, "between ops": count * tick, "sampling": tick})
        assert ledger.whole(step.name) == pytest.approx((2 * count + 2) * tick)
        assert step.interruptions == pytest.approx(0.0, abs=1e-9)
        assert step.unhooked == pytest.approx(2 * tick), "without hooks the clock is read three times"
        assert step.repeats + step.left_out == 3


def test_no_decode_where_the_context_is_full(tiny: Maker) -> None:
    subject = tiny("gpt2")
    ids = (subject.ids * 9)[: subject.llm.loaded.model.context - 1]
    ledger = _traced_ids(subject.llm, ids)
    assert [step.name for step in ledger.steps] == ["prefill"]
    assert len(ledger.written) == 1


def _traced_ids(llm: LLM, ids: list[int]) -> Ledger:
    from ridgeline.insight.trace import TraceSubject, trace

    return trace(llm, TraceSubject("tiny", "", lambda: ids), GREEDY, DEVICE, TraceOptions(repeats=1))


def test_experts_that_were_hit_are_told_from_those_priced(tiny: Maker) -> None:
    """The guard counts the experts that were read, not those that a balanced router would have read."""
    ledger = tiny("qwen3-moe").trace(TraceOptions(experts=True, repeats=1))
    assert ledger.experts is not None
    expert, length = 3 * 36 * 14, len(ledger.prompt)
    rows = [row for row in ledger.rows if row.kind == "experts"]
    missed = 0
    for row, routed in zip(rows, ledger.experts.layers, strict=True):
        hit = len({expert for picked in routed.picked[:length] for expert in picked})
        missed += 7 - hit
        prefill, decode = row.entries["prefill"], row.entries["decode"]
        assert prefill.note == f"{hit} experts hit, 7.0 priced"
        assert decode.note == "3 experts hit, 3.0 priced"
        assert prefill.floor == pytest.approx(max(hit * expert * 4 / 700e9, length * 3 * 2 * expert / 7e12), rel=1e-9)
        assert decode.floor == pytest.approx(3 * expert * 4 / 700e9, rel=1e-9)
    assert missed, "no layer left an expert out, so nothing was shown"


@pytest.mark.parametrize("family", ["llama", "mistral-window", "gpt2"])
def test_score_matrix_is_counted_pair_by_pair(tiny: Maker, family: str) -> None:
    """Four passes over heads x visible pairs; the window of the Mistral is 5."""
    ledger = tiny(family).trace()
    length = len(ledger.prompt)
    window = 5 if family == "mistral-window" else length + 1
    heads = 4 if family == "gpt2" else 6
    pairs = sum(min(query + 1, window) for query in range(length))
    prefill, decode = ledger.steps
    assert prefill.score_matrix is not None
    assert decode.score_matrix is not None
    assert prefill.score_matrix.nbytes == 3 * 4 * heads * pairs * 4
    assert decode.score_matrix.nbytes == 3 * 4 * heads * min(length + 1, window) * 4
    assert prefill.score_matrix.with_matrix > prefill.score_matrix.bound


def test_a_model_is_priced_once(tiny: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One forward on meta, whoever asks what a step costs: the loader, the account of a run, a trace."""
    folder, traced = tiny("llama").folder, []

    def counting(model: Model) -> list[tuple[str, Op, RowAxis]]:
        traced.append(model)
        return traced_calls(model)

    monkeypatch.setattr(pricing, "traced_calls", counting)
    llm = LLM(str(folder), EngineSettings(kv_bytes=1 << 20, limits=Limits(requests=2)))
    account = RunStats(llm.loaded.price)
    llm.engine.on_step = account.add
    trace(llm, TraceSubject("tiny", "", lambda: [1, 2, 3]), GREEDY, DEVICE, TraceOptions(repeats=1), cost=NO_HOOKS)
    assert len(traced) == 1
    assert llm.loaded.price.step(Work.of([StepSegment(1, 4)])) == Price(llm.loaded.model).step(
        Work.of([StepSegment(1, 4)])
    )


def test_rows_sum_to_the_step_on_a_card_that_fuses() -> None:
    """q, k and v share a launch on a GPU; o has q's shape and a launch of its own, so the two are not one price."""
    model = build(read_config("llama-2-7b"))
    shapes = {
        path: op.signature() for path, op in model.ops() if path.endswith(("0.self_attn.q_proj", "0.self_attn.o_proj"))
    }
    assert len(set(shapes.values())) == 1, "the case is gone: give the test another model"
    item = PlanItem(1, 511, (1,), ((),), False, (0,))
    card, plan = load_device("h100-sxm"), StepPlan(1, (item,))
    price, ops = Price(model), dict(model.ops())
    calls = tuple(TracedCall(path, ops[path], (), ()) for path, _ in price.calls)
    zeros = (0.0,) * len(calls)
    measured = Measurement(plan.work(model.attention_patterns), calls, zeros, zeros, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1, 0)
    (step,), rows = price_steps(price, {"decode": measured}, card, at_hand=False)
    on = price.price_step(card, plan.work(model.attention_patterns))
    total = LedgerTotal.of(row.entries["decode"] for row in rows)
    assert total.bound == pytest.approx(on.bound, rel=1e-9)
    assert total.expected + step.host == pytest.approx(on.expected, rel=1e-9)
    assert step.expected == on.expected
