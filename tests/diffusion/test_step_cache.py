"""The step cache: which passes run their first block alone, and what they give, against diffusers' first-block cache
and by hand, in fp32 on small random weights; with guidance, batches and experts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FirstBlockCacheConfig, FluxPipeline
from torch import Tensor, nn

from diffusion.schedulers import relative
from ridgeline.core.models.common.block_runner import Blocks
from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.core.models.common.modulated import ResidualStream
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Geometry, Size
from ridgeline.media.diffusion.pipeline import CallSeconds, DenoiseOutput, Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.media.diffusion.step_cache import StepCache
from support.flux_pipelines import flux, klein
from support.pipelines import generators, pixart, wan, z_image

TOLERANCE = 1e-5
ENDLESS = 1e9  # more than any block changes
PICTURE = DiffusionRequest("a cat", "blurred", Size(64, 64), 6, 3.0, 7)
CLIP = DiffusionRequest("a cat", "blurred", Size(64, 32), 6, 3.0, 7, frames=5)
KINDS: dict[str, tuple[Callable[[Path], Any], DiffusionRequest]] = {
    "z-image": (z_image, PICTURE),
    "klein": (lambda folder: klein(folder, distilled=False), replace(PICTURE, negative=None)),
    "dev": (lambda folder: flux(folder, dev=True), replace(PICTURE, negative=None)),
    "pixart": (lambda folder: pixart(folder, sigma=True), PICTURE),
    "wan": (wan, CLIP),
    "two experts": (lambda folder: wan(folder, experts=True), CLIP),
}

THRESHOLDS = {"dev": 1.1, "wan": 0.5, "two experts": 0.3}
"""Of those that the reference has it for (FLUX.2's single blocks break it): some passes change more, some less."""
MIXED = {"z-image": 1.1, "wan": 0.237}
"""At which pictures and passes of one step differ in it."""
MATTERS = 1e-3


@dataclass(frozen=True)
class Subject:
    """Diffusers' pipeline, ours of the folder that it wrote, and what they are asked for."""

    name: str
    theirs: Any
    ours: Pipeline
    request: DiffusionRequest

    def steps(self, seconds: CallSeconds | None = None, **changed: Any) -> list[DenoiseOutput]:
        """Ours of the request with these changes."""
        plan = self.ours.plan(replace(self.request, **changed), seconds)
        return list(self.ours.denoise(plan, self.ours.encode(plan)))

    @property
    def denoisers(self) -> list[Denoiser]:
        """One or two."""
        return [self.ours.denoiser, *([self.ours.low_noise_expert.denoiser] if self.ours.low_noise_expert else [])]


@pytest.fixture(scope="module", params=KINDS)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    folder, (make, asked) = tmp_path_factory.mktemp("pipeline"), KINDS[request.param]
    theirs = make(folder)
    return Subject(request.param, theirs, load_pipeline(str(folder), threads=1), asked)


def latents(steps: Sequence[DenoiseOutput]) -> Tensor:
    """Finished."""
    return torch.cat([step.latents for step in steps if step.last])


def one_by_one(_: Geometry, texts: Sequence[int]) -> float:
    """Calls that take longer with each picture."""
    return float(len(texts))


def all_at_once(_: Geometry, texts: Sequence[int]) -> float:
    """Calls that never do."""
    return 1.0


# -- whole and cut short ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("seconds", [one_by_one, all_at_once])
def test_no_change_is_below_nothing(subject: Subject, seconds: CallSeconds, images: int) -> None:
    """Threshold 0 is the cache left out, bit for bit, and no pass is skipped."""
    off, nothing = (subject.steps(seconds, images=images, step_cache=each) for each in (None, 0.0))
    assert torch.equal(latents(nothing), latents(off))
    assert not any(step.skipped for step in nothing + off)


class ByHand:
    """What is left where every pass but the first skips: the first pass' residual of all blocks but one, kept as one
    sum and added to the next passes'."""

    def __init__(self) -> None:
        self.rest: Tensor | None = None

    def __call__(self, entered: ResidualStream, own: Tensor | None, first: Blocks, rest: Blocks) -> ResidualStream:
        stream = first(entered)
        after = self._sum(stream, slice(None) if own is None else own)
        if self.rest is None:
            self.rest = self._sum(rest(stream), slice(None)) - after
        gate = None if stream.gate_RD is None else torch.zeros_like(stream.gate_RD)
        return ResidualStream(after + self.rest, torch.zeros_like(after), gate)

    def _sum(self, stream: ResidualStream, rows: Any) -> Tensor:
        assert stream.y_ND is not None
        gate = 1.0 if stream.gate_RD is None else stream.gate_RD
        return (stream.x_ND + gate * stream.y_ND)[rows].clone()


def test_what_is_kept_is_what_is_said(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes between two steps: of each picture side by side, of each pass, of each expert."""
    walks, walk = list[Any](), StepCache.block_runner

    def noted(cache: StepCache, pictures: int) -> Any:
        walks.append(walk(cache, pictures))
        return walks[-1]

    monkeypatch.setattr(StepCache, "block_runner", noted)
    for seconds, images in ((one_by_one, 1), (all_at_once, 2)):
        walks.clear()
        asked = replace(subject.request, images=images, step_cache=0.1)
        plan = subject.ours.plan(asked, seconds)
        assert len(plan.groups) == 1
        list(subject.ours.denoise(plan, subject.ours.encode(plan)))
        kept = sum(part.nbytes for each in walks for part in (each._first, each._rest))
        assert kept == subject.ours.step_cache_bytes(plan) > 0
        assert subject.ours.step_cache_bytes(subject.ours.plan(replace(asked, step_cache=None))) == 0


def last_block(denoiser: Denoiser) -> nn.Module:
    """The last of those that a pass may skip."""
    names = ("single_transformer_blocks", "blocks", "layers")
    (blocks,) = (getattr(denoiser, name) for name in names if hasattr(denoiser, name))
    last: nn.Module = blocks[-1]
    return last


def test_all_but_the_first_pass_skip(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each expert and each pass of guidance: what is drawn is what a sum by hand gives, and the last block has run
    once for either."""
    ran = list[int]()
    handles = [
        last_block(denoiser).register_forward_pre_hook(lambda *_, expert=expert: ran.append(expert))
        for expert, denoiser in enumerate(subject.denoisers)
    ]
    steps = subject.steps(one_by_one, step_cache=ENDLESS)
    for handle in handles:
        handle.remove()
    passes = subject.ours.plan(subject.request).guidance.passes(1)
    assert sorted(ran) == sorted([*range(len(handles))] * passes)
    assert sum(step.skipped for step in steps) == passes * (len(steps) - len(handles))
    monkeypatch.setattr(StepCache, "block_runner", lambda *_: ByHand())
    by_hand = subject.steps(one_by_one, step_cache=ENDLESS)
    assert relative(latents(steps), latents(by_hand)) < TOLERANCE


def unpacked(subject: Subject, theirs: Tensor) -> Tensor:
    """What the reference gives as latents, as ours are."""
    if isinstance(subject.theirs, FluxPipeline):
        return FluxPipeline._unpack_latents(theirs, 64, 64, 4)
    return theirs


@pytest.mark.parametrize("subject", THRESHOLDS, indirect=True)
def test_latents_are_the_references(subject: Subject) -> None:
    """Diffusers' first-block cache, its state new for this run, skips the same passes to the same end."""
    request, threshold = subject.request, THRESHOLDS[subject.name]
    experts = [subject.theirs.transformer, getattr(subject.theirs, "transformer_2", None)]
    for expert in filter(None, experts):
        expert.enable_cache(FirstBlockCacheConfig(threshold))
    assert request.size is not None
    given: dict[str, Any] = {"negative_prompt": request.negative} if request.negative is not None else {}
    given |= {"num_frames": request.frames} if request.frames is not None else {}
    theirs = subject.theirs(
        prompt=request.prompt,
        height=request.size.height,
        width=request.size.width,
        num_inference_steps=request.steps,
        guidance_scale=request.guidance,
        generator=generators(7, 1),
        output_type="latent",
        **given,
    )[0]
    for expert in filter(None, experts):
        expert.disable_cache()
    steps = subject.steps(one_by_one, step_cache=threshold)
    assert 0 < sum(step.skipped for step in steps) < subject.ours.plan(request).passes
    assert relative(latents(steps), unpacked(subject, theirs)) < TOLERANCE
    assert relative(latents(subject.steps(one_by_one)), unpacked(subject, theirs)) > MATTERS


# -- together ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["z-image", "wan"], indirect=True)
def test_a_picture_is_the_same_whatever_is_drawn_beside_it(subject: Subject) -> None:
    """Calls of three pictures with both passes of each: some of them skip while others do not, and each is what it is
    alone, in calls of one. Skipped are the passes of calls whose rest did not run."""
    threshold = MIXED[subject.name]
    together = subject.steps(all_at_once, images=3, step_cache=threshold)
    alone = [subject.steps(one_by_one, seed=7 + image, step_cache=threshold) for image in range(3)]
    by_step = list(zip(*([step.skipped for step in steps] for steps in alone), strict=True))
    assert any(0 < sum(skipped) < 6 for skipped in by_step), by_step
    assert [step.skipped for step in together] == [6 * (sum(skipped) == 6) for skipped in by_step]
    for image, steps in enumerate(alone):
        assert relative(together[-1].latents[image], steps[-1].latents[0]) < TOLERANCE


@pytest.mark.parametrize("threshold", [-0.1, float("nan"), float("inf")])
def test_what_is_no_threshold_is_refused(subject: Subject, threshold: float) -> None:
    with pytest.raises(
        ValueError,
        match=r"^the step cache's threshold is .*; give the relative change below which blocks are skipped, 0 or more",
    ):
        subject.ours.plan(replace(subject.request, step_cache=threshold))


def test_a_file_says_what_it_was_drawn_with(subject: Subject) -> None:
    """It is not the picture of the same seed without."""
    for threshold in (None, 0.3):
        plan = subject.ours.plan(replace(subject.request, step_cache=threshold))
        assert subject.ours.parameters(plan, 0).get("step_cache") == threshold
