"""What a request costs: Z-Image's released parts, stage by stage, against their models priced one by one."""

from pathlib import Path
from typing import Any

import pytest
import torch

from models.test_z_image import CONFIGS, RELEASE, subject_of
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields
from ridgeline.core.models.building import build, build_denoiser
from ridgeline.core.models.common.activation_peak import ActivationTracker
from ridgeline.core.models.common.decoder import Decoder
from ridgeline.core.models.common.priced_module import call_hooks
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import build as build_autoencoder
from ridgeline.core.ops.pixel_grid import PixelGrid
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.media.diffusion.geometry import LAYOUTS, Geometry, PipelineLayout, Size
from ridgeline.media.diffusion.guidance import Convention, make_guidance
from ridgeline.media.diffusion.pipeline_price import PipelineComponents, PipelinePrice, PipelineWorkload, RequestPrice
from ridgeline.price.devices import load_device
from ridgeline.price.price import Price

VAE: dict[str, Any] = {
    "_class_name": "AutoencoderKL", "block_out_channels": [128, 256, 512, 512], "layers_per_block": 2,
    "latent_channels": 16, "norm_num_groups": 32, "scaling_factor": 0.3611, "shift_factor": 0.1159,
    "use_quant_conv": False, "use_post_quant_conv": False, "force_upcast": True,
    "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
}  # fmt: skip
"""vae/config.json of Z-Image and FLUX.1."""
CARD = load_device("h100-sxm")
SQUARE = LAYOUTS["z-image"].geometry(Size(1024, 1024))


@pytest.fixture(scope="module")
def parts() -> PipelineComponents:
    """Z-Image's, in bf16 on meta."""
    encoder = build(read_config("qwen3-4b"))
    assert isinstance(encoder, Decoder)
    encoder.stop_after(35)
    encoder.disable_kv_cache()
    denoiser = build_denoiser(Fields(RELEASE, "Z-Image"), torch.bfloat16)
    return PipelineComponents(
        (encoder,), (denoiser,), build_autoencoder(Fields(VAE, "vae"), StorageConfig(torch.bfloat16))
    )


@pytest.fixture(scope="module")
def price(parts: PipelineComponents) -> PipelinePrice:
    """Of these parts."""
    return PipelinePrice(parts)


def asked(price: PipelinePrice, steps: int = 8, *texts: int, pictures: int = 1) -> RequestPrice:
    """A picture of 1024 x 1024; by default of one text of 96 tokens."""
    return price.on(CARD, PipelineWorkload(SQUARE, steps, texts or (96,), pictures))


def test_stages_are_the_models_runs(parts: PipelineComponents, price: PipelinePrice) -> None:
    """FLOPs, bytes and seconds of each stage, of a prompt and a negative one, run by run; what a denoiser makes of a
    text once is a part of reading it."""
    encoder, denoiser, autoencoder = Price(parts.encoders[0]), Price(parts.denoisers[0]), Price(parts.autoencoder)
    lengths = (96, 12)
    found = asked(price, 30, *lengths)
    reads = [
        encoder.price_step(CARD, Work.of([StepSegment(n, n)], parts.encoders[0].attention_patterns, n)) for n in lengths
    ]
    reads += [denoiser.price_step(CARD, parts.denoisers[0].prepare_work([n])) for n in lengths]
    passes = [denoiser.price_step(CARD, parts.denoisers[0].pass_work((128, 128), [n])) for n in lengths]
    decode = autoencoder.price_step(CARD, parts.autoencoder.decode_work(PixelGrid(1, 128, 128)))
    for stage, steps, times in ((found.encode, reads, 1), (found.denoise, passes, 30), (found.decode, [decode], 1)):
        assert stage.flops == pytest.approx(times * sum(step.cost.total_flops for step in steps), rel=1e-12)
        assert stage.nbytes == pytest.approx(times * sum(step.cost.total_bytes for step in steps), rel=1e-12)
        assert stage.seconds.expected == pytest.approx(times * sum(step.expected for step in steps), rel=1e-12)
        assert stage.seconds.floor == pytest.approx(times * sum(step.floor for step in steps), rel=1e-12)
        assert stage.runs == times * len(steps)
    assert found.seconds.bound == pytest.approx(sum(stage.seconds.bound for stage in found.stages), rel=1e-12)


def test_the_release_in_figures(price: PipelinePrice) -> None:
    """Z-Image-Turbo's eight passes of 56.1 TFLOP, 15 % of them attention's, and 10.5 TFLOP of decoding; the encoder
    reads its weights for less than a prompt's arithmetic."""
    found = asked(price)
    assert found.denoise.flops == pytest.approx(8 * 56.1e12, rel=3e-3)
    assert found.denoise.attention == pytest.approx(0.15, abs=0.005)
    assert found.decode.flops == pytest.approx(10.5e12, rel=2e-3)
    assert [stage.limit for stage in found.stages] == ["memory", "compute", "compute"]
    assert found.seconds.floor < found.seconds.bound < found.seconds.expected


