"""The built-in pipeline: diffusers draws the same pictures from its folder, prompts act, what it cannot do it says."""

from pathlib import Path

import pytest
import torch
from diffusers import ZImagePipeline
from torch import Tensor
from zoo.digits.measures import slant, thickness

from ridgeline.core.checkpoint.source import BUILTIN, open_source
from ridgeline.core.models import ModelRefused
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from support.pipelines import widen

DIGITS = BUILTIN / "digits"
FAST = BUILTIN / "digits-fast"


@pytest.fixture(scope="module")
def pipeline() -> Pipeline:
    return load_pipeline("digits", threads=1)


@pytest.fixture(scope="module")
def widened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with its weights in fp32, in which both compute alike."""
    folder = tmp_path_factory.mktemp("digits")
    widen(DIGITS, folder)
    return folder


@pytest.mark.parametrize(("prompt", "scale"), [("a thick, handwritten seven", 3.0), ("3", 0.0)])
def test_diffusers_draws_the_same_pictures_from_the_folder(widened: Path, prompt: str, scale: float) -> None:
    """Tokenizer, template, encoder, denoiser, guidance, schedule, sampler, autoencoder. Times are told 1,000-fold, and
    their last bit in fp32 is 6e-5 of a radian; a level of grey is 4e-3."""
    theirs = ZImagePipeline.from_pretrained(widened, torch_dtype=torch.float32)
    theirs.set_progress_bar_config(disable=True)
    expected = theirs(
        prompt,
        height=32,
        width=32,
        num_inference_steps=6,
        guidance_scale=scale,
        num_images_per_prompt=2,
        generator=[torch.Generator().manual_seed(seed) for seed in (7, 8)],
        max_sequence_length=32,
        output_type="pt",
    ).images
    drawn = load_pipeline(str(widened), threads=1).draw(
        DiffusionRequest(prompt, steps=6, guidance=scale, seed=7, images=2)
    )
    assert drawn.shape == expected.shape == (2, 1, 32, 32)
    assert float(((drawn / 2 + 0.5).clamp(0, 1) - expected).abs().max()) < 1e-3


def test_what_is_stored_draws_nearly_the_same(pipeline: Pipeline, widened: Path) -> None:
    """In bfloat16, as the folder has it."""
    request = DiffusionRequest("a handwritten four", steps=8, seed=3, images=2)
    difference = pipeline.draw(request) - load_pipeline(str(widened), threads=1).draw(request)
    assert 0 < float(difference.square().mean().sqrt()) < 0.1


def drawn(pipeline: Pipeline, prompt: str) -> Tensor:
    return pipeline.draw(DiffusionRequest(prompt, steps=4, seed=0, images=4)).clamp(-1, 1)


def test_a_prompt_is_followed(pipeline: Pipeline) -> None:
    """By what is measured on pixels, over four images: a one is a stroke that is higher than wide, a zero has paper in
    its middle; strokes are as thick, and lean as far, as was asked for."""
    ones, zeros = drawn(pipeline, "a handwritten one"), drawn(pipeline, "please draw a 0")
    assert float((ones > 0).sum()) < 0.6 * float((zeros > 0).sum())
    assert float(ones[..., 14:18, 12:20].amax(-1).mean()) > 0.5
    assert float(zeros[..., 14:18, 15:17].mean()) < -0.5
    thin, thick = (thickness(drawn(pipeline, f"a {trait} handwritten three")).mean() for trait in ("thin", "thick"))
    assert float(thick) > 1.3 * float(thin)
    left, right = (slant(drawn(pipeline, f"the digit 4 leaning to the {side}")).mean() for side in ("left", "right"))
    assert float(right) > float(left) + 0.2


def test_a_folder_states_what_a_request_leaves_open(pipeline: Pipeline) -> None:
    plan = pipeline.plan(DiffusionRequest("a seven", seed=1))
    assert (plan.schedule.steps, plan.scale, plan.passes) == (20, 3.0, 40)
    assert plan.geometry.latents == (4, 16, 16)
    assert plan.geometry.tokens == 64


def test_the_fast_one_is_another_denoiser_alone() -> None:
    """Bit for bit, so that latents and states of texts are those of digits."""
    for part in ("vae", "text_encoder", "tokenizer"):
        for path in (DIGITS / part).iterdir():
            assert (FAST / part / path.name).read_bytes() == path.read_bytes(), path
    denoisers = [(folder / "transformer/diffusion_pytorch_model.safetensors") for folder in (DIGITS, FAST)]
    assert denoisers[0].read_bytes() != denoisers[1].read_bytes()


def test_four_passes_draw_a_digit() -> None:
    """As the pipeline's folder asks for it: a one is a stroke, a zero has paper in its middle."""
    fast = load_pipeline("digits-fast", threads=1)
    plan = fast.plan(DiffusionRequest("a seven", seed=1))
    assert (plan.schedule.steps, plan.scale, plan.passes) == (4, 0.0, 4)
    ones, zeros = (
        fast.draw(DiffusionRequest(text, seed=0, images=4)).clamp(-1, 1) for text in ("a one", "please draw a 0")
    )
    assert float((ones > 0).sum()) < 0.6 * float((zeros > 0).sum())
    assert float(ones[..., 14:18, 12:20].amax(-1).mean()) > 0.5
    assert float(zeros[..., 14:18, 15:17].mean()) < -0.5


def test_what_it_was_not_trained_for_is_refused(pipeline: Pipeline) -> None:
    with pytest.raises(ValueError, match="32x32"):
        pipeline.plan(DiffusionRequest("a seven", size=Size(64, 64)))
    with pytest.raises(ValueError, match=r"has positions for 32; shorten it"):
        pipeline.plan(DiffusionRequest("a seven " * 20))


def test_it_draws_and_does_not_write() -> None:
    with pytest.raises(
        ModelRefused, match=r"digits .* which generates images or video: give it to ridgeline image"
    ) as refused:
        open_source("digits").model  # noqa: B018
    assert "\n" not in str(refused.value)


def test_all_that_is_built_in_stays_small() -> None:
    def megabytes(folder: Path) -> float:
        return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6

    assert max(megabytes(DIGITS), megabytes(FAST)) < 12
    assert megabytes(BUILTIN) < 40
