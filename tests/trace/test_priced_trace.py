"""A request priced on a card that is not here: shapes, counts, and that its ops add up to the step of the plan."""

import json
import math
from typing import Any

import pytest

from models.configs import CONFIGS, ENCODER_DECODERS
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, build
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.insight.trace.priced_trace import PricedStep, PricedTrace, op_shapes, priced_trace
from ridgeline.insight.trace.views.priced_report import WIDTH, format_shapes, priced_document, priced_json
from ridgeline.price.devices import load_device
from ridgeline.price.error_interval import LEVELS, error_intervals
from ridgeline.price.interval_text import time_interval
from ridgeline.price.plan.scenario import Deployment, ModelCache
from ridgeline.price.plan.score_matrix import score_rows
from ridgeline.util.document.terminal_renderer import plain

H100 = load_device("h100-sxm")


def traced(values: dict[str, Any] | str, length: int = 16, batch: int = 1, **setup: Any) -> PricedTrace:
    """A trace of a config, or of a model of the catalogue, on H100 cards."""
    fields = read_config(values) if isinstance(values, str) else Fields(values, "config.json")
    return priced_trace("m", ModelCache(fields).scenario(Deployment(H100, **setup)), length, batch)


@pytest.fixture(scope="module")
def large() -> PricedTrace:
    """The 405B on eight cards."""
    return traced("llama-3.1-405b", 1024, devices=8)


def test_shapes_of_the_405b() -> None:
    """[N, 16384] -> [N, 128, 128] -> [N, N] of an undivided one: the stream, the heads, their scores."""
    trace = traced("llama-3.1-405b", 1024)
    by_path = {call.path.rpartition("*.")[2]: call for call in trace.steps[0].calls}
    assert format_shapes(by_path["self_attn.qkv"]) == "[N,16384] -> [N,16384] + 2 [N,1024]"
    assert format_shapes(by_path["self_attn.attend"]).startswith("[N,128,128] + 2 [N,8,128]")
    assert " -> 128 [N,S] -> [N,16384]" in format_shapes(by_path["self_attn.attend"])
    assert format_shapes(by_path["mlp.gate_up"]) == "[N,16384] -> [N,53248]"
    assert format_shapes(by_path["lm_head"]) == "[R,16384] -> [R,128256]"
    assert by_path["mlp.gate_up"].count == 126
    assert trace.steps[0].seen == trace.steps[0].work.tokens == 1024


def test_a_layer_is_shown_once(large: PricedTrace) -> None:
    """Each op of 126 layers once, but for the first norm, to which nothing is added."""
    counts = [call.count for call in large.steps[1].calls if call.layer is not None]
    assert set(counts) == {1, 125, 126}
    assert len(counts) == 10  # two norms and one of them twice, four products, attention, two all-reduces
    norms = [call for call in large.steps[1].calls if call.path.endswith("input_layernorm")]
    assert [call.count for call in norms] == [1, 125]


@pytest.mark.parametrize("kind", CONFIGS)
def test_ops_add_up_to_the_step(kind: str) -> None:
    """Of every family: costs, bounds and expected seconds of all calls are those of the step, and none beats its
    floor."""
    for step in traced(CONFIGS[kind], batch=3).steps:
        assert sum_of(step) == pytest.approx(parts(step.price.cost), rel=1e-9)
        bound = math.fsum(call.time.bound * call.count for call in step.calls)
        expected = math.fsum(call.time.expected * call.count for call in step.calls)
        assert bound == pytest.approx(step.price.bound, rel=1e-9)
        assert expected + step.price.host == pytest.approx(step.price.expected, rel=1e-9)
        assert all(call.floor <= call.time.bound * (1 + 1e-9) for call in step.calls)


def parts(cost: Cost) -> list[float]:
    """What a cost is made of."""
    return [cost.total_flops, cost.weight_bytes, cost.kv_read_bytes, cost.kv_write_bytes, cost.activation_bytes]


def sum_of(step: PricedStep) -> list[float]:
    """Of all calls."""
    return [math.fsum(each) for each in zip(*([p * c.count for p in parts(c.cost)] for c in step.calls), strict=True)]


@pytest.mark.parametrize("kind", ENCODER_DECODERS)
def test_an_encoder_reads_the_prompt(kind: str) -> None:
    """In the prefill alone; the decoder begins with one position, and looks at what was read in every step."""
    trace = traced(ENCODER_DECODERS[kind], batch=2)
    prefill, decode = trace.steps
    assert (trace.input, trace.encoded, prefill.seen, decode.seen) == (16, 16, 1, 2)
    assert (prefill.work.tokens, decode.work.tokens) == (2, 2)
    for step in trace.steps:
        assert sum_of(step) == pytest.approx(parts(step.price.cost), rel=1e-9)
    scores = {
        call.path: format_shapes(call).split(" -> ")[1].split()[1] for call in prefill.calls if call.shapes.scores
    }
    assert set(scores.values()) == {"[E,E]", "[N,S]", "[N,E]"}
    assert {call.shapes.inputs[0][0] for call in decode.calls} == {"N", "R"}
    page = plain(priced_document(trace), WIDTH)
    assert "prefill: N = 2, R = 2, S = 1, E = 32" in page
    assert "E: positions that the encoder reads" in " ".join(page.split())


