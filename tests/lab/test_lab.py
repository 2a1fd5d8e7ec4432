"""The labs: what they count is exact, what they draw is what the engine draws. No seconds are asserted."""

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from ridgeline.backends.model_loader import load_model
from ridgeline.cli.main import build_app
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import build
from ridgeline.core.models.common.model import Model
from ridgeline.engine import LLM, SamplingParams
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.sampling import Sampled, SampleRow
from ridgeline.engine.sampling.uniform import uniform
from ridgeline.learn import lab
from ridgeline.learn.lab import kv_cache, prefill_decode, sampling_from_scratch, users_per_gpu
from ridgeline.learn.lab.instrumented_model import in_fp32
from ridgeline.learn.lab.simple_kv_cache import changed
from ridgeline.learn.lab.textbook_step import round_figure
from ridgeline.price.devices import load_device
from ridgeline.price.plan import Deployment, PlanWorkload
from ridgeline.price.plan.device_memory import memory_of
from ridgeline.price.plan.scenario import ModelCache
from ridgeline.util.document.charts import StackedBar, StackedBars
from ridgeline.util.document.elements import Bullets
from ridgeline.util.document.roofline_chart import Roofline
from ridgeline.util.document.svg import svg
from ridgeline.util.document.terminal_renderer import plain
from support.code_lines import code_lines
from support.samplers import CPU_SAMPLER

APP = build_app(("lab",))
EXPERIMENTS = ("kv_cache", "users_per_gpu", "prefill_decode", "sampling_from_scratch")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_short_enough_to_be_read(name: str) -> None:
    assert lab.__file__ is not None
    lines = code_lines(Path(lab.__file__).parent / f"{name}.py")
    (border,) = (number for number, line in enumerate(lines) if line.startswith("# -- the report "))
    assert border < 115 > len(lines) - border


# -- kv-cache ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tales() -> Model:
    return load_model("tales")


