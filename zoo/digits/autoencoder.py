"""Train the autoencoder of `digits`: 32 x 32 pixels to 16 x 16 latents of four channels and back."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeAlias

import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from zoo.digits.data import SIDE, moved, read_digits
from zoo.digits.training import Training, arguments, averaged

KL_WEIGHT = 0.02
"""What a nat of a latent counts against the mean square of pixels: the two are one bound on the likelihood where pixels
are off by a deviation of 0.1, of 2 from paper to ink."""


Autoencoder: TypeAlias = Any
"""diffusers' AutoencoderKL, of which mypy knows nothing."""


def autoencoder() -> Autoencoder:
    """With weights yet to be trained."""
    kind: Any = AutoencoderKL
    return kind(
        in_channels=1,
        out_channels=1,
        latent_channels=4,
        block_out_channels=(16, 32),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        layers_per_block=1,
        norm_num_groups=8,
        sample_size=SIDE,
        scaling_factor=1.0,  # measured once it is trained
        shift_factor=0.0,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        force_upcast=False,
    )


def bound(vae: Autoencoder, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mean square of pixels, from latents that are drawn; nats of a latent."""
    posterior = vae.encode(images).latent_dist
    pixels = vae.decode(posterior.sample(generator)).sample
    nats = posterior.kl().mean() / posterior.mean[0].numel()
    return (pixels - images).square().mean(), nats


def trained(run: Path) -> Autoencoder:
    """That of a run, finished or not."""
    vae = autoencoder()
    averaged(vae, run)
    return vae.to(memory_format=torch.channels_last)


def autoencoder_of(images: Tensor, run: Path | None, pipeline: Path | None) -> Autoencoder:
    """That of an exported pipeline, or of a run of its own, whose shift and scale are measured on these images."""
    if pipeline is not None:
        return autoencoder_in(pipeline)
    assert run is not None
    vae = trained(run)
    shift, scale = measured(vae, images)
    vae.register_to_config(shift_factor=shift, scaling_factor=scale)
    return vae


def autoencoder_in(pipeline: Path) -> Autoencoder:
    """That of an exported pipeline."""
    kind: Any = AutoencoderKL
    vae = kind.from_pretrained(pipeline / "vae", torch_dtype=torch.float32)
    return vae.to(memory_format=torch.channels_last)


def measured(vae: Autoencoder, images: Tensor) -> tuple[float, float]:
    """The shift and the scale with which the latents of these images have a mean of 0 and a deviation of 1."""
    latents = means(vae, images)
    return float(latents.mean()), 1 / float(latents.std())


@torch.no_grad()
def means(vae: Autoencoder, images: Tensor) -> Tensor:
    """The likeliest latents of images, before shift and scale [B, 4, 16, 16]."""
    parts = torch.split(images.contiguous(memory_format=torch.channels_last), 100)
    return torch.cat([vae.encode(part).latent_dist.mean for part in parts])


def latents_of(vae: Autoencoder, images: Tensor) -> Tensor:
    """What a denoiser learns of images: the likeliest latents, shifted and scaled [B, 4, 16, 16]."""
    out: Tensor = (means(vae, images) - vae.config.shift_factor) * vae.config.scaling_factor
    return out


def main() -> None:
    """Parse the command line and train."""
    args = arguments(
        argparse.ArgumentParser(description=__doc__), minutes=20, rows=32, average=200, validate=500, adam_lr=2e-3
    )
    taught, held = read_digits(args.data)
    vae = autoencoder().to(memory_format=torch.channels_last)

    def loss(generator: torch.Generator, rows: int) -> Tensor:
        picked = torch.randint(len(taught), (rows,), generator=generator)
        images = moved(taught.images[picked], generator).to(memory_format=torch.channels_last)
        square, nats = bound(vae, images, generator)
        return square + KL_WEIGHT * nats

    def validate(average: nn.Module) -> dict[str, float]:
        with torch.inference_mode():
            images = held.images[:500].to(memory_format=torch.channels_last)
            square, nats = bound(average, images, torch.Generator().manual_seed(0))
        return {"mean_square": round(float(square), 5), "nats": round(float(nats), 4)}

    Training(vae, args).fit(loss, validate, args)


if __name__ == "__main__":
    main()