def test_a_speech_model_is_given_a_window() -> None:
    """Whatever the length, as in a plan: 1,500 positions for the encoder, 3 control tokens for the decoder."""
    trace = traced("whisper-tiny", 7)
    prefill, decode = trace.steps
    assert (trace.input, trace.encoded, prefill.work.tokens, decode.seen) == (1500, 1500, 3, 4)
    price, window = trace.case.price, StepSegment(3, 3, 1500, runs_encoder=True)
    assert prefill.price.cost == price.price_step(H100, Work.of([window], price.reaches)).cost
    page = plain(priced_document(trace), WIDTH)
    assert "1,500 positions of audio, then the first decode step" in page
    assert page.count("\n4 layers\n") == 3, "the encoder's, and the decoder's in both steps"


def test_a_batch_and_formats(large: PricedTrace) -> None:
    """Weights in fp8 are half the bytes and products of fp8; a batch has as many rows and logits."""
    wide, narrow = traced("qwen3-8b", 64, batch=4), traced("qwen3-8b", 64, batch=4, weights="fp8", kv="fp8")
    prefill, decode = narrow.steps
    assert (prefill.work.tokens, prefill.work.logit_rows, decode.work.tokens) == (256, 4, 4)
    assert decode.price.cost.kv_read_bytes * 2 == wide.steps[1].price.cost.kv_read_bytes
    assert 0.5 < decode.price.cost.weight_bytes / wide.steps[1].price.cost.weight_bytes < 0.6
    assert decode.price.cost.flops["fp8"] > decode.price.cost.flops["bf16"]
    assert large.steps[1].seen == 1025


def test_the_limit_is_that_of_the_plan() -> None:
    """Prefill on cards without NVLink waits for their link, decode for memory; one card has no link to wait for."""
    rtx = load_device("rtx-4090")
    case = ModelCache(read_config("llama-3.1-70b")).scenario(Deployment(rtx, devices=8))
    prefill, decode = priced_trace("m", case, 1024, 1).steps
    assert (prefill.limit, decode.limit) == ("communication", "memory")
    links = sum(call.time.bound * call.count for call in prefill.calls if call.cost.communication)
    assert links > prefill.price.bound / 2
    page = plain(priced_document(priced_trace("m", case, 1024, 1)), 200)
    assert "the link between the GPUs is the limit" in " ".join(page.split())
    assert [step.limit for step in traced("llama-3-8b", 1024).steps] == ["compute", "memory"]


def test_scores_in_memory_are_those_of_the_plan() -> None:
    """Of a prefill alone, but that keys and values come from what holds the whole step."""
    case = ModelCache(read_config("llama-3-8b")).scenario(Deployment(H100))
    (wanted,) = (row for row in score_rows(case) if row.prompt == 2048)
    prefill, decode = priced_trace("m", case, 2048, 1).steps
    assert (prefill.scores.flops, prefill.scores.score_bytes) == (wanted.flops, wanted.score_bytes)
    assert prefill.scores.unfused == pytest.approx(wanted.unfused, rel=0.02)
    attention = [call for call in decode.calls if call.kind == "attention"]
    assert decode.scores.fused == pytest.approx(sum(call.time.bound * call.count for call in attention))
    assert decode.scores.unfused > decode.scores.fused


def test_shapes_have_the_letters_of_their_rows() -> None:
    """Every op of every family begins with rows of a space."""
    for values in CONFIGS.values():
        model = build(Fields(values, "c"))
        found = op_shapes(model)
        assert found.keys() == {path for path, _ in model.ops()}
        assert {shapes.inputs[0][0] for shapes in found.values()} <= {"N", "R"}


def test_the_page_and_the_json(large: PricedTrace) -> None:
    """Fits its width, names the three times, and the same figures are in the object."""
    page = plain(priced_document(large), WIDTH)
    assert max(map(len, page.splitlines())) <= WIDTH
    for said in (
        "floor", "bound", "exp.", "126 layers", "[N,16384] -> [N,2048] + 2 [N,128]", "S = 1,025", "whole step",
    ):  # fmt: skip
        assert said in page
    assert f"cases like this one: {LEVELS['timed']} shapes" in " ".join(page.split())
    found = json.loads(json.dumps(priced_json(large)))
    assert found["device"]["devices"] == 8
    for step in large.steps:
        told = found["steps"][step.name]
        assert told["floor_s"] <= told["bound_s"] <= told["expected_s"] == step.price.expected
        interval = error_intervals()[step.name, "timed"]
        low, high = told["interval_s"]
        assert low == max(told["expected_s"] * interval.low, told["floor_s"])
        assert high == told["expected_s"] * interval.high
        assert (told["interval"]["rows"], told["interval"]["known"]) == (interval.rows, "timed")
        assert time_interval(interval, step.price.expected, step.price.floor) in " ".join(page.split())
        assert [op["count"] for op in told["ops"]] == [call.count for call in step.calls]
        assert told["ops"][0]["inputs"] == [["N"]]


def test_a_prompt_that_the_model_cannot_take() -> None:
    """The step after it would be beyond the context."""
    with pytest.raises(ValueError, match=r"128 tokens and one after it, but the model's context is 128"):
        traced(CONFIGS["llama"], 128)
    with pytest.raises(ValueError, match="the batch 0; both must be at least 1"):
        traced(CONFIGS["llama"], 16, batch=0)
