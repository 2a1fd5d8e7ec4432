"""Prefill and decode of the plan, against arithmetic by hand and the numbers of the texts."""

import math
import re
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.work import CROSS, ENCODER, LOGITS, TOKENS, AttentionSum, StepSegment, Work
from ridgeline.price.plan.load_estimate import LoadEstimator, touched_experts
from ridgeline.price.plan.plan_document import classes_table, phases_table
from ridgeline.price.plan.request_phases import Phase, decode_phase, decoder_phases, price_phase, request_seconds
from ridgeline.price.plan.scenario import Deployment, PlanWorkload, Scenario
from ridgeline.price.price import Price
from ridgeline.util.document.elements import Document
from ridgeline.util.document.terminal_renderer import plain
from support.planned import (
    H100,
    LLAMA_3_8B,
    LLAMA_3_70B,
    TINY,
    TINY_MIXTURE,
    TINY_SLIDING,
    card,
    case,
    decode_of,
    prefill_of,
    prefill_steps,
)
from support.wall_models import wall_model

A100_8B = case(LLAMA_3_8B)
READ_8B = 2 * (8_030_261_248 - 128_256 * 4096 + 4096)  # all but the embedding, of which one row is gathered


def test_one_user_of_llama_3_8b_on_an_a100() -> None:
    """SEED_NUMBERS 6: "16 GB: 8 ms, 125 tok/s; 0.05 ms of arithmetic"; the ledger: 15.01 GB, 7.36 ms at 2.039 TB/s."""
    phase = decode_of(A100_8B, 1, 1)
    assert phase.weight_bytes == READ_8B == pytest.approx(15.01e9, rel=0.001)
    assert phase.kv_read_bytes == phase.kv_write_bytes == 131_072
    assert phase.seconds.floor == pytest.approx((READ_8B + 2 * 131_072) / 2.039e12, rel=1e-12)
    assert 1 / phase.seconds.floor == pytest.approx(133 * 2.039 / 2, rel=0.02)
    assert phase.flops == pytest.approx(2 * READ_8B / 2, rel=0.001)
    assert phase.flops / 312e12 == pytest.approx(0.048e-3, rel=0.01)
    assert phase.limit == "memory"
    assert phase.ridge == pytest.approx(153.0, abs=0.1)
    assert phase.idle == pytest.approx(1 - 1.0 / 153, abs=0.001)


def test_one_user_of_llama_3_70b_on_an_h100() -> None:
    """SEED_NUMBERS 7: 139.0 GB: 41.5 ms; 0.141 ms of arithmetic: 295 x."""
    phase = decode_of(case(LLAMA_3_70B, H100), 1, 1)
    assert phase.memory_bytes == pytest.approx(139.0e9, rel=0.001)
    assert phase.seconds.floor == pytest.approx(41.5e-3, rel=0.002)
    assert phase.flops / 989e12 == pytest.approx(0.141e-3, rel=0.01)


def test_prefill_of_eight_tokens_is_memory_bound() -> None:
    """SEED_NUMBERS 8: the text has ~5 ms of compute; the ledger: 4.48 ms of reading, 0.12 ms of arithmetic."""
    phase = prefill_of(case(LLAMA_3_8B, H100), PlanWorkload(8, 30))
    assert phase.limit == "memory"
    assert phase.intensity == pytest.approx(8, rel=0.1)
    assert phase.seconds.floor == pytest.approx(4.48e-3, rel=0.002)
    assert (1 - phase.idle) * phase.seconds.floor == pytest.approx(0.12e-3, rel=0.06)


def test_prefill_flops_by_hand() -> None:
    """2 FLOPs a weight and token, head for the last one only, causal pairs S (S + 1) / 2 of 4 x 4096 a layer."""
    tokens = 1024
    matrices = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14_336)
    pairs = tokens * (tokens + 1) // 2
    by_hand = 2 * matrices * tokens + 2 * 4096 * 128_256 + 32 * 4 * 4096 * pairs
    phase = prefill_of(A100_8B, PlanWorkload(tokens, 1))
    assert phase.flops == pytest.approx(by_hand, rel=0.001)  # norms, rotations and activations are the rest
    assert phase.flops > by_hand
    assert phase.limit == "compute"
    assert phase.kv_write_bytes == tokens * 131_072


@pytest.mark.parametrize(("context", "text"), [(128, 30.9), (512, 28.1), (2000, 20.9)])
def test_what_32_users_bring(context: int, text: float) -> None:
    """SEED_NUMBERS 18: "32 x"; with the KV that each brings 30.9, 28.1 and 20.9."""
    one, many = (decode_of(A100_8B, batch, context).seconds.floor for batch in (1, 32))
    assert 32 * one / many == pytest.approx(text, abs=0.06)


