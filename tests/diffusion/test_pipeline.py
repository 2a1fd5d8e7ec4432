"""A pipeline's folder against diffusers' pipeline of it: texts, latents, pixels, in fp32 on small random weights; and
what goes together with what."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from diffusers import ZImagePipeline
from torch import Tensor

from diffusion.schedulers import relative
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Geometry, Size
from ridgeline.media.diffusion.pipeline import CallSeconds, DenoiseOutput, Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from support.pipelines import MOST_TOKENS, generators, z_image

TOLERANCE = 1e-5
PROMPT, NEGATIVE = "a cat, naïve — at <|im_end|> night", "blurred"
PLAIN = PROMPT.replace("<|im_end|> ", "")  # the reference takes what is typed for control tokens


@dataclass(frozen=True)
class Subject:
    """Diffusers' pipeline, and ours of the folder that it wrote."""

    folder: Path
    theirs: ZImagePipeline
    ours: Pipeline

    def expected(self, request: DiffusionRequest, output: str = "latent") -> Tensor:
        """Theirs of a request."""
        assert request.size is not None
        assert request.seed is not None
        images = request.images
        given: Tensor = self.theirs(
            [request.prompt] * images,
            negative_prompt=[request.negative or ""] * images,
            height=request.size.height,
            width=request.size.width,
            num_inference_steps=request.steps,
            guidance_scale=request.guidance,
            generator=generators(request.seed, images),
            output_type=output,
        ).images
        return given

    def steps(self, request: DiffusionRequest, seconds: CallSeconds | None = None) -> list[DenoiseOutput]:
        """Ours."""
        plan = self.ours.plan(request, seconds)
        steps = list(self.ours.denoise(plan, self.ours.encode(plan)))
        assert len(steps) == plan.steps
        return steps

    def latents(self, request: DiffusionRequest, seconds: CallSeconds | None = None) -> Tensor:
        """Ours when they are finished."""
        return torch.cat([step.latents for step in self.steps(request, seconds) if step.last])


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder = tmp_path_factory.mktemp("z-image")
    theirs = z_image(folder)
    return Subject(folder, theirs, load_pipeline(str(folder), threads=1))


