"""Plans of models that read images: the tower in the bill and in the prefill, in the chunks that have a place of it."""

from dataclasses import replace

import pytest

from models.test_janus import PRO_1B
from ridgeline.core.models import Fields, build
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.work import ENCODER, StepSegment, Work
from ridgeline.price.activations import activation_peak
from ridgeline.price.devices import load_device
from ridgeline.price.plan import Deployment, PlanWorkload, make_plan
from ridgeline.price.plan.request_phases import prefill_phase, price_phase
from ridgeline.price.plan.scenario import ModelCache, Scenario

H100 = load_device("h100-sxm")
FIELDS = Fields(PRO_1B, "janus")
TOWER = 24 * (2 * 576 * (4 * 1024**2 + 2 * 1024 * 4096) + 4 * 1024 * 576**2)
AROUND = 2 * 576 * (768 * 1024 + 1024 * 2048 + 2048**2)


@pytest.fixture(scope="module")
def case() -> Scenario:
    return ModelCache(FIELDS).scenario(Deployment(H100))


@pytest.mark.parametrize(
    ("images", "step", "runs"),
    [(1, 2048, [1]), (2, 2048, [2]), (3, 2048, [3]), (2, 600, [2, 1, 0, 0]), (1, 100, [1] * 6 + [0] * 15)],
)
def test_a_prefill_runs_the_tower(case: Scenario, images: int, step: int, runs: list[int]) -> None:
    """Whole images in each step that has a place of them; no image sees another."""
    workload = PlanWorkload(2048, 1, step_tokens=step, images=images)
    phase = prefill_phase(case, workload)
    told = [work.rows.get(ENCODER, 0) for work in phase.works]
    assert told[: len(runs)] == [576 * count for count in runs]
    assert not any(told[len(runs) :])
    plain = prefill_phase(case, replace(workload, images=0))
    more = price_phase(case.price, H100, phase).flops - price_phase(case.price, H100, plain).flops
    around = 9 * 24 * 1024 + 10_000  # elementwise work of a row, of which the closed form says nothing
    assert sum(runs) * (TOWER + AROUND) <= more <= sum(runs) * (TOWER + AROUND + 576 * 60 * around)


def test_products_of_the_tower(case: Scenario) -> None:
    """Exactly those of its matrices and of its pairs."""
    seen = case.price.step(Work.of([case.part(PlanWorkload(1024, 1, images=1), 0, 1024)], case.price.reaches, 1))
    plain = case.price.step(Work.of([StepSegment(1024, 1024)], case.price.reaches, 1))
    assert seen.flops["bf16"] - plain.flops["bf16"] == pytest.approx(TOWER + AROUND, rel=1e-6)


def test_the_bill_has_a_row_for_it() -> None:
    """All that reads images together; the layer that is shown is one of text; other models have no such row."""
    found = parameter_breakdown(build(Fields(PRO_1B, "janus")))
    block = 4 * (1024**2 + 1024) + 2 * 1024 * 4096 + 4096 + 1024 + 4 * 1024
    tower = 24 * block + 768 * 1024 + 1024 + 576 * 1024 + 2 * 1024
    assert found.parameters["vision"] == tower + 1024 * 2048 + 2048 + 2048**2 + 2048
    assert "vision" not in found.layer
    assert found.layer["feed-forward"] == 3 * 2048 * 5632
    llama = {"architectures": ["LlamaForCausalLM"], **PRO_1B["text_config"]}
    assert "vision" not in parameter_breakdown(build(Fields(llama, "llama"))).parameters


def test_what_is_asked(case: Scenario) -> None:
    """More images than fit the input, images of a model that reads none."""
    with pytest.raises(
        ValueError, match="2 images are 1,152 tokens of input, but --input is 1,024; give --input 1152 or more"
    ):
        make_plan("janus", FIELDS, Deployment(H100), PlanWorkload(1024, 8, images=2), ())
    llama = Fields({"architectures": ["LlamaForCausalLM"], **PRO_1B["text_config"]}, "llama")
    with pytest.raises(ValueError, match="the model reads no images; leave out --images"):
        make_plan("llama", llama, Deployment(H100), PlanWorkload(1024, 8, images=1), ())
    with pytest.raises(ValueError, match="images is -1; it must be at least 0"):
        PlanWorkload(1024, 8, images=-1)
    plan = make_plan("janus", FIELDS, Deployment(H100), PlanWorkload(1024, 8, images=1), ())
    without = make_plan("janus", FIELDS, Deployment(H100), PlanWorkload(1024, 8), ())
    assert plan.prefill.seconds.floor > without.prefill.seconds.floor
    assert plan.decode.seconds == without.decode.seconds


def test_memory_is_kept_for_the_tower() -> None:
    """A short step may need the whole of two images, of which it has the end and the beginning. With a small vocabulary
    no sampler needs more."""
    text = {**PRO_1B["text_config"], "vocab_size": 100}
    small = Fields({**PRO_1B, "text_config": text, "image_token_id": 7}, "janus")
    seen, plain = (
        make_plan("janus", small, Deployment(H100), PlanWorkload(1024, 8, step_tokens=64, images=images), ())
        for images in (1, 0)
    )
    price = seen.case.price
    rows = seen.memory.logit_rows
    assert seen.memory.activations == activation_peak(price, 64, rows, 64 + 2 * 576)
    assert plain.memory.activations == activation_peak(price, 64, rows, 0) < seen.memory.activations
