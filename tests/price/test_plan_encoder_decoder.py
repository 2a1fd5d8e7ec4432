"""A plan for an encoder-decoder: what it is given its encoder reads, once, and every decode step looks at it."""

import dataclasses

import pytest

from ridgeline.core.checkpoint.source import read_config
from ridgeline.core.models import Fields
from ridgeline.core.ops.work import ENCODER, StepSegment, Work
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import load_engine
from ridgeline.price.plan import make_plan
from ridgeline.price.plan.comparison import compare
from ridgeline.price.plan.demand import Demand
from ridgeline.price.plan.deployment_plan import DeploymentPlan
from ridgeline.price.plan.request_phases import decoder_phases
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload


def plan_of(name: str, workload: PlanWorkload) -> DeploymentPlan:
    return make_plan(name, read_config(name), Deployment(load_device("h100-sxm")), workload, ())


def test_the_input_is_the_encoders() -> None:
    """Prefill runs it, with one position of the decoder; decode steps look at it."""
    plan = plan_of("flan-t5-base", PlanWorkload(200, 50, batch=6))
    workload, case = plan.workload, plan.case
    assert (workload.input, workload.encoded, workload.given, workload.tokens) == (1, 200, 200, 51)
    prefill, decode = decoder_phases(case, workload)
    (work,) = prefill.works
    assert work == Work.of([StepSegment(1, 1, 200, runs_encoder=True)] * 6, case.price.reaches, 6)
    assert work.rows[ENCODER] == 1200
    assert decode.works == (Work.decode([26], case.price.reaches, [200]) * 6,)
    assert decode.count == 49


def test_a_step_has_room_for_what_encoders_read() -> None:
    """2,048 positions are ten inputs of 200 and a position of each decoder."""
    plan = plan_of("flan-t5-base", PlanWorkload(200, 50, batch=25))
    prefill, _ = decoder_phases(plan.case, plan.workload)
    assert [work.rows[ENCODER] for work in prefill.works] == [2000, 2000, 1000]
    assert sum(work.tokens for work in prefill.works) == 25


def test_an_input_longer_than_a_step_runs_alone() -> None:
    """As the scheduler has it, with the activations of a step of its length."""
    fields = Fields(read_config("flan-t5-base").values | {"vocab_size": 512}, "c")
    setup = Deployment(load_device("h100-sxm"), engine=load_engine("ridgeline"))
    short, whole = (
        make_plan("t5", fields, setup, PlanWorkload(500, 50, step_tokens=tokens), ()) for tokens in (64, 501)
    )
    prefill, _ = decoder_phases(short.case, dataclasses.replace(short.workload, batch=3))
    assert [(work.rows[ENCODER], work.tokens) for work in prefill.works] == [(500, 1)] * 3
    assert short.memory.activations == pytest.approx(whole.memory.activations, rel=0.01)
    assert short.memory.activations > short.memory.sampler


def test_memory_holds_what_cross_attention_keeps() -> None:
    """24 layers of 64 x 64 keys and values in fp32 a position of either side, in whole pages."""
    memory = plan_of("t5-v1.1-xxl", PlanWorkload(256, 64)).memory
    pages = memory.layout.kept(65, 1, 256)
    assert memory.layout.kept(65, 1, 256) > memory.layout.kept(65, 1)
    assert pages * memory.page_bytes == pytest.approx(24 * 2 * 4096 * 4 * (256 + 80))


def test_where_prefill_turns_is_the_encoders_input() -> None:
    """A token fewer and a prompt is under the ridge; of attention there is a row for the longest input."""
    plan = plan_of("flan-t5-base", PlanWorkload(200, 50))
    turns = plan.crossings.compute_bound_prompt
    assert turns is not None
    under, over = (plan_of("flan-t5-base", PlanWorkload(length, 50)).prefill.balance for length in (turns - 1, turns))
    assert under < 1 <= over
    assert [row.prompt for row in plan.scores] == [512]


def test_inputs_longer_than_the_encoder_takes_are_refused() -> None:
    with pytest.raises(ValueError, match="1,024 tokens, but the model's encoder accepts 512; give --input 512 or less"):
        plan_of("t5-small", PlanWorkload())
    setup = Deployment(load_device("h100-sxm"))
    with pytest.raises(ValueError, match="1,024 tokens, but the model's encoder accepts 512; give --input 512 or less"):
        compare("t5", ModelCache(read_config("t5-small")), setup, PlanWorkload(), (setup.device,), Demand())


def test_a_decoders_plan_is_as_it_was() -> None:
    asked = PlanWorkload(300, 20)
    plan = make_plan(
        "llama", Fields(read_config("llama-3.2-1b").values, "c"), Deployment(load_device("h100-sxm")), asked, ()
    )
    assert plan.workload == asked
    assert (asked.prompt_step, asked.given) == (2048, 300)
