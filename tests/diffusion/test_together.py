"""The parts together: seeds, sizes, a schedule, guidance, a sampler and Z-Image's denoiser give the latents of its
pipeline in diffusers, which is given the same states of the same texts."""

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from torch import Tensor

from diffusion.schedulers import FLUX_DEV, Z_IMAGE, Config, ours, relative
from ridgeline.backends.model_loader import load_denoiser
from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.media.diffusion.geometry import PipelineLayout, Size
from ridgeline.media.diffusion.guidance import Convention, apply_guidance, make_guidance
from ridgeline.media.diffusion.noise import Noise
from ridgeline.media.diffusion.samplers import SamplerState
from support.pipelines import z_image_transformer

LAYOUT = PipelineLayout(4, (Size(96, 64), Size(64, 64)))
TEXTS = 16


@pytest.fixture(scope="module")
def transformer() -> ZImageTransformer2DModel:
    return z_image_transformer(TEXTS, seed=3)


@pytest.fixture(scope="module")
def denoiser(transformer: ZImageTransformer2DModel, tmp_path_factory: pytest.TempPathFactory) -> Denoiser:
    folder = tmp_path_factory.mktemp("transformer")
    transformer.save_pretrained(folder)
    return load_denoiser(str(folder))


@pytest.mark.parametrize(
    ("config", "steps", "scale", "images"),
    [(Z_IMAGE, 8, 0.0, 2), (Z_IMAGE, 5, 3.0, 2), (FLUX_DEV, 4, 1.5, 1), (Z_IMAGE, 1, 4.0, 1)],
    ids=["no guidance", "guidance", "dynamic shift", "one step"],
)
def test_latents_are_the_pipelines(
    transformer: ZImageTransformer2DModel, denoiser: Denoiser, config: Config, steps: int, scale: float, images: int
) -> None:
    """Image i from its own seed, the scale in the pipeline's convention, the shift by its tokens."""
    seed, size = 11, Size(96, 64)
    says = torch.Generator().manual_seed(1)
    positive, negative = (torch.randn(tokens, TEXTS, generator=says) for tokens in (7, 40))
    options = {name: value for name, value in config.items() if not name.startswith("_")}
    pipeline = ZImagePipeline(FlowMatchEulerDiscreteScheduler(**options), None, None, None, transformer)
    pipeline.set_progress_bar_config(disable=True)
    expected = pipeline(
        height=size.height,
        width=size.width,
        num_inference_steps=steps,
        guidance_scale=scale,
        prompt_embeds=[positive] * images,
        negative_prompt_embeds=[negative] * images,
        generator=[torch.Generator().manual_seed(seed + image) for image in range(images)],
        output_type="latent",
    ).images

    geometry, scheduler = LAYOUT.geometry(size), ours(config, "ZImagePipeline")
    schedule = scheduler.schedule(steps, geometry.tokens)
    guidance = make_guidance(Convention.ADDED, scale, "blurred" if scale else None)
    passes = 0

    def asked(x: Tensor, t: float, text: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        velocity: Tensor = denoiser(x, t, [text] * images)
        return velocity

    predict = apply_guidance(asked, guidance, positive, None if guidance.negative is None else negative)
    draw = Noise(seed, images, geometry.latents)
    state = SamplerState(draw())
    with torch.inference_mode():
        for step in range(schedule.steps):
            state = scheduler.sampler(schedule, step, state, predict(state.x, schedule.time(step)), draw)
    assert state.x.shape == expected.shape == (images, 4, 8, 12)
    off = relative(state.x, expected)
    assert off < 1e-5, off
    assert passes == guidance.passes(steps) == (steps if scale == 0 else 2 * steps)