def test_positions_are_counted_exactly(tales: Model) -> None:
    found = kv_cache.compare(tales, first=5, count=30)
    assert found.without.positions == [n * (n + 1) // 2 for n in range(1, 31)]
    assert found.kept.positions == list(range(1, 31))
    assert len(found.kept.tokens) == 31
    assert [len(run.took) for run in (found.without, found.kept)] == [30, 30]


def test_the_head_runs_once_a_token_both_ways(tales: Model) -> None:
    """It takes 2 x hidden x vocabulary FLOPs a token; without it, and attention, the factor would be that of
    positions."""
    found = kv_cache.compare(tales, first=5, count=20)
    for whole, headless in zip(found.flops, found.headless, strict=True):
        assert whole - headless == pytest.approx(20 * 2 * 192 * 2048)
    (anew, new), (bare_anew, bare_new) = found.flops, found.headless
    assert anew / new < bare_anew / bare_new < 21 / 2


def test_keys_and_values_never_change() -> None:
    """In fp32, but for rounding."""
    assert changed(in_fp32("tales"), list(range(5, 45))) < 1e-5


def test_a_cache_changes_no_token_in_fp32() -> None:
    """In bf16 a near tie may fall the other way; in fp32 the two ways are the same arithmetic."""
    found = kv_cache.compare(in_fp32("tales"), first=5, count=60)
    assert found.same == 60
    assert found.kept.tokens == found.without.tokens


def test_the_shared_beginning_is_what_is_the_same() -> None:
    runs = [kv_cache.GenerationRun(tokens, [1] * 3, [0.0] * 3) for tokens in ([9, 1, 2, 3], [9, 1, 5, 3], [9, 1, 2, 3])]
    assert kv_cache.CacheComparison(runs[0], runs[1], (1.0, 1.0), (1.0, 1.0), 1.0).same == 1
    assert kv_cache.CacheComparison(runs[0], runs[2], (1.0, 1.0), (1.0, 1.0), 1.0).same == 3


# -- memory -----------------------------------------------------------------------------------------------------------


def test_users_of_the_texts_and_of_the_ledger() -> None:
    """24 GB, 8B in bf16, users of 2,000 tokens: the texts' 8 GB left over 256 MB is about 30; less is true."""
    found = users_per_gpu.users_on("llama-3-8b", load_device("rtx-4090"), 1, 2000)
    assert found.texts.users == 30
    assert found.texts.left == pytest.approx(8e9)
    assert found.request == 2000 * 131_072
    assert 15 <= found.users < 30
    assert found.fits_on == 1


def test_every_subtraction_starts_where_the_last_one_ended() -> None:
    found = users_per_gpu.users_on("llama-3-8b", load_device("h100-sxm"), 1, 2000)
    left = found.total
    for step in found.steps:
        left -= step.takes
        assert step.left == pytest.approx(left)
        assert step.takes > 0
    assert len(found.steps) == 4
    assert found.users == int(left // found.request)


def test_what_does_not_fit_says_on_how_many_cards_it_does() -> None:
    lone = users_per_gpu.users_on("llama-3-70b", load_device("rtx-4090"), 1, 2000)
    assert (lone.users, lone.texts.users, lone.fits_on) == (0, 0, 8)
    eight = users_per_gpu.users_on("llama-3-70b", load_device("rtx-4090"), 8, 2000)
    assert eight.users > 0
    assert eight.token * 8 == lone.token == 327_680
    assert users_per_gpu.users_on("llama-3.1-405b", load_device("rtx-4090"), 1, 2000).fits_on is None


def test_a_number_of_cards_that_a_model_does_not_divide_over_is_none() -> None:
    """Qwen2.5-7B has 28 heads: it is no error that they do not divide over 8 cards, there just is no such answer."""
    small = replace(load_device("l4"), memory=3e9)
    assert small.link is not None
    found = users_per_gpu.users_on("qwen2.5-7b", small, 1, 2000)
    assert (found.users, found.fits_on) == (0, None)
    assert "no number of GPUs up to 8" in plain(users_per_gpu.document([found], small, 2000))


def test_cards_without_a_link_are_one_each() -> None:
    alone = replace(load_device("rtx-4090"), link=None)
    assert users_per_gpu.users_on("llama-3-70b", alone, 1, 2000).fits_on is None
    assert "no link to others" in plain(
        users_per_gpu.document([users_per_gpu.users_on("llama-3-70b", alone, 1, 2000)], alone, 2000)
    )
    with pytest.raises(ValueError, match="has no link"):
        users_per_gpu.users_on("llama-3-70b", alone, 2, 2000)


def test_no_user_is_longer_than_the_models_context() -> None:
    with pytest.raises(ValueError, match=r"gpt2 supports 2 \(prompt and response\) to 1,024 tokens"):
        users_per_gpu.users_on("gpt2", load_device("rtx-4090"), 1, 2000)
    with pytest.raises(ValueError, match="--devices is 16"):
        users_per_gpu.users_on("gpt2", load_device("h100-sxm"), 16, 500)


def test_models_whose_users_keep_something_else_are_refused() -> None:
    """Nothing, or an encoder's keys and values too; a decoder that its release has for vectors is one of the first."""
    embeds, encodes = "computes embeddings and keeps no KV cache", "also keeps the keys and values of its encoder"
    for name, says in {"bert-base-uncased": embeds, "qwen3-embedding-0.6b": embeds, "flan-t5-small": encodes}.items():
        result = CliRunner().invoke(build_app(), ["lab", "memory", "--model", "gpt2", "--model", name])
        assert isinstance(result.exception, ValueError)
        assert str(result.exception).startswith(f"{name} {says}; give a ")


def test_a_users_state_is_counted() -> None:
    """Of one who has read little it is the most."""
    found = users_per_gpu.users_on("nemotron-h-8b", load_device("h100-sxm"), 1, 1000)
    assert found.request > found.state > 1000 * found.token
    text = plain(users_per_gpu.document([found], load_device("h100-sxm"), 1000))
    assert "bytes (16 KiB) per token and a state of" in " ".join(text.split())


def test_the_lab_and_the_plan_subtract_alike() -> None:
    """One rule: 21 users here are 21 users there."""
    card, context = load_device("l4"), 2001
    found = users_per_gpu.users_on("llama-3.2-1b", card, 1, context)
    case = ModelCache(read_config("llama-3.2-1b")).scenario(Deployment(card))
    assert found.users == memory_of(case, PlanWorkload(input=context - 1, output=1)).users > 1


def test_small_models_weigh_something() -> None:
    """GPT-2 has 124 million parameters, which is not 0 billion."""
    found = users_per_gpu.users_on("gpt2", load_device("rtx-4090"), 1, 1024)
    assert found.texts.weights == pytest.approx(2 * 120e6)
    text = plain(users_per_gpu.document([found], load_device("rtx-4090"), 1024))
    assert "-0.2" in text
    assert "-0.0 " not in text


# -- sampling ---------------------------------------------------------------------------------------------------------


@settings(max_examples=200)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.3, 1.0, 2.0]), st.integers(0, 60), st.floats(0.05, 1.0),
    st.floats(0.1, 8.0),
)  # fmt: skip
def test_from_scratch_is_the_engine_token_for_token(
    seed: int, temperature: float, top_k: int, top_p: float, spread: float
) -> None:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(0, spread, (4, 50)).astype(np.float32))
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p)
    rows = [SampleRow(params, seed, position) for position in range(4)]
    for row_V, row, theirs in zip(logits.tolist(), rows, CPU_SAMPLER.sample(logits, rows), strict=True):
        (u,) = uniform([seed], [row.position], [0])
        assert isinstance(theirs, Sampled)
        assert sampling_from_scratch.draw(row_V, params, u) == theirs.token