def test_n_steps_with_guidance_are_2n_passes(price: PipelinePrice) -> None:
    """As guidance counts them. Two texts of one length cost twice a text's passes."""
    for negative in (None, "blurred"):
        guidance = make_guidance(Convention.TEXTBOOK, 1.0 if negative is None else 4.0, negative)
        texts = (96,) * guidance.passes(1)
        assert (
            PipelineWorkload(SQUARE, 50, texts).passes == asked(price, 50, *texts).denoise.runs == guidance.passes(50)
        )
    assert asked(price, 50, 96, 96).denoise.flops == 2 * asked(price, 50, 96).denoise.flops


@pytest.mark.parametrize(("steps", "saved"), [(8, 0.84), (4, 0.92)])
def test_fewer_steps_save_what_they_are_fewer(price: PipelinePrice, steps: int, saved: float) -> None:
    """Of the denoiser's FLOPs and seconds; a request saves less, as its text and its decode stay."""
    for texts in ((96,), (96, 96)):
        many, few = asked(price, 50, *texts), asked(price, steps, *texts)
        assert 1 - few.denoise.flops / many.denoise.flops == pytest.approx(saved)
        assert 1 - few.denoise.seconds.expected / many.denoise.seconds.expected == pytest.approx(saved)
        assert saved - 0.02 < 1 - few.seconds.expected / many.seconds.expected < saved


def test_pictures_share_their_texts(price: PipelinePrice) -> None:
    """Three are one encoding, and three times all else."""
    one, three = asked(price, 8, 96), asked(price, 8, 96, pictures=3)
    assert three.encode.seconds == one.encode.seconds
    for mine, single in zip(three.stages[1:], one.stages[1:], strict=True):
        assert mine.seconds.expected == pytest.approx(3 * single.seconds.expected)
    assert three.memory == one.memory


def test_encoders_read_texts_of_their_own_lengths(parts: PipelineComponents, price: PipelinePrice) -> None:
    """What is padded for an encoder is not what the denoiser is given."""
    both = PipelinePrice(PipelineComponents(parts.encoders * 2, parts.denoisers, parts.autoencoder))
    job = PipelineWorkload(SQUARE, 4, (96,), read=((96,), (256,)))
    found = both.on(CARD, job)
    alone = [price.on(CARD, PipelineWorkload(SQUARE, 4, (96,), read=((tokens,),))).encode for tokens in (96, 256)]
    once = Price(parts.denoisers[0]).price_step(CARD, parts.denoisers[0].prepare_work([96]))
    assert found.encode.flops == pytest.approx(sum(stage.flops for stage in alone) - once.cost.total_flops)
    both_seconds = sum(stage.seconds.expected for stage in alone) - once.expected
    assert found.encode.seconds.expected == pytest.approx(both_seconds)
    assert found.memory.weights.keys() == {"text encoder", "text encoder 2", "denoiser", "autoencoder"}


def test_tiles_take_longer_and_less_memory(price: PipelinePrice) -> None:
    """Of 128 x 128 latents nine tiles of 64: where they overlap, pixels are decoded more than once."""
    tiling, whole = Tiling(64, 16), asked(price)
    tiled = price.on(CARD, PipelineWorkload(SQUARE, 8, (96,)), tiling)
    assert tiled.decode.runs == tiling.tiles(PixelGrid(1, 128, 128)) == 9
    assert tiled.decode.flops > whole.decode.flops
    assert tiled.memory.decode == whole.memory.tiled < whole.memory.decode == whole.memory.whole
    assert whole.memory.peak == sum(whole.memory.weights.values()) + whole.memory.whole


def test_experts_are_held_together_and_asked_in_turn(parts: PipelineComponents, price: PipelinePrice) -> None:
    """Two take the memory of two, and the passes of one."""
    two = PipelinePrice(PipelineComponents(parts.encoders, parts.denoisers * 2, parts.autoencoder)).on(
        CARD, PipelineWorkload(SQUARE, 8, (96,))
    )
    one = asked(price)
    assert two.memory.weights["denoiser"] == 2 * one.memory.weights["denoiser"]
    assert two.denoise.seconds == one.denoise.seconds


def test_activations_are_those_of_a_run(tmp_path: Path) -> None:
    """What is alive at once in a true pass on the CPU, of a small denoiser, is what was said before it."""
    denoiser = subject_of(CONFIGS["odd"], tmp_path).ours
    autoencoder = build_autoencoder(Fields(VAE | {"latent_channels": 3}, "vae"), StorageConfig(torch.float32))
    geometry = Geometry(PipelineLayout(3, (Size(96, 80),)), Size(96, 80), 1)
    encoder = build(read_config("qwen3-0.6b"))
    said = (
        PipelinePrice(PipelineComponents((encoder,), (denoiser,), autoencoder))
        .on(CARD, PipelineWorkload(geometry, 1, (40,)))
        .memory.denoise
    )
    alive = ActivationTracker()
    with torch.inference_mode(), call_hooks(denoiser.ops(), alive):
        denoiser(torch.randn(1, 3, 10, 12), 0.5, [torch.randn(40, denoiser.text_width)])
    assert said == pytest.approx(alive.peak, rel=0.05)
