"""Janus of transformers with small random weights, in folders as it writes them."""

from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import JanusConfig, JanusForConditionalGeneration, JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from ridgeline.engine.encoder_features import EncoderFeatures

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


TEXT: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 91,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
}
VISION: dict[str, Any] = {
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 12,
    "patch_size": 4,
    "num_image_tokens": 9,
    "projection_dim": 24,
    "mlp_ratio": 2.0,
    "hidden_act": "gelu",
}
PLACEHOLDER = 88


def config(**other: Any) -> dict[str, Any]:
    """The keys of a small Janus: images of 12 x 12 pixels are 9 places in a prompt; it draws 9 tokens of 37."""
    vq = {**VQ, "projection_dim": 24, "image_token_embed_dim": 24, "num_hidden_layers": 2}
    sections = {"text_config": dict(TEXT), "vision_config": dict(VISION), "vq_config": vq}
    for name, change in other.items():
        if name in sections:
            sections[name] |= change
    others = {name: value for name, value in other.items() if name not in sections}
    return {"image_token_id": PLACEHOLDER, "tie_word_embeddings": False, **sections, **others}


def their_janus(folder: Path, seed: int = 0, **other: Any) -> JanusForConditionalGeneration:
    """Transformers' model of a config, every weight drawn so that it matters, also saved as a folder."""
    theirs = redrawn(JanusForConditionalGeneration(JanusConfig(**config(**other))), seed)
    theirs.tie_weights()
    theirs.save_pretrained(folder)
    return theirs


def their_tokens(theirs: JanusForConditionalGeneration, prompt: list[int], count: int) -> list[int]:
    """The likeliest image tokens behind a prompt, one after the other, everything run again for each: no guidance."""
    drawn: list[int] = []
    with torch.no_grad():
        embedded = theirs.get_input_embeddings()(torch.tensor([prompt]))
        for _ in range(count):
            states = theirs.model.language_model(inputs_embeds=embedded).last_hidden_state
            drawn.append(int(theirs.model.generation_head(states[:, -1]).argmax()))
            new = theirs.prepare_embeddings_for_image_generation(torch.tensor([[drawn[-1]]]))
            embedded = torch.cat([embedded, new], dim=1)
    return drawn


def patches_of(pixels_BCHW: Tensor, size: int = 4) -> EncoderFeatures:
    """The patches of images, line by line: what a tower reads."""
    patches = pixels_BCHW.unfold(2, size, size).unfold(3, size, size)  # images, channels, lines, columns, size, size
    rows = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, pixels_BCHW.shape[1] * size**2)
    return EncoderFeatures(rows.contiguous().numpy().tobytes(), rows.shape[1], len(pixels_BCHW))
