"""A traced picture: its stages run every op that is priced, its step is the pipeline's, the views tell all of it."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from trace_models import DEVICE

from ridgeline.core.models.common.denoiser import TEXT
from ridgeline.insight.trace.denoise_step import DenoiseStep, run_to_step
from ridgeline.insight.trace.guidance_delta import measure_guidance_delta
from ridgeline.insight.trace.image_trace import ImageLedger, trace_image
from ridgeline.insight.trace.tracer import HookCost
from ridgeline.insight.trace.views.image_report import image_json, image_report
from ridgeline.insight.trace.views.ledger_roofline import ledger_roofline
from ridgeline.insight.trace.views.perfetto import steps_perfetto
from ridgeline.insight.trace.views.report import WIDTH, ReportOptions
from ridgeline.insight.trace.views.trace_export import to_csv
from ridgeline.insight.trace.word_attention import word_attention
from ridgeline.media.diffusion.batching import Batching
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.pipeline_price import PipelineComponents, PipelinePrice, PipelineWorkload
from ridgeline.price.price import traced_calls
from ridgeline.util.document.humanize import percent, say_difference, say_seconds
from ridgeline.util.document.svg import svg
from ridgeline.util.document.terminal_renderer import plain

FREE = HookCost(0.0, 0.0)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    from support.pipelines import z_image

    folder: Path = tmp_path_factory.mktemp("drawing") / "brook"
    z_image(folder)
    return load_pipeline(str(folder), threads=1)


def request(**changes: object) -> DiffusionRequest:
    return DiffusionRequest("a grey heron", steps=4, guidance=3.0, seed=5, **changes)  # type: ignore[arg-type]


def moment(pipeline: Pipeline, number: int = 1, *, paired: bool = True) -> DenoiseStep:
    plan = replace(pipeline.plan(request()), batching=Batching(1, paired=paired))
    return run_to_step(pipeline, plan, number)


@pytest.fixture(scope="module")
def ledger(pipeline: Pipeline) -> ImageLedger:
    """Of a step in two calls."""
    return trace_image(moment(pipeline, 2, paired=False), DEVICE, repeats=2, cost=FREE)


@pytest.mark.parametrize("paired", [True, False])
def test_a_moment_is_where_the_pipeline_is_before_the_step(pipeline: Pipeline, paired: bool) -> None:
    here = moment(pipeline, 3, paired=paired)
    _, before, after, _ = pipeline.denoise(here.plan, pipeline.encode(here.plan))
    assert torch.equal(here.state.x, before.latents)
    with torch.inference_mode():
        predicted = [here.predict(here.prepare(texts)) for texts in here.calls]
        assert torch.equal(here.after(here.guided(torch.cat(predicted))).x, after.latents)


def test_steps_that_there_are(pipeline: Pipeline) -> None:
    for number in (0, 5, -1):
        with pytest.raises(ValueError, match=f"step is {number}; give 1 to 4"):
            run_to_step(pipeline, pipeline.plan(request()), number)


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"guidance": 0.0}, ["denoise"]),
        ({"negative": "rain"}, ["denoise", "denoise, negative"]),
    ],
)
def test_a_step_is_its_passes(pipeline: Pipeline, changes: dict[str, object], names: list[str]) -> None:
    plan = pipeline.plan(DiffusionRequest(**{"prompt": "a heron", "steps": 2, "seed": 1} | changes))  # type: ignore[arg-type]
    plan = replace(plan, batching=Batching(1, paired=False))
    found = trace_image(run_to_step(pipeline, plan, 1), DEVICE, repeats=1, cost=FREE)
    assert [step.name for step in found.denoise.steps] == names
    for other in ("encode", "prepare"):
        assert [step.name for step in found.stages[other].steps] == [name.replace("denoise", other) for name in names]


def test_every_op_of_a_stage_is_measured_and_priced(pipeline: Pipeline, ledger: ImageLedger) -> None:
    """Rows are the ops that a run on meta calls, those of the VAE the decoder's; costs are what the request's price
    adds up."""
    calls = [(path, space) for path, _, space in traced_calls(pipeline.denoiser)]
    assert [row.path for row in ledger.stages["prepare"].rows] == [path for path, space in calls if space == TEXT]
    assert [row.path for row in ledger.denoise.rows] == [path for path, space in calls if space != TEXT]
    vae = [path for path, _, space in traced_calls(pipeline.autoencoder) if space.startswith("decoder")]
    assert [row.path for row in ledger.stages["decode"].rows] == vae
    parts = PipelineComponents(pipeline.encoder.models, (pipeline.denoiser,), pipeline.autoencoder)
    job = PipelineWorkload(ledger.plan.geometry, 1, tuple(map(len, ledger.plan.token_ids)))
    flops = {
        name: sum(stage.ops(step.name).cost.total_flops for step in stage.steps)
        for name, stage in ledger.stages.items()
    }
    flops["encode"] += flops.pop("prepare")
    assert list(flops.values()) == pytest.approx([stage.flops for stage in PipelinePrice(parts).on(DEVICE, job).stages])
    for stage in ledger.stages.values():
        for step in stage.steps:
            assert step.cost.total_flops == pytest.approx(stage.ops(step.name).cost.total_flops)
            assert step.expected - step.host == pytest.approx(stage.ops(step.name).expected)
            assert all(entry.measured > 0 for entry in stage.entries(step.name))
            assert stage.whole(step.name) == pytest.approx(
                stage.ops(step.name).measured + sum(overhead.seconds for overhead in step.overheads)
            )


def test_sampling_is_of_the_last_call(ledger: ImageLedger) -> None:
    first, last = ({o.name: o.seconds for o in step.overheads}["sampling"] for step in ledger.denoise.steps)
    assert 0 <= first < last, "guidance and the sampler's step follow the last call alone"


def test_a_denoiser_that_looks_at_its_text_apart(tmp_path: Path) -> None:
    """PixArt's: T5 reads, keys and values of cross-attention are prepared, noise is predicted."""
    from support.pipelines import pixart

    pixart(tmp_path, sigma=True)
    drawer = load_pipeline(str(tmp_path), threads=1)
    plan = replace(drawer.plan(DiffusionRequest("a heron", steps=3, seed=2)), batching=Batching(1, paired=False))
    here = run_to_step(drawer, plan, 2)
    first, *_ = drawer.denoise(plan, drawer.encode(plan))
    assert torch.equal(here.state.x, first.latents)
    found = trace_image(here, DEVICE, repeats=1, cost=FREE)
    assert list(found.stages) == ["encode", "prepare", "denoise", "decode"]
    assert [step.name for step in found.denoise.steps] == ["denoise", "denoise, negative"]


