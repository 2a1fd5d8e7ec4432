"""Configs of released denoisers and of the VAEs beside them, as their folders have them (transformer/config.json,
vae/config.json), and what is known of each: parameters, and FLOPs of a pass."""

from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]

Z_IMAGE_TURBO: Config = {
    "_class_name": "ZImageTransformer2DModel", "all_patch_size": [2], "all_f_patch_size": [1], "in_channels": 16,
    "dim": 3840, "n_layers": 30, "n_refiner_layers": 2, "n_heads": 30, "n_kv_heads": 30, "norm_eps": 1e-5,
    "qk_norm": True, "cap_feat_dim": 2560, "rope_theta": 256.0, "t_scale": 1000.0, "axes_dims": [32, 48, 48],
    "axes_lens": [1536, 512, 512],
}  # fmt: skip
"""Tongyi-MAI/Z-Image-Turbo."""

FLUX_1_SCHNELL: Config = {
    "_class_name": "FluxTransformer2DModel", "_diffusers_version": "0.30.0.dev0", "attention_head_dim": 128,
    "guidance_embeds": False, "in_channels": 64, "joint_attention_dim": 4096, "num_attention_heads": 24,
    "num_layers": 19, "num_single_layers": 38, "patch_size": 1, "pooled_projection_dim": 768,
}  # fmt: skip
"""black-forest-labs/FLUX.1-schnell."""

FLUX_1_DEV: Config = FLUX_1_SCHNELL | {"guidance_embeds": True}
"""black-forest-labs/FLUX.1-dev."""

FLUX_2_KLEIN_4B: Config = {
    "_class_name": "Flux2Transformer2DModel", "patch_size": 1, "in_channels": 128, "out_channels": None,
    "num_layers": 5, "num_single_layers": 20, "attention_head_dim": 128, "num_attention_heads": 24,
    "joint_attention_dim": 7680, "timestep_guidance_channels": 256, "mlp_ratio": 3.0,
    "axes_dims_rope": [32, 32, 32, 32], "rope_theta": 2000, "eps": 1e-6, "guidance_embeds": False,
}  # fmt: skip
"""black-forest-labs/FLUX.2-klein-4B and its base."""

FLUX_2_KLEIN_9B: Config = FLUX_2_KLEIN_4B | {
    "num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32, "joint_attention_dim": 12288,
}  # fmt: skip
"""black-forest-labs/FLUX.2-klein-9B and its base."""

FLUX_2_DEV: Config = FLUX_2_KLEIN_4B | {
    "num_layers": 8, "num_single_layers": 48, "num_attention_heads": 48, "joint_attention_dim": 15360,
    "guidance_embeds": True,
}  # fmt: skip
"""black-forest-labs/FLUX.2-dev, whose texts are Mistral Small 3.2's."""

AUTOENCODER_FLUX_1: Config = {
    "_class_name": "AutoencoderKL", "act_fn": "silu", "block_out_channels": [128, 256, 512, 512],
    "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4, "force_upcast": True,
    "in_channels": 3, "latent_channels": 16, "latents_mean": None, "latents_std": None, "layers_per_block": 2,
    "mid_block_add_attention": True, "norm_num_groups": 32, "out_channels": 3, "sample_size": 1024,
    "scaling_factor": 0.3611, "shift_factor": 0.1159, "use_post_quant_conv": False, "use_quant_conv": False,
}  # fmt: skip
"""FLUX.1's; Z-Image's has the same sizes and factors."""

AUTOENCODER_FLUX_2: Config = {
    "_class_name": "AutoencoderKLFlux2", "act_fn": "silu", "batch_norm_eps": 1e-4, "batch_norm_momentum": 0.1,
    "block_out_channels": [128, 256, 512, 512], "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4, "force_upcast": True, "in_channels": 3, "latent_channels": 32,
    "layers_per_block": 2, "mid_block_add_attention": True, "norm_num_groups": 32, "out_channels": 3,
    "patch_size": [2, 2], "sample_size": 1024, "use_post_quant_conv": True, "use_quant_conv": True,
}  # fmt: skip
"""FLUX.2's, klein and dev."""


@dataclass(frozen=True)
class Facts:
    """Of a released denoiser: its config, its parameters, TFLOP of a pass over one picture by its pixels on a side,
    with a text of so many tokens, and attention's share of it at 1,024 pixels. pixels: that one latent stands for, each
    way. steps, guided: of a usual request, and whether each step is two passes."""

    config: Config
    parameters: int
    text: int
    tflop: dict[int, float]
    attention: float
    pixels: int
    steps: int
    guided: bool


RELEASES: dict[str, Facts] = {
    "Z-Image-Turbo": Facts(
        Z_IMAGE_TURBO, 6_154_908_736, 96, {512: 13.3, 1024: 56.1, 2048: 320.0}, 0.15, pixels=8, steps=8, guided=False
    ),
    "FLUX.1-dev": Facts(
        FLUX_1_DEV, 11_901_408_320, 512, {1024: 74.4, 2048: 418.0}, 0.20, pixels=8, steps=28, guided=False
    ),
    "FLUX.1-schnell": Facts(FLUX_1_SCHNELL, 11_891_178_560, 256, {1024: 69.5}, 0.19, pixels=8, steps=4, guided=False),
    "FLUX.2-klein-4B": Facts(FLUX_2_KLEIN_4B, 3_875_544_576, 512, {1024: 34.8}, 0.19, pixels=16, steps=4, guided=False),
    "FLUX.2-klein-9B": Facts(FLUX_2_KLEIN_9B, 9_078_581_248, 512, {1024: 75.5}, 0.15, pixels=16, steps=4, guided=False),
    "FLUX.2-dev": Facts(FLUX_2_DEV, 32_223_281_152, 512, {1024: 283.0}, 0.10, pixels=16, steps=50, guided=False),
}
"""By the names of releases. A guided one takes two passes a step; of these the bases of klein would, in 50 steps."""
