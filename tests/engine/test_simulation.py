"""A simulation is the same engine with an executor that prices: the plans are those of the real runner."""

import dataclasses
import subprocess
import sys
from collections.abc import Sequence

import pytest

from engine.null_model import GREEDY
from engine.small_models import LLAMA, MIXED, small_model
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import Work
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import StepRecord, TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.model_traits import ModelTraits
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan
from ridgeline.price.price import Price
from support.planned import card

EOS = 40


class Priced:
    """An executor that runs nothing: a step takes as long as it is expected to, and a request ends at its length.

    lengths: by request and choice's id, tokens until its end token. The engine is never told them.
    """

    def __init__(self, model: Model, lengths: dict[int, int]) -> None:
        self.price, self.device, self.lengths = Price(model), card(), lengths
        self.now = 0
        self.left = dict(lengths)

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled]:
        work = plan.work(self.price.reaches)
        self.now += round(self.price.price_step(self.device, work).expected * 1e9)
        return [self.next(item.request) for item in plan.items if item.logits]

    def next(self, request: int) -> Sampled:
        self.left[request] -= 1
        return Sampled(EOS if self.left[request] == 0 else 1)


def engine_around(model: Model, executor: object, records: list[StepRecord], **others: object) -> Engine:
    layout, limits = kv_layout(model, 1e12, 4, most_tokens=48), Limits(tokens=24, requests=6, chunk=10)
    return Engine(
        executor if executor is not None else Runner(model, layout),  # type: ignore[arg-type]
        KVCacheManager(layout, limits.max_request_tokens),
        limits,
        ModelTraits(model.context, model.vocabulary, model.vocabulary),
        eos_ids=range(EOS - 2, EOS + 1),
        on_step=records.append,
        **others,  # type: ignore[arg-type]
    )


def arrive(engine: Engine) -> list[TokenEvent]:
    """Requests that come at certain steps, to their ends."""
    events: list[TokenEvent] = []
    for step in range(400):
        if step < 24:
            stem = [2, 3, 5, 7, 11, 13, 17, 19][: step % 9]
            engine.add(
                GenerationRequest(
                    [*stem, *range(step % 7 + 2)], dataclasses.replace(GREEDY, max_tokens=20, n=1 + step % 2)
                )
            )
        events += engine.step()
        if not engine.has_work and step >= 30:
            return events
    raise AssertionError("it does not end")


@pytest.mark.parametrize("config", [LLAMA, MIXED], ids=["full", "mixed"])
def test_a_priced_run_plans_what_the_real_one_plans(config: dict[str, object]) -> None:
    """Told only how many tokens each request gets, it makes the same plans, but for ids that it cannot know."""
    model = small_model(config)
    real_records: list[StepRecord] = []
    real = engine_around(model, None, real_records)
    lengths: dict[int, int] = {}
    ids: dict[tuple[int, int], int] = {}
    for event in arrive(real):
        key = event.request + event.choice
        lengths[key] = lengths.get(key, 0) + (event.token is not None)
        ids[event.request, event.choice] = key
    assert len(set(lengths.values())) > 1, "some ended early"
    assert real.stats.preemptions > 0

    def simulate(lengths: dict[int, int]) -> tuple[list[StepRecord], list[TokenEvent], Priced]:
        records: list[StepRecord] = []
        executor = Priced(model, lengths)
        events = arrive(engine_around(model, executor, records, clock=lambda: executor.now))
        return records, events, executor

    records, events, executor = simulate(lengths)
    assert [shape(record.plan) for record in records] == [shape(record.plan) for record in real_records]
    assert [record.work for record in records] == [record.work for record in real_records]
    for record in real_records:
        plan, items = record.plan, record.plan.items
        assert record.work == Work.of([item.segment for item in items], model.attention_patterns, plan.logit_rows)
    priced = [round(executor.price.price_step(executor.device, record.work).expected * 1e9) for record in real_records]
    assert [record.finished - record.started for record in records] == priced
    assert executor.now == sum(priced) == max(event.at for event in events)
    assert simulate(lengths)[1] == events, "equal input, equal output"


def shape(plan: StepPlan) -> object:
    """A plan without its ids of tokens."""
    items = [(item.request, item.start, len(item.tokens), item.pages, item.first, item.logits) for item in plan.items]
    return plan.step, items, plan.copies, plan.blank, plan.forget


def test_the_bookkeeping_imports_without_torch() -> None:
    modules = (
        "scheduler",
        "engine",
        "step_plan",
        "request",
        "events",
        "result",
        "params",
        "failure_isolation",
        "decode_fast_path",
        "request_updater",
        "kv.kv_cache_manager",
    )
    code = "\n".join(f"import ridgeline.engine.{name}" for name in modules)
    code += "\nimport sys\nprint(sorted({'torch', 'tokenizers', 'transformers'} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
