"""The decode of a clip in closed form: diffusers' VAE of Wan on meta, its FLOPs to the digit; the usual jobs."""

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch.utils.flop_counter import FlopCounterMode

from ridgeline.core.checkpoint import open_source
from ridgeline.core.models import Fields
from ridgeline.media.diffusion.geometry import Geometry
from ridgeline.media.diffusion.pipeline_defaults import PipelineDefaults
from ridgeline.media.diffusion.video_decode_price import VideoDecodePrice
from ridgeline.price.devices import load_device

SMALL: dict[str, dict[str, Any]] = {
    "2.1": {
        "base_dim": 6, "z_dim": 4, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2,
        "temperal_downsample": [False, True, True],
    },
    "2.2": {
        "base_dim": 5, "decoder_base_dim": 8, "z_dim": 6, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2,
        "is_residual": True, "in_channels": 12, "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16,
        "temperal_downsample": [False, True, True],
    },
    "shallow": {
        "base_dim": 3, "z_dim": 5, "dim_mult": [1, 3], "num_res_blocks": 1, "temperal_downsample": [True],
    },
}  # fmt: skip


@pytest.mark.parametrize("latents", [(1, 3, 2), (2, 2, 3), (4, 3, 5)], ids=str)
@pytest.mark.parametrize("config", SMALL.values(), ids=list(SMALL))
def test_flops_are_those_of_diffusers(config: dict[str, Any], latents: tuple[int, int, int]) -> None:
    """Products and attention, of a picture, of two latent frames and of more; and the parameters of its products."""
    with torch.device("meta"):
        theirs = AutoencoderKLWan(**config).eval()
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            theirs.decode(torch.empty(1, config["z_dim"], *latents))
    ours = VideoDecodePrice(Fields(config, "vae"), torch.bfloat16)
    assert sum(layer.cost.flops.get("bf16", 0) for layer in ours.layers(latents)) == counter.get_total_flops()
    named = theirs.named_parameters()
    products = sum(p.numel() for name, p in named if name.startswith(("decoder", "post_quant")) and "gamma" not in name)
    assert ours.parameters == products


@pytest.mark.parametrize(("release", "teraflops"), [("wan2.1-t2v-1.3b", 275.0), ("wan2.2-ti2v-5b", 2011.0)])
def test_the_usual_jobs(release: str, teraflops: float) -> None:
    """As diffusers' classes take them on meta at full size: 275.35 and 2,011.14 TFLOP."""
    decoder, geometry = released(release)
    products = sum(layer.cost.flops.get("bf16", 0) for layer in decoder.layers(geometry.latents[1:]))
    assert products / 1e12 == pytest.approx(teraflops, rel=2e-3)
    phase = decoder.price(load_device("h100-sxm"), geometry, 2)
    assert phase.count == 2
    assert phase.flops == pytest.approx(products, rel=0.01)  # norms on top
    assert phase.seconds.floor < phase.seconds.bound < phase.seconds.expected
    assert phase.limit == "compute"
    assert sum(row.bound for row in phase.classes) == pytest.approx(phase.seconds.bound)


def test_memory_grows_with_pixels_and_not_with_frames() -> None:
    """Frame by frame: a longer clip takes no more of the decoder, a larger one does."""
    decoder, geometry = released("wan2.1-t2v-1.3b")
    few, many = (Geometry(geometry.layout, geometry.size, frames) for frames in (5, 81))
    large = Geometry(geometry.layout, geometry.size._replace(width=1664), 5)
    assert decoder.activations(few) == decoder.activations(many)
    assert decoder.activations(large) == pytest.approx(2 * decoder.activations(few), rel=0.01)


def released(release: str) -> tuple[VideoDecodePrice, Geometry]:
    """The decoder of a release, and the clip that it is usually asked for, of 832 x 480 for the small one."""
    source = open_source(release)
    usual, config = PipelineDefaults.of(source), source.components["vae"].config
    assert config is not None
    return VideoDecodePrice(config, torch.bfloat16), usual.layout.geometry(usual.size, usual.frames)