def test_equals_go_to_the_lower_id() -> None:
    logits = [0.0, 2.0, 2.0, 1.0, 2.0]
    assert sampling_from_scratch.likeliest_first(logits) == [1, 2, 4, 3, 0]
    assert sampling_from_scratch.draw(logits, SamplingParams(temperature=0.0), 0.99) == 1
    assert sampling_from_scratch.candidates(logits, SamplingParams(top_k=2)) == [1, 2]


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    logits = [float(np.log(p)) for p in (0.1, 0.5, 0.15, 0.25)]
    kept = {p: sampling_from_scratch.candidates(logits, SamplingParams(top_p=p)) for p in (0.4, 0.6, 0.8, 1.0)}
    assert kept == {0.4: [1], 0.6: [1, 3], 0.8: [1, 2, 3], 1.0: [0, 1, 2, 3]}


def test_every_setting_agrees_with_the_engine() -> None:
    llm = LLM("tales", EngineSettings(kv_bytes=8 << 20))
    executor = llm.engine.executor
    found = sampling_from_scratch.compare(llm, "Once upon a time", count=12, seed=3)
    assert llm.engine.executor is executor
    assert [outcome.name for outcome in found] == list(sampling_from_scratch.SETTINGS)
    for outcome in found:
        assert len(outcome.agreed) == len(outcome.tokens) > 0
        assert all(outcome.agreed)
    assert max(found[0].kept) == 1
    assert set(next(outcome for outcome in found if outcome.name == "top-k 5").kept) == {5}


# -- phases -----------------------------------------------------------------------------------------------------------


def test_decode_never_gets_over_the_ridge_where_keys_and_values_hold_it_down() -> None:
    """Llama-3-8B on an A100: no batch at 2,000 tokens, intensity tops out at 61 FLOP a byte; at 512 some 480 users."""
    model, card = build(read_config("llama-3-8b")), load_device("a100-sxm-80gb")
    long = prefill_decode.compare(model, card, 2000)
    assert long.batch is None
    assert long.intensity == pytest.approx(61, abs=0.5)
    assert long.intensity < long.ridge
    assert max(step.intensity for step in long.decodes) < long.intensity
    short = prefill_decode.compare(model, card, 512)
    assert short.batch == pytest.approx(470, rel=0.05)
    assert short.prefill.intensity > short.ridge > short.decodes[0].intensity
    assert short.decodes[0].idle > 0.99
    assert short.prefill.idle == pytest.approx(0.0)


def test_a_measured_machine_is_set_beside_its_floor(tales: Model) -> None:
    measured = prefill_decode.measure(tales, prompt=12, repeats=1)
    found = prefill_decode.compare(tales, load_device("a100-sxm-80gb"), 12, measured)
    assert (found.prefill.measured, found.decodes[0].measured) == measured
    assert all(step.measured is None for step in found.decodes[1:])


def test_a_whole_step_is_no_share_of_anything_in_the_picture() -> None:
    """Points of `trace` are as large as their share of a step; these are steps, which are parts of nothing."""
    found = prefill_decode.compare(build(read_config("llama-3-8b")), load_device("a100-sxm-80gb"), 2000)
    page = prefill_decode.document(found, "llama-3-8b")
    (figure,) = page.figures
    assert isinstance(figure, Roofline)
    assert {point.share for point in figure.points} == {None}
    root = ElementTree.fromstring(svg(page.figures[0]))
    assert not any(said in text for text in root.itertext() for said in ("share of the step", "% of the step"))
    marks = [node for node in root.iter() if node.tag.endswith("circle") and len(node)]
    assert len({mark.get("r") for mark in marks}) == 1 < len(marks) == 1 + len(prefill_decode.BATCHES)