@pytest.mark.parametrize("number", [1, 4])
def test_a_clip(tmp_path: Path, number: int) -> None:
    """Of two experts the one that the step asks, with its guidance; what decodes is borrowed."""
    from support.pipelines import wan

    wan(tmp_path, experts=True)
    drawer = load_pipeline(str(tmp_path), threads=1)
    asked = DiffusionRequest("a heron", None, Size(64, 32), 4, 3.0, 5, frames=5, second_guidance=2.0)
    plan = replace(drawer.plan(asked), batching=Batching(1, paired=False))
    here = run_to_step(drawer, plan, number)
    assert drawer.low_noise_expert is not None
    assert here.denoiser is (drawer.low_noise_expert.denoiser if number == 4 else drawer.denoiser)
    with torch.inference_mode():
        predicted = torch.cat([here.predict(here.prepare(texts)) for texts in here.calls])
    step = list(drawer.denoise(plan, drawer.encode(plan)))[number - 1]
    assert torch.equal(here.after(here.guided(predicted)).x, step.latents)
    found = trace_image(here, DEVICE, repeats=1, cost=FREE)
    assert list(found.stages) == ["encode", "prepare", "denoise"]
    assert found.borrowed is not None
    calls = [path for path, _, space in traced_calls(here.denoiser) if space != TEXT]
    assert [row.path for row in found.denoise.rows] == calls
    ledger = replace(found, guidance_delta=measure_guidance_delta(here), words=word_attention(here))
    text = plain(image_report(ledger, ReportOptions(), ledger.stages), WIDTH)
    for words in (
        "one video, predicted and measured",
        "5 frames of 64x32 pixels",
        "diffusers' VAE, measured as a whole",
        "heron:",
    ):
        assert words in text, words
    assert image_json(ledger)["borrowed"]["measured"] == found.borrowed.measured > 0


