"""The plan of a speech model: windows of sound, whose encoder runs whole with the prompt."""

import re
from pathlib import Path

import pytest

from ridgeline.core.checkpoint import read_config
from ridgeline.core.models.common.parameter_breakdown import layers_of
from ridgeline.core.ops.work import ENCODER, TOKENS
from ridgeline.price.device import HourlyPrice
from ridgeline.price.interval_text import costs_between
from ridgeline.price.plan import make_plan
from ridgeline.price.plan.comparison import compare
from ridgeline.price.plan.comparison_document import compare_document
from ridgeline.price.plan.demand import Demand
from ridgeline.price.plan.plan_answer import answer
from ridgeline.price.plan.plan_document import plan_document
from ridgeline.price.plan.plan_export import comparison_json, plan_json
from ridgeline.price.plan.plan_text import verdict
from ridgeline.price.plan.request_phases import prefill_phase
from ridgeline.price.plan.scenario import Deployment, ModelCache, PlanWorkload
from ridgeline.util.document.humanize import three_digits
from ridgeline.util.document.terminal_renderer import plain
from support.planned import H100, card


@pytest.mark.parametrize(("name", "weights"), [("whisper-base", 72_593_920), ("whisper-large-v3-turbo", 808_878_080)])
def test_releases(name: str, weights: int, data_dir: Path) -> None:
    """Memory, users, seconds of sound a second; what a user keeps is the decoder's positions and the encoder's."""
    fields = read_config(str(data_dir / "configs" / f"openai__{name}"))
    plan = make_plan(name, fields, Deployment(H100, weights="bf16"), PlanWorkload(output=100, step_tokens=8192), ())
    model, workload = plan.case.model, plan.workload
    assert layers_of(model) == ((6, 6) if name == "whisper-base" else (32, 4)), "in the order in which data pass"
    assert plan.memory.weights == 2 * weights
    assert (workload.input, workload.output, workload.encoded) == (3, 100, 1500)
    width = 2 * 2 * model.kv_specs[0].heads * model.kv_specs[0].k_dim  # bytes of K and V of a position
    layers = len(model.kv_specs) // 2
    exact = layers * width * (1500 + 103)
    assert exact <= plan.memory.request_bytes <= exact * 1.02
    shown = plain(plan_document(plan))
    words = " ".join(shown.split())
    assert "1,500 tokens in, 100 out" in words
    sound = words[words.index(" sound ") :]
    assert "windows of 30 s" in sound[: sound.index(" limit ")]
    alone, together = plan.serving.load(1), plan.reported_load
    assert together.requests_per_second.expected > alone.requests_per_second.expected > 0


def test_what_an_hour_of_sound_costs(data_dir: Path) -> None:
    """Figures of sound where a generator's are of tokens: in the answer, the words, the JSON, the ranking of cards."""
    fields = read_config(str(data_dir / "configs" / "openai__whisper-base"))
    device = card(price=HourlyPrice(2.0, "2026", "test"))
    half = card(name="half", bandwidth=device.bandwidth / 2, price=HourlyPrice(1.5, "2026", "test"))
    asked = PlanWorkload(output=100)
    plan = make_plan("w", fields, Deployment(device), asked, (half,))
    windows = plan.reported_load.requests_per_second.expected
    told = plan_json(plan)["answer"]["sound"]
    assert told["hours_per_hour"] == pytest.approx(30 * windows)
    assert told["dollars_per_hour"] == pytest.approx(2.0 / (30 * windows))
    facts = dict(answer(plan))
    low, high = (told["dollars_per_hour"] * factor for factor in plan.cost_factors)
    around = costs_between(low, high)
    assert facts["cost"].startswith(f"${three_digits(told['dollars_per_hour'])} {around} per hour of audio")
    assert "per million" not in " ".join((*facts.values(), verdict(plan)))
    stated = Deployment(device, weights=plan.case.weights, kv=plan.case.kv)
    compared = compare("w", ModelCache(fields), stated, asked, (device, half), Demand(), counts=(1,))
    offers = {offer["card"]: offer for offer in comparison_json(compared)["cards"]}
    assert offers["text-a100"]["sound"] == told
    shown = plain(compare_document(compared))
    assert "1,500 tokens in, 100 out" in shown.splitlines()[0]
    assert "audio hours/h" in shown
    assert "$/h of audio" in shown
    assert "tok/s" not in shown


def test_a_windows_attention_and_where_it_turns(data_dir: Path) -> None:
    """The encoder's and the decoder's, as a prefill of one window has them."""
    fields = read_config(str(data_dir / "configs" / "openai__whisper-base"))
    plan = make_plan("w", fields, Deployment(card()), PlanWorkload(output=100), ())
    (row,) = plan.scores
    (attention,) = (each for each in plan.prefill.classes if each.kind == "attention")
    assert row.prompt == 1500
    assert row.fused == pytest.approx(attention.bound, rel=0.01)
    shown = " ".join(plain(plan_document(plan, ["turns"])).split())
    assert re.search(
        rf"an audio window is .* times {'over' if plan.prefill.balance >= 1 else 'under'} the ridge", shown
    )


def test_windows_share_a_step_as_the_scheduler_has_it(data_dir: Path) -> None:
    """Whole windows: as many as a step has positions for, at least one."""
    fields = read_config(str(data_dir / "configs" / "openai__whisper-base"))
    case = ModelCache(fields).scenario(Deployment(card()))
    for step, windows in ((2048, 1), (1000, 1), (4600, 3)):
        workload = PlanWorkload(output=20, batch=7, step_tokens=step).of(case.model)
        works = prefill_phase(case, workload).works
        rows = [(work.rows[TOKENS], work.rows[ENCODER]) for work in works]
        assert rows[0] == (3 * windows, 1500 * windows)
        assert sum(tokens for tokens, _ in rows) == 21
        assert sum(encoded for _, encoded in rows) == 7 * 1500


def test_a_decoder_is_planned_as_before() -> None:
    """Its prompt is its own."""
    workload = PlanWorkload(step_tokens=512)
    assert workload.prompt_step == 512