def test_the_texts_column_is_the_texts() -> None:
    """8 ms, 125 tokens a second, 0.6 %, 160 x, 156, about 150: of an 8B on an A100, whose 2.039 TB/s are 2 there."""
    found = prefill_decode.compare(build(read_config("llama-3-8b")), load_device("a100-sxm-80gb"), 2000)
    texts = found.texts
    assert (texts.nbytes, texts.bandwidth, texts.step) == (16e9, 2e12, 0.008)
    assert texts.arithmetic == 5e-5
    assert texts.ridge == 156
    text = plain(prefill_decode.document(found, "llama-3-8b"), 120)
    for row in (
        r"minimum time per step +8.00 ms",
        r"maximum tokens per second +125 ",
        r"busy +0.6%",
        r"arithmetic time +160 x",
        r"reaches the ridge +about 150 +none",
    ):
        assert re.search(row, text), row
    assert round_figure(3.35e12) == 3.35e12


def test_a_batch_that_does_not_fit_says_how_many_do() -> None:
    """By the subtraction of the memory lab; its weights do not fit onto a small card at all."""
    room = users_per_gpu.users_on("llama-3-8b", load_device("a100-sxm-80gb"), 1, 2000).users
    assert 64 < room < 256
    ended = CliRunner().invoke(APP, ["lab", "phases", "--json"])
    assert json.loads(ended.stdout)["room"] == room
    text = CliRunner().invoke(APP, ["lab", "phases"]).stdout
    assert re.search(r"decode x 64 .* yes$", text, re.MULTILINE)
    assert re.search(rf"decode x 256 .* only {room}$", text, re.MULTILINE)
    small = CliRunner().invoke(APP, ["lab", "phases", "--model", "llama-3-70b", "--device", "rtx-4090", "--json"])
    assert json.loads(small.stdout)["room"] == 0


# -- pages ------------------------------------------------------------------------------------------------------------


def test_a_figure_says_of_each_point_whether_it_was_measured(tales: Model) -> None:
    """Of the steps of `phases` this machine runs two, and the others are expected."""
    found = prefill_decode.compare(tales, load_device("a100-sxm-80gb"), 12, measured=(0.004, 0.003))
    page = prefill_decode.document(found, "tales")
    for text in (plain(page), "\n".join(ElementTree.fromstring(svg(page.figures[0])).itertext())):
        assert re.search(r"^.*prefill.*% +measured", text, re.MULTILINE)
        assert re.search(r"^.*decode x 1\b[^,].*% +measured", text, re.MULTILINE)
        assert re.search(r"^.*decode x 256.*% +expected", text, re.MULTILINE)
        assert "steps (expected)" not in text


@pytest.mark.parametrize("width", [80, 120])
def test_pictures_stay_within_the_terminal(width: int) -> None:
    found = [users_per_gpu.users_on(model, load_device("rtx-4090"), 1, 2000) for model in ("llama-3-8b", "llama-3-70b")]
    steps = prefill_decode.compare(build(read_config("llama-3-8b")), load_device("a100-sxm-80gb"), 2000)
    users = plain(users_per_gpu.document(found, load_device("rtx-4090"), 2000), width)
    assert re.search(r"^llama-3-8b: 21 users\n░+█+▒+▓+┃$", users, re.MULTILINE)
    assert re.search(r"^llama-3-70b: 135.90 GiB with one user, does not fit\n░+┃░+$", users, re.MULTILINE)
    drawn = plain(prefill_decode.document(steps, "llama-3-8b"), width)
    assert re.search(r"^ +FLOP/byte .* 10,000$", drawn, re.MULTILINE)
    assert re.search(r"^decode x 1,024 ", drawn, re.MULTILINE)


def test_what_does_not_fit_is_said_in_full_and_drawn_as_far_as_it_squashes_nothing() -> None:
    """Its tokens are no smaller for that, and the card's line is in the middle of the picture."""
    card = load_device("rtx-4090")
    page = users_per_gpu.document([users_per_gpu.users_on("llama-3-70b", card, 1, 2000)], card, 2000)
    (figure,) = page.figures
    assert isinstance(figure, StackedBars)
    assert isinstance(page.blocks[0], Bullets)
    said = page.blocks[0].items[0]
    assert "80 layers x 8 KV heads x 2 x 128 x 2 bytes = 327,680 bytes (320 KiB)" in said
    lacking = sum(figure.stacks[0].parts) - figure.limit[0]
    assert f"{lacking:.2f} GiB more" in said
    assert figure.end == 2 * figure.limit[0]
    (weights, *rest) = figure.shares(figure.stacks[0])
    assert weights == (0.0, 1.0)
    assert set(rest) == {(1.0, 1.0)}