def test_a_clip_of_pictures(tmp_path: Path) -> None:
    """Whose frames a picture's autoencoder decodes one by one: one of them is traced, all are added up."""
    from support.pipelines import wan_of_pictures

    wan_of_pictures(tmp_path)
    drawer = load_pipeline(str(tmp_path), threads=1)
    plan = drawer.plan(DiffusionRequest("a heron", None, Size(64, 32), 2, 3.0, 5, frames=3))
    found = trace_image(run_to_step(drawer, plan, 1), DEVICE, repeats=1, cost=FREE)
    decode = found.stages["decode"]
    assert [step.name for step in decode.steps] == ["decode, a frame"]
    assert found.borrowed is None
    price = PipelinePrice(PipelineComponents(drawer.encoder.models, (drawer.denoiser,), drawer.autoencoder))
    whole = price.on(DEVICE, PipelineWorkload(plan.geometry, 1, tuple(map(len, plan.token_ids)))).decode
    assert 3 * decode.ops("decode, a frame").cost.total_flops == pytest.approx(whole.flops)
    text = " ".join(plain(image_report(found, ReportOptions()), WIDTH).split())
    assert "3 frames of 64x32 pixels" in text
    assert "all 2 steps are assumed to be like the traced one" in text
    assert re.search(r"decode, a frame 3 ", text), "of all frames"


def test_two_encoders_and_guidance_as_an_input(tmp_path: Path) -> None:
    """FLUX.1's: each stage costs what the request's price adds up."""
    from support.flux_pipelines import flux

    flux(tmp_path, dev=True)
    drawer = load_pipeline(str(tmp_path), threads=1)
    plan = drawer.plan(DiffusionRequest("a heron", None, Size(96, 64), 2, 3.5, 5))
    here = run_to_step(drawer, plan, 2)
    first, second = drawer.denoise(plan, drawer.encode(plan))
    assert torch.equal(here.state.x, first.latents)
    with torch.inference_mode():
        assert torch.equal(here.after(here.guided(here.predict(here.prepare((0,))))).x, second.latents)
    found = trace_image(here, DEVICE, repeats=1, cost=FREE)
    assert list(found.stages) == ["encode", "pooled", "denoise", "decode"]
    own = [(path, space) for path, _, space in traced_calls(drawer.encoder.models[1])]
    assert [row.path for row in found.stages["pooled"].rows] == [path for path, _ in own]
    assert "3.5, an input of the denoiser" in plain(image_report(found, ReportOptions()), WIDTH)


