"""A recording against the ledger that it is of, and its draws against a sampler written out."""

import math
import random
from dataclasses import replace
from typing import Any

import pytest

from ridgeline.engine.llm import LLM
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.setup import load_engine
from ridgeline.insight.trace.attention_weights import attention_at
from ridgeline.insight.trace.capture import capture
from ridgeline.insight.trace.request_trace import TraceOptions, TraceSubject, trace
from ridgeline.insight.trace.token_sampling import draws, plain
from ridgeline.insight.trace.trace_ledger import Ledger
from ridgeline.learn.page.recorder import record
from ridgeline.learn.page.request_recording import COLUMNS, RecordingTime, recording
from ridgeline.price.devices import load_device
from ridgeline.price.engine_profile import OWN_ENGINE
from ridgeline.price.engine_profile import load_engine as load_profile
from ridgeline.price.error_interval import intervals_for

TEXT = "One day, a </script> bear"


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tales", threads=1)


@pytest.fixture(scope="module")
def ledger(llm: LLM) -> Ledger:
    params = plain(replace(llm.loaded.defaults, max_tokens=3, seed=4))
    wanted = TraceOptions(attention=True, lens=True, memory=True, repeats=3)
    subject = TraceSubject("tales", TEXT, lambda: llm.encode(TEXT))
    return trace(llm, subject, params, load_device("h100-sxm"), wanted, at_hand=False)


def recorded(ledger: Ledger, **more: Any) -> dict[str, Any]:
    looks = more.get("draws", []), more.get("attention", [])
    factors = {"prefill": (0.5, 2.0), "decode": (0.8, 1.5)}
    return recording(ledger, SamplingParams(), *looks, {0, 1}, RecordingTime(0.5, 0.4), factors)


def test_each_op_of_each_step_is_the_ledgers(ledger: Ledger) -> None:
    told = recorded(ledger)
    assert [op["path"] for op in told["ops"]] == [row.path for row in ledger.rows]
    for step in told["steps"]:
        assert len(step["entries"]) == len(ledger.rows)
        for row, values in zip(ledger.rows, step["entries"], strict=True):
            own, entry = dict(zip(COLUMNS, values, strict=True)), row.entries[step["name"]]
            assert (own["inputs"], own["outputs"], own["limit"]) == (entry.inputs, entry.outputs, entry.limit)
            nbytes = own["weights"] + own["read"] + own["written"] + own["activations"]
            assert nbytes == pytest.approx(entry.cost.total_bytes, rel=1e-6)
            assert own["flops"] == pytest.approx(entry.cost.total_flops, rel=1e-6)
            for name in ("measured", "expected", "bound", "floor", "gap"):
                assert own[name] == pytest.approx(getattr(entry, name), rel=1e-6)
            assert own["bound"] == pytest.approx(max(own["compute"], own["memory"]), rel=1e-6)


def test_ops_and_what_lies_between_them_are_the_step(ledger: Ledger) -> None:
    for step in recorded(ledger)["steps"]:
        ops = [dict(zip(COLUMNS, values, strict=True)) for values in step["entries"]]
        overheads = step["overheads"]
        assert list(overheads) == ["batch", "between ops", "sampling"]
        whole = sum(op["measured"] for op in ops) + sum(overheads.values())
        assert whole == pytest.approx(step["measured"], rel=1e-6)
        assert step["measured"] == pytest.approx(ledger.whole(step["name"]), rel=1e-6)


def test_attention_is_that_of_every_token_and_adds_up_to_one(llm: LLM, ledger: Ledger) -> None:
    ids = [token.id for token in ledger.prompt]
    calls = capture(llm.loaded.model, [*ids, *(token.id for token in ledger.written)], len(ids) - 1).attention
    told = recorded(ledger, attention=[attention_at(calls, p) for p in range(len(ids))])["attention"]
    assert list(told["layers"]) == list(range(ledger.layers))
    assert list(told["rows"]) == [str(p) for p in range(len(ids))]
    for position, layers in told["rows"].items():
        for heads in layers:
            for row in heads:
                assert len(row) == int(position) + 1
                assert sum(row) == pytest.approx(1.0, abs=5e-5 * len(row) + 1e-9)
    assert ledger.attention is not None
    last = ledger.attention.weights
    for layer, heads in enumerate(told["rows"][str(len(ids) - 1)]):
        for head, row in enumerate(heads):
            assert row == pytest.approx(last[layer][head], abs=5.1e-5)


