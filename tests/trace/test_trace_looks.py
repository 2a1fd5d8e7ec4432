"""A look inside a picture: what guidance pulls and whom patches looked at, against the two passes and a brute-force
softmax; and the panels that are drawn of them."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from trace_models import DEVICE

from ridgeline.insight.trace.denoise_step import DenoiseStep, run_to_step
from ridgeline.insight.trace.guidance_delta import by_line, contact_sheet, measure_guidance_delta
from ridgeline.insight.trace.image_trace import ImageLedger, trace_image
from ridgeline.insight.trace.tracer import HookCost
from ridgeline.insight.trace.views.image_report import image_json
from ridgeline.insight.trace.views.patch_attention import draw_panels
from ridgeline.insight.trace.word_attention import word_attention, words_of
from ridgeline.media.diffusion.batching import Batching
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.util.document.elements import Document
from ridgeline.util.document.panels import coarser
from ridgeline.util.document.svg import svg
from ridgeline.util.document.terminal_renderer import plain

PROMPT = "a grey heron"


def drawer(make: Callable[..., Any], folder: Path, **more: Any) -> Pipeline:
    make(folder, **more)
    return load_pipeline(str(folder), threads=1)


@pytest.fixture(scope="module")
def pipeline(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    from support.pipelines import z_image

    return drawer(z_image, tmp_path_factory.mktemp("drawing") / "brook")


def moment(pipeline: Pipeline, *, paired: bool = True, **changes: Any) -> DenoiseStep:
    request = DiffusionRequest(**{"prompt": PROMPT, "steps": 4, "guidance": 3.0, "seed": 5} | changes)
    plan = pipeline.plan(request)
    return run_to_step(pipeline, replace(plan, batching=Batching(1, paired=paired and len(plan.token_ids) > 1)), 3)


# -- guidance ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("paired", [True, False])
def test_the_pull_is_the_difference_of_the_two_passes(pipeline: Pipeline, paired: bool) -> None:
    here = moment(pipeline, paired=paired)
    found = measure_guidance_delta(here)
    *_, before, step, _ = pipeline.denoise(here.plan, pipeline.encode(here.plan))
    with torch.inference_mode():
        x, t = before.latents, here.plan.schedule.time(2)
        prompt, negative = (pipeline.denoiser(x, t, [text]) for text in pipeline.encode(here.plan))
        sigma = here.plan.schedule.levels[2].sigma
    torch.testing.assert_close(
        torch.tensor(found.norms), (prompt - negative)[0].square().sum(0).sqrt(), rtol=1e-4, atol=1e-6
    )
    assert found.relative == pytest.approx(float((prompt - negative).norm() / negative.norm()), rel=1e-4)
    assert found.relative > 1e-3, "random weights, yet another text is another prediction"
    for pixels, latents in (
        (found.prompt, x - sigma * prompt),
        (found.negative, x - sigma * negative),
        (found.guided, step.predicted_latents),
    ):
        torch.testing.assert_close(pixels, pipeline.decode(latents)[0], rtol=1e-3, atol=1e-4)


def test_nothing_pulls_without_guidance(pipeline: Pipeline) -> None:
    with pytest.raises(ValueError, match="guidance is off: give --guidance"):
        measure_guidance_delta(moment(pipeline, guidance=0.0))


# -- attention --------------------------------------------------------------------------------------------------------


def softmaxes(here: DenoiseStep, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Of each product of queries and keys that torch is asked for in a pass over the prompt, the weights [H, Q, L]."""
    weights: list[Tensor] = []
    ask = functional.scaled_dot_product_attention

    def told(q: Tensor, k: Tensor, v: Tensor, **more: Any) -> Tensor:
        scores = torch.einsum("hqd,hld->hql", q[0].double(), k[0].double()) * more["scale"]
        weights.append(scores.exp() / scores.exp().sum(-1, keepdim=True))
        return ask(q, k, v, **more)

    with monkeypatch.context() as patch, torch.inference_mode():
        prepared = here.prepare((0,))
        patch.setattr(functional, "scaled_dot_product_attention", told)
        here.predict(prepared)
    return weights


@pytest.mark.parametrize("layer", [None, 0, 1])
def test_attention_is_the_softmax_of_queries_and_keys(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, layer: int | None
) -> None:
    here = moment(pipeline)
    found = word_attention(here, layer)
    _refiner, *joint = softmaxes(here, monkeypatch)
    assert len(joint) == found.layers == 2
    mean = torch.stack([each.mean(0) for each in (joint if layer is None else joint[layer : layer + 1])]).mean(0)
    patches, rows, columns = here.plan.geometry.tokens, *here.plan.geometry.grid[1:]
    ids, said = list(here.plan.token_ids[0]), pipeline.encoder.tokenizer.encode(PROMPT, add_special=False)
    (begin,) = (place for place in range(len(ids)) if ids[place : place + len(said)] == said)
    assert len(said) == len(PROMPT), "a byte is a token"
    assert [word.text for word in found.words] == PROMPT.split()
    own = 96  # patches are a multiple of 32, and get no padding
    for word, match in zip(found.words, re.finditer(r"\S+", PROMPT), strict=True):
        first, last = own + begin + match.start(), own + begin + match.end()
        expected = mean[:patches, first:last].sum(1).view(rows, columns)
        torch.testing.assert_close(torch.tensor(word.weights), expected.float(), rtol=1e-4, atol=1e-6)
    assert found.patches == pytest.approx(float(mean[:patches, :own].sum(1).mean()), rel=1e-4)
    assert found.padding == pytest.approx(float(mean[:patches, own + len(ids) :].sum(1).mean()), rel=1e-3)
    assert found.padding > 0, "a text is padded to a multiple of 32"
    whole = sum(word.mean for word in found.words) + found.template + found.patches + found.padding
    assert whole == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("dev", [False, True])