def test_a_network_that_does_not_repeat_itself_is_refused(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = pipeline.autoencoder.decode
    monkeypatch.setattr(pipeline.autoencoder, "decode", lambda latents: decode(latents) + torch.rand(1))
    with pytest.raises(ValueError, match="is not deterministic"):
        trace_image(moment(pipeline), DEVICE, repeats=1, cost=FREE)


# -- views ------------------------------------------------------------------------------------------------------------


def test_the_story_has_every_stage_and_stack(ledger: ImageLedger) -> None:
    text = plain(image_report(ledger, ReportOptions(roofline=True), ledger.stages), WIDTH)
    for words in ("brook: one image, predicted and measured", "96x64 pixels, 96 tokens; seed 5", "guidance 3 (w = 4)",
                  "step 2 was traced", "noise_refiner: 1 layer\n", "layers: 2 layers added up", "resnets.1.conv1",
                  "encode, negative took", "denoise: one step of the denoiser", "decode: 6144 rows, 384 seen",
                  "all 4 steps are assumed to be like the traced one", "brook on"):  # fmt: skip
        assert words in text, words
    assert max(map(len, text.splitlines())) <= WIDTH
    one = plain(image_report(ledger, ReportOptions(layer=1)), WIDTH)
    assert "layers, layer 1" not in text
    assert "layers, layer 1" in one
    assert "\nadaLN_modulation.1" not in one, "a layer is a place in a list, not any number in a name"


def test_the_answer_comes_alone(ledger: ImageLedger) -> None:
    """On one screen: every stage and all of them beside what was expected; sections are asked for by name."""
    text = plain(image_report(ledger, ReportOptions()), WIDTH)
    assert len(text.splitlines()) < 30
    assert "resnets" not in text.partition("limit")[0]
    assert "more: --full, --section NAME (encode, prepare, denoise, decode); as JSON: --json" in text
    denoise, whole = ledger.denoise, 0.0
    for name, stage in ledger.stages.items():
        for step in stage.steps:
            count, ops = 4 if name == "denoise" else 1, stage.ops(step.name)
            whole += count * stage.whole(step.name)
            row = next(line for line in text.splitlines() if re.match(rf"{step.name} +{count} ", line))
            alike = say_difference(ops.measured / step.expected - 1)
            assert re.search(rf" {re.escape(alike)} +{percent(ops.bound / ops.measured)} of {step.limit}$", row)
            for seconds in (stage.whole(step.name), count * step.expected, count * stage.whole(step.name)):
                assert f" {say_seconds(seconds)} " in row
    assert re.search(rf"^all .* {say_seconds(whole)} ", text, re.MULTILINE)
    assert "\nexpected: the ops alone; measured: with the time around them" in text, "this device is not calibrated"
    step = sum(denoise.whole(each.name) for each in denoise.steps)
    assert f"one step fewer saves {say_seconds(step)}, {percent(step / whole)} of the total" in text
    saved = 4 * denoise.whole("denoise, negative")
    assert f"no guidance saves {say_seconds(saved)}, {percent(saved / whole)}" in " ".join(text.split())
    only = plain(image_report(ledger, ReportOptions(), ["decode"]), WIDTH)
    assert "resnets.1.conv1" in only
    assert "denoise" not in only
    assert "lever" not in only
    with pytest.raises(ValueError, match="--section is 'pooled'; it must be one or more of encode, prepare, denoise"):
        image_report(ledger, ReportOptions(), ["pooled"])


def test_others_that_held_it_up_are_named(ledger: ImageLedger) -> None:
    """In the answer, of the step that takes longest."""
    told = []
    for seconds in (0.0, 900.0):
        steps = tuple(replace(step, interruptions=seconds) for step in ledger.denoise.steps)
        held = replace(ledger, stages={**ledger.stages, "denoise": replace(ledger.denoise, steps=steps)})
        told.append(" ".join(plain(image_report(held, ReportOptions()), WIDTH).split()))
    said = "the machine is busy: other processes delayed every repeat of denoise"
    assert [said in each for each in told] == [False, True]
    assert "by 900 s at the median" in told[1]


def test_programs_get_the_same(ledger: ImageLedger) -> None:
    found = json.loads(json.dumps(image_json(ledger)))
    assert list(found["stages"]) == ["encode", "prepare", "denoise", "decode"]
    rows = list(csv.DictReader(io.StringIO(to_csv(*ledger.stages.values()))))
    for stage, held in zip(ledger.stages.values(), found["stages"].values(), strict=True):
        for step in stage.steps:
            assert held["steps"][step.name]["measured_s"] == stage.whole(step.name)
            whole = next(row for row in rows if row["step"] == step.name and row["kind"] == "step")
            assert float(whole["flops"]) == held["steps"][step.name]["flops"] > 0
    threads = {
        e["args"]["name"]
        for e in steps_perfetto(tuple(ledger.stages.values()))["traceEvents"]
        if e["name"] == "thread_name"
    }
    assert threads == {step.name for stage in ledger.stages.values() for step in stage.steps}
    drawn = ledger_roofline(ledger.denoise)
    assert {point.kind for point in drawn.points} >= {"attention", "linear", "norm"}
    ElementTree.fromstring(svg(drawn))