def by_hand(raw: list[tuple[int, float]], params: SamplingParams) -> dict[int, float]:
    """What may be drawn, by the sampler's list, in double precision. raw: all log-probabilities, likeliest first."""
    kept = raw[: params.top_k or None]
    weights = [(token, math.exp((logprob - raw[0][1]) / params.temperature)) for token, logprob in kept]
    target, mass, nucleus = params.top_p * sum(weight for _, weight in weights), 0.0, []
    for token, weight in weights:
        if mass < target:
            nucleus.append((token, weight))
        mass += weight
    left = [(token, weight) for token, weight in nucleus if weight >= params.min_p]
    total = sum(weight for _, weight in left)
    return {token: weight / total for token, weight in left}


@pytest.mark.parametrize("seed", range(12))
def test_a_draw_is_the_inverse_of_what_is_left_at_its_number(llm: LLM, seed: int) -> None:
    random.seed(seed)
    params = SamplingParams(
        temperature=random.choice([0.4, 0.8, 1.0, 1.6]),
        top_k=random.choice([0, 3, 40]),
        top_p=random.choice([0.5, 0.93, 1.0]),
        min_p=random.choice([0.0, 0.05]),
        seed=seed,
    )
    ids = llm.encode("Once upon a time")
    vocabulary = llm.loaded.model.vocabulary
    (completion,) = llm.generate([ids], replace(params, max_tokens=2, logprobs=vocabulary, ignore_eos=True))
    for draw, sampled in zip(draws(llm, ids, params, 2), completion.choices[0].tokens, strict=True):
        assert draw.taken.id == sampled.token
        left = by_hand(list(sampled.top_raw), params)
        assert (draw.kept, draw.vocabulary) == (len(left), vocabulary)
        assert draw.uniform is not None
        before = 0.0
        for token in sorted(left):
            if before <= draw.uniform < before + left[token]:
                assert token == draw.taken.id
            before += left[token]
        for each in draw.candidates:
            share = left.get(each.token.id)
            assert (each.removed == "") == (share is not None)
            assert each.raw == pytest.approx(math.exp(dict(sampled.top_raw)[each.token.id]))
            if share is not None:
                assert each.drawn == pytest.approx(share, rel=1e-4)
                assert each.start == pytest.approx(sum(left[t] for t in left if t < each.token.id), abs=1e-5)
        if params.top_k and params.top_p == 1.0 and not params.min_p:
            assert {each.removed for each in draw.candidates} <= {"", "top-k"}
        if not params.top_k and not params.min_p:
            assert {each.removed for each in draw.candidates} <= {"", "top-p"}


def test_a_greedy_token_has_no_number(llm: LLM) -> None:
    (draw,) = draws(llm, llm.encode("Once"), SamplingParams(temperature=0.0, seed=0), 1)
    assert draw.uniform is None
    assert draw.taken == draw.candidates[0].token
    assert {each.drawn for each in draw.candidates} == {None}


def test_a_mixture_of_experts_is_recorded_beside_its_engine() -> None:
    """The engine that has it, and what it holds, stay as they were."""
    loaded = load_engine("mixture")
    before = loaded.engine.stats
    ids = loaded.text_processor.encode("Il était", loaded.engine.traits.context)
    told = record(loaded, "<b>", "Il était", ids, replace(loaded.defaults, seed=1), load_device("h100-sxm"), 3)
    assert loaded.engine.stats == before
    assert loaded.engine.on_step is None
    assert told["pause"] > 0
    found = intervals_for(load_device("h100-sxm"), load_profile(OWN_ENGINE), "bf16")
    around = {name: (found[name].low, found[name].high) for name in ("prefill", "decode")}
    assert {step["name"]: told["predicted_intervals"][step["name"]] for step in told["steps"]} == around
    layers = told["experts"]["layers"]
    assert len(layers) == told["layers"]
    for layer in layers:
        assert len(layer["picked"]) == len(layer["weights"]) == 2
        assert sum(layer["load"]) == 2 * (len(ids) + len(told["written"]))
    for layer, neurons in zip(layers, told["neurons"]["layers"], strict=True):
        assert {each["expert"] for each in neurons} <= set(layer["picked"])
    with pytest.raises(ValueError, match="the text has 65 tokens; give 1 to 64"):
        record(loaded, "x", "x", [5] * 65, loaded.defaults, load_device("h100-sxm"))
