"""Janus of transformers with small random weights, in folders as it writes them."""

from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from transformers import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

Model = TypeVar("Model", bound=nn.Module)


def redrawn(model: Model, seed: int, std: float = 0.18) -> Model:
    """The model with every weight drawn so that it matters; norms about 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Matrices such that what they give is as large as what comes in, however wide that is.
            width = parameter[0].numel() if parameter.dim() > 1 else 0
            parameter.normal_(0.0, max(width**-0.5, 0.05) if width else std, generator=generator)
            if "norm" in name and name.endswith("weight"):
                parameter.add_(1.0)
    return model.eval()


VQ: dict[str, Any] = {
    "embed_dim": 5,
    "num_embeddings": 37,
    "latent_channels": 6,
    "base_channels": 32,
    "channel_multiplier": [1, 2],
    "num_res_blocks": 1,
    "num_patches": 3,
}
"""Keys of a small autoencoder: two pixels to a latent, 37 tokens."""


def their_vq(values: dict[str, Any], folder: Path, seed: int = 0) -> JanusVQVAE:
    """The autoencoder of a config alone, also saved as a folder. The codebook is of the encoder's own latents, some of
    them moved, so that tokens are many and none is a draw."""
    theirs = redrawn(JanusVQVAE(JanusVQVAEConfig(**values)), seed)
    generator = torch.Generator().manual_seed(seed + 1)
    pixels = torch.rand(4, 3, 32, 32, generator=generator) * 2 - 1
    with torch.no_grad():
        latents = theirs.quant_conv(theirs.encoder(pixels)).permute(0, 2, 3, 1).flatten(0, 2)
        rows = torch.randperm(len(latents), generator=generator)[: theirs.config.num_embeddings]
        theirs.quantize.embedding.weight.copy_(latents[rows])
    theirs.save_pretrained(folder)
    return theirs