REQUESTS = {
    "guidance, negative, two images": DiffusionRequest(PLAIN, NEGATIVE, Size(96, 64), 4, 3.0, 7, 2),
    "guidance, an empty negative": DiffusionRequest(PLAIN, None, Size(64, 96), 3, 1.5, 2**40, 1),
    "no guidance, three images": DiffusionRequest("x", None, Size(64, 64), 5, 0.0, 0, 3),
    "one step": DiffusionRequest("", None, Size(96, 64), 1, 2.0, 3, 1),
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_latents_and_pixels_are_the_references(subject: Subject, request_: DiffusionRequest) -> None:
    """From the prompt to latents, and to pixels, which the reference cuts to 0 to 1."""
    latents, expected = subject.latents(request_), subject.expected(request_)
    assert latents.shape == expected.shape
    assert relative(latents, expected) < TOLERANCE
    pixels = (subject.ours.decode(latents) / 2 + 0.5).clamp(0, 1)
    assert relative(pixels, subject.expected(request_, "pt")) < TOLERANCE


@pytest.mark.parametrize("text", ["a cat", "", "日本 🐈 " * 20, "x" * 460])
def test_texts_are_read_as_the_reference_reads_them(subject: Subject, text: str) -> None:
    """With thinking on, before the last layer, without padding."""
    ids = subject.ours.encoder.ids(text)
    (expected,), _ = subject.theirs.encode_prompt(text, do_classifier_free_guidance=False)
    states = subject.ours.encoder.encode(ids)
    assert states.shape == expected.shape
    assert relative(states, expected) < TOLERANCE


def test_typed_control_tokens_are_text(subject: Subject) -> None:
    typed, plain = (subject.ours.encoder.ids(text) for text in (PROMPT, PLAIN))
    assert len(typed) == len(plain) + len("<|im_end|> ")
    assert subject.ours.draw(DiffusionRequest(PROMPT, None, Size(64, 64), 1, 0.0, 0)).isfinite().all()


def test_a_text_that_is_too_long_is_refused(subject: Subject) -> None:
    """The reference cuts it, and with it the end of the template. The longest is read whole."""
    around = len(subject.ours.encoder.ids(""))
    assert len(subject.ours.encoder.ids("x" * (MOST_TOKENS - around))) == MOST_TOKENS
    for prompt, negative, what in (("x" * 500, None, "prompt"), ("x", "y" * 500, "negative prompt")):
        with pytest.raises(
            ValueError, match=rf"^the {what} has \d+ tokens .* the text encoder reads at most {MOST_TOKENS}; shorten"
        ):
            subject.ours.plan(DiffusionRequest(prompt, negative, steps=1))
    with pytest.raises(ValueError, match=r"^prompt: the prompt has at least \d+ tokens"):
        subject.ours.plan(DiffusionRequest("x" * 10**6, steps=1))


# -- what goes together -----------------------------------------------------------------------------------------------


def _one_by_one(_: Geometry, texts: Sequence[int]) -> float:
    return float(len(texts))


def _all_at_once(_: Geometry, texts: Sequence[int]) -> float:
    return 1.0


def _two_at_a_time(_: Geometry, texts: Sequence[int]) -> float:
    return 1.0 if len(texts) <= 2 else 10.0 * len(texts)


@pytest.mark.parametrize(("guidance", "calls"), [(0.0, 1), (2.0, 2)])
def test_texts_are_prepared_once_a_request(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, guidance: float, calls: int
) -> None:
    """However many steps there are: a pass runs no block of the texts'."""
    prepared, prepare = list[int](), subject.ours.denoiser.prepare
    monkeypatch.setattr(subject.ours.denoiser, "prepare", lambda texts: prepared.append(len(texts)) or prepare(texts))
    subject.latents(DiffusionRequest("a cat", None, Size(64, 64), 4, guidance, 5), _one_by_one)
    assert prepared == [1] * calls
    prepared.clear()
    subject.latents(DiffusionRequest("a cat", None, Size(64, 64), 4, guidance, 5), _all_at_once)
    assert prepared == [calls]


@pytest.mark.parametrize("guidance", [0.0, 2.0])
@pytest.mark.parametrize("seconds", [_one_by_one, _two_at_a_time, _all_at_once])
def test_batches_change_no_picture(subject: Subject, seconds: CallSeconds, guidance: float) -> None:
    """Guidance, batches and seeds together: however calls are made, image i is that of seed + i alone."""
    request = DiffusionRequest("a cat", NEGATIVE if guidance else None, Size(64, 64), 3, guidance, 5, 3)
    plan = subject.ours.plan(request, seconds)
    side_by_side = {_one_by_one: 1, _two_at_a_time: 1 if guidance else 2, _all_at_once: 3}[seconds]
    assert plan.batching.images == side_by_side
    assert plan.batching.paired == (guidance > 0 and seconds is not _one_by_one)
    assert plan.passes == (6 if guidance else 3)
    together = subject.latents(request, seconds)
    for image in range(3):
        alone = DiffusionRequest("a cat", request.negative, request.size, 3, guidance, 5 + image, 1)
        assert relative(together[image], subject.latents(alone, _one_by_one)[0]) < TOLERANCE
    assert not torch.allclose(together[0], together[1], atol=0.1)


def test_the_denoiser_is_asked_as_often_as_planned(subject: Subject) -> None:
    """Calls, and how many pictures are in each."""
    asked: list[int] = []
    handle = subject.ours.denoiser.register_forward_hook(lambda _, given, __: asked.append(len(given[0])))
    try:
        request = DiffusionRequest("a cat", None, Size(64, 64), 2, 2.0, 5, 3)
        for seconds, calls in ((_one_by_one, [1] * 12), (_all_at_once, [6] * 2), (_two_at_a_time, [2] * 6)):
            asked.clear()
            subject.steps(request, seconds)
            assert asked == calls
            assert sum(asked) == request.images * subject.ours.plan(request, seconds).passes
    finally:
        handle.remove()


def test_previews_change_nothing(subject: Subject) -> None:
    """Looking at the guesses and decoding them leaves latents as they are, bit for bit; the last guess is the
    picture, and guesses come nearer to it."""
    request = DiffusionRequest("a cat", None, Size(64, 64), 4, 2.0, 1, 2)
    plan, far = subject.ours.plan(request), []
    for step in subject.ours.denoise(plan, subject.ours.encode(plan)):
        subject.ours.decode(step.predicted_latents)
        far.append(step.predicted_latents)
    finished = subject.latents(request)
    assert torch.equal(step.latents, finished[-len(step.images) :])
    assert relative(far[-1], finished) < 1e-6
    off = [float((guess - finished).norm()) for guess in far]
    assert off == sorted(off, reverse=True)
    assert off[0] > 0.1


def test_requests_take_turns(subject: Subject) -> None:
    """A step of one, a step of the other: each gives what it gives alone, bit for bit."""
    requests = [
        DiffusionRequest("a cat", None, Size(64, 64), 3, 2.0, 1),
        DiffusionRequest("a dog", None, Size(96, 64), 3, 0.0, 2),
    ]
    plans = [subject.ours.plan(request) for request in requests]
    runs = [subject.ours.denoise(plan, subject.ours.encode(plan)) for plan in plans]
    for steps in zip(*runs, strict=True):
        ends = [step.latents for step in steps]
    for request, end in zip(requests, ends, strict=True):
        assert torch.equal(end, subject.latents(request))


def test_a_run_that_is_left_costs_nothing_more(subject: Subject) -> None:
    """Cancelled between two steps: no further pass, and the next request is as if it had not been."""
    asked: list[int] = []
    handle = subject.ours.denoiser.register_forward_hook(lambda *_: asked.append(1))
    request = DiffusionRequest("a cat", None, Size(64, 64), 5, 0.0, 1)
    try:
        plan = subject.ours.plan(request)
        run = subject.ours.denoise(plan, subject.ours.encode(plan))
        next(run)
        next(run)
        run.close()  # type: ignore[attr-defined]
        assert len(asked) == 2
    finally:
        handle.remove()
    assert torch.equal(subject.latents(request), subject.latents(request))


@pytest.mark.parametrize("tiling", [Tiling(8, 2), Tiling(64, 16)])
def test_tiles(subject: Subject, tiling: Tiling) -> None:
    """Pictures are decoded one by one, so those of a batch are those decoded alone; one tile over all is the whole."""
    latents = subject.latents(DiffusionRequest("a cat", None, Size(96, 64), 1, 0.0, 1, 2))
    pixels = subject.ours.decode(latents, tiling)
    assert pixels.shape == (2, 3, 64, 96)
    assert torch.equal(pixels[1:], subject.ours.autoencoder.decode(latents[1:], tiling))
    assert torch.equal(pixels, subject.ours.decode(latents)) == (tiling.size == 64)


def test_latents_that_are_no_numbers(subject: Subject) -> None:
    with pytest.raises(ValueError, match=r"^the latents are not finite: .* use --dtype fp32$"):
        subject.ours.decode(torch.full((1, 4, 16, 16), torch.nan))


# -- texts that are kept ----------------------------------------------------------------------------------------------


def test_a_text_is_encoded_once(subject: Subject) -> None:
    """States that are found again are those that were made, bit for bit, and drawing with them leaves them so."""
    pipeline = load_pipeline(str(subject.folder), threads=1)
    read: list[int] = []
    pipeline.encoder.models[0].get_submodule("model").register_forward_hook(
        lambda _, given, __: read.append(len(given[0]))
    )
    first = DiffusionRequest("a cat", None, Size(64, 64), 2, 2.0, 1)
    drawn = pipeline.draw(first)
    assert len(read) == 2
    plan = pipeline.plan(first)
    kept = pipeline.encode(plan)
    fresh = [pipeline.encoder.encode(ids) for ids in plan.token_ids]
    assert all(torch.equal(*pair) for pair in zip(kept, fresh, strict=True))
    assert torch.equal(pipeline.draw(first), drawn)
    assert len(read) == 4, "two of them asked for by this test"
    pipeline.draw(DiffusionRequest("a dog", None, Size(64, 64), 1, 2.0, 1))
    assert len(read) == 5, "the empty negative prompt is kept"
