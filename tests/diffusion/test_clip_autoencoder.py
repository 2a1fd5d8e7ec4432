"""The VAEs of clips that diffusers computes: pixels against its own pipeline's, chunk by chunk; what is
refused."""

import builtins
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from ridgeline.core.models import ModelRefused
from ridgeline.media.diffusion.video_autoencoder import VideoAutoencoder, load_video_autoencoder
from support.checkpoints import edit_config, redraw

FIRST: dict[str, Any] = {
    "base_dim": 3, "z_dim": 5, "dim_mult": [1, 1, 2, 1], "num_res_blocks": 1,
    "temperal_downsample": [False, True, True], "latents_mean": [0.3, -0.2, 0.0, 1.0, -0.7],
    "latents_std": [2.0, 0.5, 1.0, 1.3, 2.2],
}  # fmt: skip
SECOND: dict[str, Any] = {
    "base_dim": 4, "decoder_base_dim": 6, "z_dim": 3, "dim_mult": [1, 2, 2], "num_res_blocks": 2, "is_residual": True,
    "temperal_downsample": [True, False], "patch_size": 2, "in_channels": 12, "out_channels": 12,
    "scale_factor_spatial": 8, "scale_factor_temporal": 2, "latents_mean": [0.1, 0.2, -0.3],
    "latents_std": [0.5, 1.5, 1.0],
}  # fmt: skip
CONFIGS = {"2.1": FIRST, "2.2": SECOND}


def theirs_of(config: dict[str, Any], folder: Path) -> AutoencoderKLWan:
    """Diffusers' model of a config, also saved."""
    theirs = AutoencoderKLWan(**config).eval()
    redraw(theirs, seed=3)
    theirs.save_pretrained(folder)
    return theirs


def reference(theirs: AutoencoderKLWan, latents: Tensor) -> Tensor:
    """Pixels as WanPipeline has them."""
    mean, std = (torch.tensor(theirs.config[name]).view(1, -1, 1, 1, 1) for name in ("latents_mean", "latents_std"))
    with torch.inference_mode():
        pixels: Tensor = theirs.decode(latents * std + mean, return_dict=False)[0]
    return pixels


@pytest.fixture(params=CONFIGS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[AutoencoderKLWan, VideoAutoencoder]:
    """Diffusers' model and ours of the folder that it wrote."""
    theirs = theirs_of(CONFIGS[request.param], tmp_path)
    return theirs, load_video_autoencoder(str(tmp_path))


@pytest.mark.parametrize("size", [(1, 1, 4, 3), (2, 3, 2, 5)])
def test_pixels(pair: tuple[AutoencoderKLWan, VideoAutoencoder], size: tuple[int, ...]) -> None:
    """Of one frame and of several, with the latents' means and deviations."""
    theirs, ours = pair
    clips, frames, height, width = size
    latents = torch.randn(clips, ours.shape.latents, frames, height, width, generator=torch.Generator().manual_seed(1))
    expected = reference(theirs, latents)
    assert expected.abs().max() > 0.05
    pixels = ours.decode(latents)
    side = ours.shape.spatial
    assert pixels.shape == (clips, 3, ours.shape.frames(frames), side * height, side * width)
    assert torch.allclose(pixels, expected, atol=1e-6)
    chunks = list(ours.chunks(latents))
    assert [chunk.shape[2] for chunk in chunks] == [1] + [ours.shape.temporal] * (frames - 1)
    assert torch.equal(torch.cat(chunks, 2), pixels)


def test_a_decode_that_was_left_changes_nothing(pair: tuple[AutoencoderKLWan, VideoAutoencoder]) -> None:
    """What convolutions keep of earlier frames is of one clip alone."""
    _, ours = pair
    latents = torch.randn(1, ours.shape.latents, 3, 2, 2)
    whole, left = ours.decode(latents), ours.chunks(latents + 1)
    next(left)
    next(left)
    assert torch.equal(ours.decode(latents), whole)


def test_two_clips_are_decoded_in_turns(pair: tuple[AutoencoderKLWan, VideoAutoencoder]) -> None:
    """As requests are served: neither sees what convolutions keep of the other."""
    _, ours = pair
    both = [torch.randn(1, ours.shape.latents, 3, 2, 2) for _ in range(2)]
    wanted = [ours.decode(each) for each in both]
    pairs = list(zip(*map(ours.chunks, both), strict=True))
    for chunks, whole in zip(zip(*pairs, strict=True), wanted, strict=True):
        assert torch.equal(torch.cat(chunks, 2), whole)


def test_bf16(tmp_path: Path) -> None:
    """In the number format that is asked."""
    theirs = theirs_of(FIRST, tmp_path)
    ours = load_video_autoencoder(str(tmp_path), torch.bfloat16)
    latents = torch.randn(1, 5, 2, 3, 3)
    pixels = ours.decode(latents)
    assert pixels.dtype == torch.float32
    assert 1e-6 < (pixels - reference(theirs, latents)).abs().max() < 0.2


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"_class_name": "AutoencoderDC"}, "architecture AutoencoderDC is not a supported video VAE"),
        ({"latents_mean": None}, "latents_mean must be 5 numbers, one per channel"),
        ({"latents_std": [1.0, 2.0]}, "latents_std must be 5 numbers"),
        ({"latents_std": [1.0, 2.0, 0.0, 1.0, 1.0]}, "latents_std has a number that is not above 0"),
        ({"latents_mean": [0.0, 0.0, "x", 0.0, 0.0]}, "latents_mean has a value that is not a finite number"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, changes: dict[str, Any], problem: str) -> None:
    """In one line, before diffusers is imported."""
    theirs_of(FIRST, tmp_path)
    edit_config(tmp_path, **changes)
    with pytest.raises(ModelRefused, match=problem) as refused:
        load_video_autoencoder(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_a_folder_without_weights(tmp_path: Path) -> None:
    theirs_of(FIRST, tmp_path)
    next(tmp_path.glob("*.safetensors")).unlink()
    with pytest.raises(ModelRefused, match="diffusers cannot load it"):
        load_video_autoencoder(str(tmp_path))


def test_without_diffusers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that installs it."""
    theirs_of(FIRST, tmp_path)
    found = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "diffusers":
            raise ImportError("No module named 'diffusers'")
        return found(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ModelRefused, match=r"needs diffusers: pip install 'ridgeline\[images\]'"):
        load_video_autoencoder(str(tmp_path))


def test_latents_of_another_model(tmp_path: Path) -> None:
    theirs_of(FIRST, tmp_path)
    ours = load_video_autoencoder(str(tmp_path))
    for shape in ((1, 4, 1, 2, 2), (5, 1, 2, 2), (1, 5, 0, 2, 2)):
        with pytest.raises(ValueError, match=r"must be \[videos, 5, frames, rows, columns\]"):
            ours.decode(torch.zeros(shape))
