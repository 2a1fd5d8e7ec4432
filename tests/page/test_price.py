"""The page's price of a step is the price: the same figures for works at random, of every sort of model, storage, card
and engine. And what is no table is refused."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from page.pages import CARDS, COPYING, ENGINES, NATIVE, Page, drawn, opened, put, worst
from ridgeline.core.checkpoint.source import Component, ModelSource, open_source
from ridgeline.core.models import ModelRefused
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.norm import RMSNorm
from ridgeline.learn.page.device_tables import build_device_tables
from ridgeline.learn.page.model_tables import FORMAT, StoredModel, model_table
from ridgeline.learn.page.op_table import LinePool, op_table
from ridgeline.price.device import Device
from ridgeline.price.engine_profile import EngineProfile
from ridgeline.price.plan.scenario import ModelCache
from ridgeline.price.price import Price
from support.planned import TINY, TINY_MIXTURE, case, fields

SAME = 1e-12

# Every sort of op that models which write have, in every way of storing and dividing; those that are built in a moment.
MODELS = {
    "llama-3.2-1b": StoredModel("fp8", "fp8", 8),
    "llama-2-7b": StoredModel("int4"),
    "mistral-7b-v0.3": StoredModel("q4_k_m"),
    "qwen2.5-7b": StoredModel("int8", "int8", 4),
    "qwen3-0.6b": StoredModel("fp32"),
    "gemma-3-1b": StoredModel("fp16"),
    "gpt2": StoredModel("fp32"),
    "gpt-oss-20b": StoredModel(),
    "mixtral-8x7b": StoredModel("int4", None, 2),
    "moonlight-16b-a3b": StoredModel("int8"),
    "nemotron-h-8b": StoredModel(),
    "t5-small": StoredModel(),
    "whisper-tiny": StoredModel("int8", None, 2),
}
MORE = {
    "llama-3-70b": StoredModel("fp8", "fp8", 8),
    "llama-3-8b": StoredModel(),
    "qwen3-32b-fp8": StoredModel(devices=2),
    "qwen3-30b-a3b": StoredModel("fp8", None, 4),
    "qwen3-235b-a22b": StoredModel("nvfp4", "nvfp4", 8),
    "qwen3-next-80b-a3b": StoredModel(devices=2),
    "gemma-3-27b": StoredModel("int4-g32", "fp8", 2),
    "gpt-oss-120b": StoredModel("mxfp4", None, 4),
    "deepseek-v2": StoredModel("fp8", None, 8),
    "deepseek-v3": StoredModel("int4", "fp8", 8),
    "llama-4-scout-17b-16e": StoredModel("int4", "fp8"),
    "nemotron-3-nano-30b-a3b": StoredModel("fp8", None, 2),
    "phi-4": StoredModel("w8a8"),
    "command-r7b": StoredModel("int4+head"),
    "minimax-m2": StoredModel("fp8", None, 4),
    "olmo-2-7b": StoredModel("bf16", "fp8"),
}
WORKS, CARDS_EACH = 160, 5
assert (len(MODELS) * CARDS_EACH - 2) * WORKS >= 10_000  # two models are stored otherwise on one of the cards


@pytest.fixture(scope="module")
def page() -> Page:
    return opened("price.js", "work.js")


def cards_of(devices: int) -> list[tuple[Device, EngineProfile]]:
    """Cards and engines; a processor has no others to talk with."""
    joined = [(CARDS[0], ENGINES[0]), (CARDS[1], ENGINES[1]), (CARDS[2], COPYING), (CARDS[0], COPYING)]
    return [*joined, (NATIVE, ENGINES[0]) if devices == 1 else (CARDS[3], ENGINES[1])]


@pytest.mark.parametrize("name", MODELS)
def test_a_step_costs_and_takes_what_python_says(page: Page, name: str) -> None:
    compare(page, name, MODELS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_a_step_of_a_large_model_costs_and_takes_what_python_says(page: Page, name: str) -> None:
    compare(page, name, MORE[name])


def compare(page: Page, name: str, stored: StoredModel) -> None:
    """Hold page and price of steps at random to each other, on every card."""
    source = open_source(name)
    models = ModelCache(source.config)
    table = model_table(source, stored, models)
    put(page, table)
    rng = random.Random(name)
    works = [drawn(rng, models.scenario(stored.setup).model.has_cross_attention) for _ in range(WORKS)]
    for card, engine in cards_of(stored.devices):
        if card.kind in table["otherwise"]:
            with pytest.raises(Exception, match=f"has {name} stored in another way than its table"):
                worst(page, models.scenario(stored.setup), works[:1], card, engine)
        else:
            asked = models.scenario(replace(stored.setup, device=card))
            assert worst(page, asked, works, card, engine) <= SAME, card.name


def test_a_card_that_has_a_model_otherwise_is_told_from_one_that_computes_in_another_format() -> None:
    """A processor widens what it does not run narrow; a card without bf16 computes in fp16, over the same bytes."""
    names = ("llama-2-7b", "gpt-oss-20b", "qwen3-0.6b", "gpt2")
    unlike = [name for name in names if model_table(open_source(name), MODELS[name])["otherwise"]]
    assert unlike == ["llama-2-7b", "gpt-oss-20b"]
    instead = {name: card["instead"] for name, card in build_device_tables(CARDS)["cards"].items() if card["instead"]}
    assert instead == {"v100-sxm-32gb": {"bf16": "fp16"}}


def test_a_step_of_ranks_that_have_requests_of_their_own(page: Page) -> None:
    """Experts see the rows of all ranks that have some, and so does what joins them."""
    source, stored = open_source("qwen3-30b-a3b"), StoredModel(devices=8, own_attention=True)
    models = ModelCache(source.config)
    put(page, model_table(source, stored, models))
    rng = random.Random(8)
    works = [drawn(rng) for _ in range(30)]
    for ranks in (None, 1, 3, 8):
        assert worst(page, models.scenario(stored.setup), works, CARDS[0], ENGINES[3], ranks) <= SAME


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A small model that nobody made: odd sizes, biases, windows on some layers, experts."""
    kv_heads = draw(st.integers(1, 5))
    config = TINY | {
        "hidden_size": draw(st.integers(1, 40)) * 2,
        "intermediate_size": draw(st.integers(1, 99)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_key_value_heads": kv_heads,
        "num_attention_heads": kv_heads * draw(st.integers(1, 7)),
        "head_dim": draw(st.integers(1, 33)) * 2,
        "vocab_size": draw(st.integers(1, 500)),
        "tie_word_embeddings": draw(st.booleans()),
        "torch_dtype": draw(st.sampled_from(["bfloat16", "float32", "float16"])),
        "rms_norm_eps": 1e-6,
    }
    sort = draw(st.sampled_from(["LlamaForCausalLM", "Qwen2ForCausalLM", "MixtralForCausalLM"]))
    if sort == "LlamaForCausalLM":
        return config | {"attention_bias": draw(st.booleans()), "mlp_bias": draw(st.booleans())}
    if sort == "Qwen2ForCausalLM":
        windows = {"use_sliding_window": True, "sliding_window": draw(st.integers(1, 70)), "max_window_layers": 1}
        return config | {"architectures": [sort]} | windows
    experts = draw(st.integers(1, 40))
    return config | {
        "architectures": [sort],
        "num_local_experts": experts,
        "num_experts_per_tok": draw(st.integers(1, experts)),
        "sliding_window": draw(st.one_of(st.none(), st.integers(1, 70))),
    }


@given(config=configs(), weights=st.sampled_from([None, "int4", "fp8"]), seed=st.integers(0, 10**6))
@example_settings(max_examples=25)
def test_a_step_of_a_model_that_nobody_made(page: Page, config: dict[str, Any], weights: str | None, seed: int) -> None:
    source = ModelSource("made", None, {"model": Component("made", None, "", fields(config))}, {})  # type: ignore[arg-type]
    models, rng = ModelCache(source.config), random.Random(seed)
    try:
        table = model_table(source, StoredModel(weights), models)
    except ModelRefused:
        return
    put(page, table)
    works = [drawn(rng) for _ in range(8)]
    for card, engine in ((CARDS[0], COPYING), (NATIVE, ENGINES[0])):
        if card.kind in table["otherwise"]:
            continue
        asked = models.scenario(replace(StoredModel(weights).setup, device=card))
        assert worst(page, asked, works, card, engine) <= SAME


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("change", [{"format": FORMAT + 1}, {"format": None}])
def test_a_table_of_another_format_is_refused_with_what_makes_it_again(page: Page, change: dict[str, Any]) -> None:
    table = model_table(open_source("gpt2"), StoredModel("fp8")) | change
    with pytest.raises(Exception, match=r"make it again with `ridgeline page tables gpt2 --weights fp8`"):
        put(page, table)


@pytest.mark.parametrize("data", [None, {}, []])
def test_what_is_no_table_is_refused(page: Page, data: Any) -> None:
    with pytest.raises(Exception, match="without a format, this page reads format 1: make it again with `ridgeline"):
        put(page, data)


class Squared(RMSNorm):
    """An op that costs the square of its rows, and does not say so."""

    def cost_of(self, rows: int) -> Cost:
        return Cost({"fp32": float(rows * rows)})


def test_an_op_that_is_on_no_line_is_an_error_that_names_it() -> None:
    """A new non-linear op cannot slip through, whether it forgot its feature or has one that nobody knows."""
    price = case(TINY).price
    priced = next(each for each in price.ops if isinstance(each.op, RMSNorm))
    broken = replace(priced, op=Squared(16, 1e-5, priced.op.weight.dtype))
    with pytest.raises(ValueError, match=rf"{priced.path} \(Squared\) has a cost that is not linear"):
        op_table(broken, [], LinePool())


def test_experts_without_their_feature_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    price = Price(case(TINY_MIXTURE).model)
    monkeypatch.setattr(Experts, "features", ())
    priced = next(each for each in price.ops if isinstance(each.op, Experts))
    with pytest.raises(ValueError, match=r"experts \(Experts\) has a cost that is not linear"):
        op_table(priced, [], LinePool())


@pytest.mark.parametrize("name", ["bert-base-uncased", "flux.1-schnell"])
def test_a_model_that_writes_no_text_has_no_table(name: str) -> None:
    with pytest.raises(ValueError, match="does not generate text"):
        model_table(open_source(name), StoredModel())


def test_one_card_has_no_ranks() -> None:
    with pytest.raises(ValueError, match="give --devices 2 or more"):
        StoredModel(own_attention=True)