def test_experts_touched_against_batch() -> None:
    """SEED_NUMBERS 10: of 128 with 8 a token: 8, 51.6, 111.8, 125.9 at batch 1, 8, 32, 64."""
    wide = case(TINY_MIXTURE | {"num_local_experts": 128, "num_experts_per_tok": 8, "intermediate_size": 64})
    for batch, experts in ((1, 8.0), (8, 51.6), (32, 111.8), (64, 125.9)):
        assert touched_experts(wide, batch) == pytest.approx(experts, abs=0.05)
        assert touched_experts(wide, batch) == pytest.approx(128 * (1 - (1 - 8 / 128) ** batch))
    assert touched_experts(A100_8B, 8) is None


@pytest.mark.parametrize("config", [TINY, TINY_SLIDING], ids=["full", "sliding"])
@pytest.mark.parametrize(
    ("prompts", "length", "step"), [(1, 5000, 2048), (3, 700, 1000), (5, 64, 128), (2, 10, 1), (4, 7, 10)]
)
def test_chunks_do_what_the_whole_does(config: dict[str, Any], prompts: int, length: int, step: int) -> None:
    """The same positions, pairs, KV written and logit rows; weights once a step; KV of earlier chunks read again."""
    planned = case(config)
    workload = PlanWorkload(length, 1, batch=prompts, step_tokens=step)
    phase = prefill_of(planned, workload)
    whole = planned.price.step(Work.of([StepSegment(length, length)] * prompts, planned.price.reaches))
    steps = prefill_steps(planned, workload, prompts)
    assert len(steps) == phase.steps == math.ceil(prompts * length / step)
    assert phase.tokens == prompts * length
    assert phase.flops == pytest.approx(whole.total_flops, rel=1e-12)
    assert phase.kv_write_bytes == whole.kv_write_bytes
    assert phase.kv_read_bytes >= whole.kv_read_bytes
    assert phase.activation_bytes == pytest.approx(whole.activation_bytes)
    assert phase.seconds.floor == pytest.approx(sum(s.floor for s in steps))
    if step < length:
        assert phase.kv_read_bytes > whole.kv_read_bytes


def test_short_prompts_share_steps() -> None:
    """64 prompts of 128 are 4 steps of 2,048, not 64 steps that each read the weights."""
    phase = prefill_of(A100_8B, PlanWorkload(128, 1, batch=64))
    assert phase.steps == 4
    assert phase.weight_bytes == pytest.approx(4 * READ_8B, rel=0.02)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_classes_add_up_to_the_bound(devices: int) -> None:
    for phase in (
        decode_of(case(TINY_MIXTURE, devices=devices), 3, 200),
        prefill_of(case(TINY, devices=devices), PlanWorkload(300, 5)),
    ):
        assert sum(row.bound for row in phase.classes) == pytest.approx(phase.seconds.bound)
        assert sum(row.expected for row in phase.classes) + phase.host == pytest.approx(phase.seconds.expected)
        assert phase.host > 0, "the engine's host takes longer than so small a model"
        assert sum(row.share for row in phase.classes) == pytest.approx(1)
        assert ("communication" in {row.kind for row in phase.classes}) == (devices > 1)
        assert [row.bound for row in phase.classes] == sorted((row.bound for row in phase.classes), reverse=True)


def test_order_of_the_three() -> None:
    """With perfect kernels: the bound sums what the floor takes as a whole; blending both roofs adds at most sqrt 2."""
    for batch in (1, 16, 400):
        seconds = decode_of(A100_8B, batch, 700).seconds
        assert seconds.floor <= seconds.bound <= seconds.expected <= seconds.bound * math.sqrt(2)


def test_decode_is_priced_at_the_running_context() -> None:
    assert PlanWorkload(1000, 200).context == 1100
    assert PlanWorkload(1000, 1).context == 1001
    steps = [decode_of(A100_8B, 4, 1000 + i).seconds.floor for i in range(1, 200)]  # the 199 after the first token
    mean = decode_of(A100_8B, 4, PlanWorkload(1000, 200).context).seconds.floor
    assert mean == pytest.approx(sum(steps) / len(steps), rel=1e-9)


def test_a_narrow_format_without_units_computes_at_the_wider_ones_peak() -> None:
    """int8 weights are widened on the way: half the bytes, the same arithmetic."""
    wide, narrow = (decode_of(case(LLAMA_3_8B, weights=w), 1, 100) for w in (None, "int8"))
    assert narrow.flops == wide.flops
    assert narrow.weight_bytes < 0.56 * wide.weight_bytes
    assert narrow.ridge == pytest.approx(wide.ridge)


def test_kv_in_eight_bits_halves_what_is_read() -> None:
    wide, narrow = (decode_of(case(LLAMA_3_8B, card(), kv=kv), 8, 3000) for kv in (None, "fp8"))
    assert narrow.kv_read_bytes == wide.kv_read_bytes / 2
    assert narrow.weight_bytes == wide.weight_bytes


# -- any list of phases -----------------------------------------------------------------------------------------------