def test_attention_of_joint_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dev: bool) -> None:
    """Of FLUX.2-klein and FLUX.1-dev, whose texts stand before their pictures and are padded before they are read."""
    from support.flux_pipelines import flux, klein

    pipeline = drawer(flux, tmp_path, dev=True) if dev else drawer(klein, tmp_path, distilled=False)
    here = moment(pipeline, paired=False)
    found = word_attention(here)
    joint = softmaxes(here, monkeypatch)
    assert len(joint) == found.layers == 2
    mean, text = torch.stack([each.mean(0) for each in joint]).mean(0), len(here.plan.token_ids[0])
    assert text == 512
    own, said = mean[text:], pipeline.encoder.tokenizer.encode(PROMPT, add_special=False)
    ids = list(here.plan.token_ids[0])
    (begin,) = (place for place in range(text) if ids[place : place + len(said)] == said)
    assert [word.text for word in found.words] == PROMPT.split()
    for word, match in zip(found.words, re.finditer(r"\S+", PROMPT), strict=True):
        expected = own[:, begin + match.start() : begin + match.end()].sum(1).view(here.plan.geometry.grid[1:])
        torch.testing.assert_close(torch.tensor(word.weights), expected.float(), rtol=1e-4, atol=1e-6)
    unpadded = len(pipeline.encoder.unpadded(ids))
    assert begin + len(said) <= unpadded < text
    assert found.patches == pytest.approx(float(own[:, text:].sum(1).mean()), rel=1e-4)
    assert found.padding == pytest.approx(float(own[:, unpadded:text].sum(1).mean()), rel=1e-4)


def test_clips_are_sheets_of_frames() -> None:
    """Five frames of 2 x 4 numbers: two beside each other, the last place of three rows empty."""
    frames = torch.arange(40.0).view(5, 2, 4)
    sheet = contact_sheet(frames)
    assert sheet.shape == (6, 8)
    assert torch.equal(sheet[2:4, 4:], frames[3])
    assert torch.equal(sheet[4:, :4], frames[4])
    assert not sheet[4:, 4:].any()
    assert by_line(frames) == by_line(sheet)


def test_cross_attention_has_words_too(tmp_path: Path) -> None:
    from support.pipelines import pixart

    found = word_attention(moment(drawer(pixart, tmp_path, sigma=True), paired=False))
    assert [word.text for word in found.words] == PROMPT.split()
    assert found.patches == 0, "its patches look at the text apart from each other"
    assert sum(word.mean for word in found.words) + found.template + found.padding == pytest.approx(1, abs=1e-5)


def test_what_cannot_be_looked_at(pipeline: Pipeline) -> None:
    with pytest.raises(ValueError, match="layer 2 does not attend to the text; layers 0 to 1 do"):
        word_attention(moment(pipeline), 2)
    with pytest.raises(ValueError, match="no words for image patches to attend to"):
        word_attention(moment(pipeline, prompt=" "))


def test_words_are_told_from_what_is_around_them(pipeline: Pipeline) -> None:
    encoder = pipeline.encoder
    for prompt, words in (("user assistant", ["user", "assistant"]), ("é", ["é"]), ("<|im_end|>", ["<|im_end|>"])):
        found = words_of(encoder.tokenizer, encoder.ids(prompt), encoder.ids(""))
        ids = encoder.ids(prompt)
        assert [encoder.tokenizer.decode([ids[place] for place in places]) for _, places in found] == words


# -- panels -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ledger(pipeline: Pipeline) -> ImageLedger:
    here = moment(pipeline)
    traced = trace_image(here, DEVICE, repeats=1, cost=HookCost(0.0, 0.0))
    return replace(traced, guidance_delta=measure_guidance_delta(here), words=word_attention(here))


def test_panels_show_both(ledger: ImageLedger) -> None:
    figure = draw_panels(ledger)
    assert figure is not None
    assert draw_panels(replace(ledger, guidance_delta=None, words=None)) is None
    assert [len(band.panels) for band in figure.bands] == [4, 3]
    values = [value for band in figure.bands for panel in band.panels for line in panel.lines for value in line]
    assert 0 <= min(values) <= max(values) == pytest.approx(1)
    root = ElementTree.fromstring(svg(figure))
    marks = [element for element in root.iter() if element.tag.endswith("rect")]
    assert sum(mark.get("fill") == "none" for mark in marks) == 7, "a frame around each"
    cells = 24 * 16 + 3 * 64 * 43 + 3 * 12 * 8  # latents; 96 x 64 pixels, at most 64 each way; patches
    assert 0.2 * cells < len(marks) < cells, "neighbours of one shade are one mark"
    told = " ".join("".join(element.itertext()) for element in root.iter() if element.tag.endswith("text"))
    for words in ("Effect of guidance", "heron:", "to padding", "w = 4"):
        assert words in told
    drawn = plain(Document("", (figure,)), 100)
    assert max(map(len, drawn.splitlines())) <= 100
    assert "grey:" in drawn
    found = image_json(ledger)
    assert [word["text"] for word in found["attention"]["words"]] == PROMPT.split()
    assert len(found["pull"]["norms"]) == ledger.plan.geometry.latents[1]


def test_coarser_panels_are_means() -> None:
    lines = ((0.0, 1.0, 2.0), (1.0, 2.0, 3.0), (4.0, 4.0, 4.0), (6.0, 6.0, 0.0))
    assert coarser(lines, 4) == lines
    assert coarser(lines, 2) == (((0 + 1 + 1 + 2) / 4, (2 + 3) / 2), ((4 + 4 + 6 + 6) / 4, (4 + 0) / 2))
    assert coarser(lines, 1) == ((pytest.approx(33 / 12),),)
