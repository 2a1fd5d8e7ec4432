"""Train the autoencoder of `digits-ar`: 32 x 32 pixels to 8 x 8 tokens and back, in the layout of Janus.

Its codebook is fixed: the corners of a cube about zero, of unit length (binary spherical quantization,
arXiv:2406.07548), so that each bit of a token is the sign of a number and no row of the codebook falls out of use.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from zoo.digits.data import moved, read_digits
from zoo.digits.training import Training, arguments, averaged

BITS = 8  # of a token, and numbers of a code
CODES = 2**BITS
TOKENS_A_SIDE = 8
COMMITMENT = 0.1
"""What the mean square distance of latents to their codes counts against that of pixels: latents that stay clear of
where a bit turns over give the same tokens for much the same picture, and those are easier to foretell."""


Autoencoder: TypeAlias = Any
"""transformers' JanusVQVAE, of which mypy knows nothing."""


def config() -> dict[str, Any]:
    """The keys of the autoencoder itself, as a section `vq_config` has them."""
    return {
        "in_channels": 1,
        "out_channels": 1,
        "base_channels": 32,  # the fewest that divide into the layout's 32 groups
        "channel_multiplier": [1, 1, 1],
        "num_res_blocks": 1,
        "latent_channels": 32,
        "embed_dim": BITS,
        "num_embeddings": CODES,
        "double_latent": False,
        "num_patches": TOKENS_A_SIDE,
    }


def codebook() -> Tensor:
    """The row of each token, of unit length [CODES, BITS]: bit i of its number is the sign of entry i."""
    bits = torch.arange(CODES)[:, None] >> torch.arange(BITS) & 1
    return (2.0 * bits - 1) / BITS**0.5


def autoencoder() -> Autoencoder:
    """With weights yet to be trained, other than its codebook's."""
    kind: Any = JanusVQVAE
    vq = kind(JanusVQVAEConfig(**config()))
    for module in vq.modules():
        if isinstance(module, nn.Conv2d):
            module.reset_parameters()  # as wide as torch draws them: Janus' are drawn for widths of its own
    with torch.no_grad():
        vq.quantize.embedding.weight.copy_(codebook())
    vq.quantize.requires_grad_(False)
    return vq


def latents_of(vq: Autoencoder, images: Tensor) -> Tensor:
    """What becomes the nearest code, of unit length [B, BITS, 8, 8]. Its length decides nothing."""
    return functional.normalize(vq.quant_conv(vq.encoder(images)), dim=1)


def tokens_of(latents: Tensor) -> Tensor:
    """Numbers of the nearest codes, line by line, int64 [B, 64]."""
    bits = (latents > 0).long() << torch.arange(BITS)[:, None, None]
    return bits.sum(dim=1).flatten(1)


def losses(vq: Autoencoder, images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean square of pixels, from the codes; mean square distance of latents to their codes. Gradients of a code go to
    its latent as they are."""
    latents = latents_of(vq, images)
    codes = torch.where(latents > 0, 1.0, -1.0) / BITS**0.5
    pixels = vq.decoder(vq.post_quant_conv(latents + (codes - latents).detach()))
    return (pixels - images).square().mean(), (latents - codes).square().sum(dim=1).mean()


def trained(run: Path) -> Autoencoder:
    """That of a run, finished or not."""
    vq = autoencoder()
    averaged(vq, run)
    return vq.to(memory_format=torch.channels_last)


@torch.no_grad()
def tokenized(vq: Autoencoder, images: Tensor) -> Tensor:
    """The tokens of images, int64 [B, 64]."""
    parts = torch.split(images.contiguous(memory_format=torch.channels_last), 100)
    return torch.cat([tokens_of(latents_of(vq, part)) for part in parts])


def entropy(tokens: Tensor) -> float:
    """Of a token, over all places, in nats."""
    shares = torch.bincount(tokens.flatten(), minlength=CODES) / tokens.numel()
    return float(-torch.xlogy(shares, shares).sum())


def main() -> None:
    """Parse the command line and train."""
    args = arguments(
        argparse.ArgumentParser(description=__doc__), minutes=5, rows=32, average=200, validate=250, adam_lr=2e-3
    )
    taught, held = read_digits(args.data)
    vq = autoencoder().to(memory_format=torch.channels_last)

    def loss(generator: torch.Generator, rows: int) -> Tensor:
        picked = torch.randint(len(taught), (rows,), generator=generator)
        images = moved(taught.images[picked], generator).to(memory_format=torch.channels_last)
        square, distance = losses(vq, images)
        return square + COMMITMENT * distance

    def validate(average: nn.Module) -> dict[str, float]:
        images = held.images[:500].to(memory_format=torch.channels_last)
        with torch.inference_mode():
            square, distance = losses(average, images)
        nats = entropy(tokenized(average, images))
        facts = {"mean_square": float(square), "distance": float(distance), "entropy": nats}
        return {name: round(value, 5) for name, value in facts.items()}

    Training(vq, args).fit(loss, validate, args)


if __name__ == "__main__":
    main()