def test_a_stack_that_fits_is_drawn_whole() -> None:
    parts = (15.0, 1.5, 2.4, 5.1)
    stacks = StackedBars("T", "GiB", ("a", "b", "c", "d"), (StackedBar("s", parts),), (24.0, "the card"))
    assert stacks.end == 30.0
    assert [end for _, end in stacks.shares(stacks.stacks[0])] == pytest.approx([0.5, 0.55, 0.63, 0.8])


COMMANDS = {
    "kv-cache": ["--model", "tales", "--tokens", "0.015625k"],
    "memory": ["--model", "llama-3-8b"],
    "sampling": ["--tokens", "4"],
    "phases": ["--device", "a100-sxm-80gb", "--model", "llama-3-8b", "--context", "1k"],
}


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_print_a_page_or_an_object(name: str, tmp_path: Path) -> None:
    picture = tmp_path / "picture.svg"
    page = CliRunner().invoke(APP, ["lab", name, *COMMANDS[name], "--svg", str(picture)])
    assert page.exit_code == 0, page.output
    assert "source code of the experiment" in page.stdout
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    data = CliRunner().invoke(APP, ["lab", name, *COMMANDS[name], "--json"])
    assert isinstance(json.loads(data.stdout), dict)


@pytest.mark.parametrize(
    "arguments",
    [
        ["kv-cache", "--tokens", "0"],
        ["kv-cache", "--tokens", "100000"],
        ["kv-cache", "--model", "bert-base-uncased", "--tokens", "4"],
        ["kv-cache", "--model", "t5-small", "--tokens", "4"],
        ["kv-cache", "--model", "translate", "--tokens", "4"],
        ["kv-cache", "--model", "whisper-tiny", "--tokens", "4"],
        ["memory", "--device", "a100"],
        ["memory", "--context", "-5"],
        ["memory", "--model", "gpt2"],
        ["memory", "--device", "l4", "--model", "qwen2.5-7b", "--context", "4M"],
        ["memory", "--model", "nonsense"],
        ["memory", "--model", "whisper-tiny", "--context", "100"],
        ["sampling", "--tokens", "0"],
        ["sampling", "--tokens", "1k"],
        ["phases", "--model", "tales", "--context", "1k"],
        ["phases", "--context", "9k"],
        ["phases", "--context", "20", "--model", "translate", "--device", "this"],
        ["phases", "--context", "100", "--model", "bert-base-uncased"],
        ["phases", "--context", "100", "--model", "whisper-tiny", "--device", "this"],
    ],
)
def test_what_cannot_be_is_refused(arguments: list[str]) -> None:
    ended = CliRunner().invoke(APP, ["lab", *arguments])
    assert isinstance(ended.exception, ValueError)
    assert "\n" not in str(ended.exception)


@pytest.mark.parametrize(
    "arguments",
    [
        ["phases", "--context", "1k", "--model", "tales", "--device", "this"],
        ["kv-cache", "--tokens", "1k", "--model", "tales"],
        ["sampling", "--tokens", "1k"],
    ],
)
def test_a_length_is_refused_before_weights_are_read_or_a_machine_is_probed(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for slow in ("load_model", "device_named", "LLM", "phases_lab.measure"):
        monkeypatch.delattr(f"ridgeline.cli.lab.{slow}")
    ended = CliRunner().invoke(APP, ["lab", *arguments])
    assert str(ended.exception) == f"{arguments[1]} is 1,024, but tales has a context of 512; give a smaller number"


def test_narrow_keys_and_values_are_what_the_phases_read() -> None:
    """fp8 halves what a step of 1,024 users moves of them, each with 256 positions and a new one, and nothing else."""

    def moved(*given: str) -> float:
        ended = CliRunner().invoke(
            APP, ["lab", "phases", "--model", "tales", "--context", "256", "--device", "h100-sxm", "--json", *given]
        )
        steps = {step["name"]: step for step in json.loads(ended.stdout)["steps"]}
        return float(steps["decode x 1,024"]["nbytes"])

    plain = sum(spec.slot_bytes for spec in build(read_config("tales")).kv_specs)
    assert moved() - moved("--kv", "fp8") == pytest.approx(1024 * 257 * plain / 2, rel=0.01)