def made_up(devices: int = 1) -> tuple[Any, list[Phase]]:
    """A text encoder's pass, fifty times two passes of a denoiser (with guidance and without), and one over latents: no
    model here has them, but all are lists of Works."""
    planned = case(TINY, devices=devices)

    def work(rows: int, logits: int) -> Work:
        return Work.of([StepSegment(rows, rows)], planned.price.reaches, logits)

    return planned, [
        Phase("encode", (work(77, 1),), about="77 tokens"),
        Phase("denoise", (work(1024, 1), work(1100, 1)), 50, "2 x 1,024 latents"),
        Phase("decode-latents", (work(4096, 1),)),
    ]


def test_a_request_is_the_sum_of_its_phases_each_as_often_as_it_runs() -> None:
    planned, phases = made_up()
    priced = [price_phase(planned.price, planned.device, phase) for phase in phases]
    assert [(p.name, p.count, p.steps, p.tokens) for p in priced] == [
        ("encode", 1, 1, 77), ("denoise", 50, 2, 2124), ("decode-latents", 1, 1, 4096),
    ]  # fmt: skip
    once = [sum(planned.price.price_step(planned.device, work).expected for work in phase.works) for phase in phases]
    assert [p.seconds.expected for p in priced] == pytest.approx(once)
    assert request_seconds(priced).expected == pytest.approx(once[0] + 50 * once[1] + once[2])


@pytest.mark.parametrize("devices", [1, 2])
def test_tables_have_a_column_for_every_phase(devices: int) -> None:
    planned, phases = made_up(devices)
    priced = [price_phase(planned.price, planned.device, phase) for phase in phases]
    does, classes = (
        plain(Document("", (table,)), 160) for table in (phases_table(priced), classes_table(priced, "a note"))
    )
    heads = does.splitlines()[1]
    assert [part.strip() for part in re.split(r"  +", heads) if part] == [
        "encode, 77 tokens", "denoise, 2 x 1,024 latents", "decode-latents",
    ]  # fmt: skip
    assert ("all-reduce between devices" in does) == ("all-gather between devices" in does) == (devices > 1)
    for name in ("encode", "denoise", "decode-latents"):
        assert f"─ {name} ─" in classes
    assert classes.rstrip().endswith("a note")
    linear = next(line for line in classes.splitlines() if line.startswith("linear"))
    assert len(re.findall(r"[µmn]?s  +(?:memory|compute)", linear)) == 3


def test_a_class_that_one_phase_has_and_another_has_not() -> None:
    priced = [decode_of(case(TINY), 1, 10), prefill_of(case(TINY_MIXTURE), PlanWorkload(10, 1))]
    kinds = {row.cells[0]: row.cells for row in classes_table(priced, "a note").rows if not isinstance(row, str)}
    assert kinds["experts"][1:4] == ("", "", "")
    assert "" not in kinds["experts"][4:]


def test_bytes_between_cards_are_named_by_collective() -> None:
    """Of a decode step of two cards: an all-reduce after attention and after the feed-forward of each of two layers
    and one of the embedding's rows, each of 256 numbers in bf16; the logits of 1,000 tokens are gathered."""
    lone, pair = (decode_of(case(TINY, devices=devices), 3, 10).communication for devices in (1, 2))
    assert lone == {}
    assert set(pair) == {"all_reduce", "all_gather"}
    assert pair["all_reduce"] == 5 * 3 * 256 * 2
    assert pair["all_gather"] > 0


def test_an_encoder_runs_once_a_prompt_and_every_step_reads_what_it_gave() -> None:
    """Of three prompts of 30 tokens in steps of 16, each with 21 for the encoder: 3 x 21 rows of it in all."""
    model = wall_model("encoder-decoder")
    planned = Scenario(Deployment(card()), model, Price(model))
    workload = PlanWorkload(30, 10, batch=3, step_tokens=16, encoded=21)
    prefill, decode = decoder_phases(planned, workload)
    work = sum(prefill.works[1:], prefill.works[0])
    assert work.rows == {TOKENS: 90, LOGITS: 3, ENCODER: 63}
    assert (work.attention[CROSS].total.pairs, work.attention[CROSS].total.written) == (90 * 21, 63)
    assert decode.works[0].attention[CROSS].total == AttentionSum(3, 3, 63, 63, 0)
    assert ENCODER not in decode.works[0].rows
    serving, without = (LoadEstimator(planned, replace(workload, encoded=encoded)) for encoded in (21, 0))
    assert serving.prefill.floor > without.prefill.floor
    crossing = [spec for spec in model.kv_specs if isinstance(spec, KVSpec) and spec.reach == CROSS]
    read = sum(spec.slot_bytes for spec in crossing) * 21
    assert serving.itl(5).bound > without.itl(5).bound
    prices = [price_phase(planned.price, card(), decode_phase(planned, 5, 35, encoded=n)) for n in (21, 0)]
    assert prices[0].kv_read_bytes - prices[1].kv_read_bytes == 5 * read
