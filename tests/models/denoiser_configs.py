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

PIXART_SIGMA: Config = {
    "_class_name": "PixArtTransformer2DModel", "activation_fn": "gelu-approximate", "attention_bias": True,
    "attention_head_dim": 72, "attention_type": "default", "caption_channels": 4096, "cross_attention_dim": 1152,
    "dropout": 0.0, "in_channels": 4, "interpolation_scale": 2, "norm_elementwise_affine": False, "norm_eps": 1e-6,
    "norm_num_groups": 32, "norm_type": "ada_norm_single", "num_attention_heads": 16, "num_embeds_ada_norm": 1000,
    "num_layers": 28, "out_channels": 8, "patch_size": 2, "sample_size": 128, "upcast_attention": False,
    "use_additional_conditions": False,
}  # fmt: skip
"""PixArt-alpha/PixArt-Sigma-XL-2-1024-MS."""

PIXART_ALPHA: Config = {name: value for name, value in PIXART_SIGMA.items() if "additional" not in name} | {
    "_class_name": "Transformer2DModel", "double_self_attention": False, "interpolation_scale": None,
    "num_vector_embeds": None, "only_cross_attention": False, "use_linear_projection": False,
}  # fmt: skip
"""PixArt-alpha/PixArt-XL-2-1024-MS and PixArt-LCM-XL-2-1024-MS, from before diffusers had a class for them; it is told
a picture's size beside the noise level."""

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
        FLUX_1_DEV, 11_901_408_320, 512, {512: 21.5, 1024: 74.4, 2048: 418.0}, 0.20, pixels=8, steps=28, guided=False
    ),
    "FLUX.1-schnell": Facts(
        FLUX_1_SCHNELL, 11_891_178_560, 256, {512: 17.7, 1024: 69.5, 2048: 409.0}, 0.19, pixels=8, steps=4, guided=False
    ),
    "FLUX.2-klein-4B": Facts(
        FLUX_2_KLEIN_4B, 3_875_544_576, 512, {512: 10.2, 1024: 34.8, 2048: 191.0}, 0.19, pixels=16, steps=4,
        guided=False,
    ),
    "FLUX.2-klein-9B": Facts(
        FLUX_2_KLEIN_9B, 9_078_581_248, 512, {512: 22.7, 1024: 75.5, 2048: 386.0}, 0.15, pixels=16, steps=4,
        guided=False,
    ),
    "FLUX.2-dev": Facts(
        FLUX_2_DEV, 32_223_281_152, 512, {512: 87.8, 1024: 283.0, 2048: 1322.0}, 0.10, pixels=16, steps=50, guided=False
    ),
    "PixArt-Sigma": Facts(
        PIXART_SIGMA, 610_856_096, 300, {512: 1.29, 1024: 6.63}, 0.35, pixels=8, steps=20, guided=True
    ),
    "PixArt-LCM": Facts(PIXART_ALPHA, 611_349_152, 300, {1024: 6.63}, 0.35, pixels=8, steps=4, guided=False),
}  # fmt: skip
"""By the names of releases. A guided one takes two passes a step; of these the bases of klein would, in 50 steps."""

# -- clips ------------------------------------------------------------------------------------------------------------

WAN_2_1_1_3B: Config = {
    "_class_name": "WanTransformer3DModel", "added_kv_proj_dim": None, "attention_head_dim": 128,
    "cross_attn_norm": True, "eps": 1e-6, "ffn_dim": 8960, "freq_dim": 256, "image_dim": None, "in_channels": 16,
    "num_attention_heads": 12, "num_layers": 30, "out_channels": 16, "patch_size": [1, 2, 2],
    "qk_norm": "rms_norm_across_heads", "rope_max_seq_len": 1024, "text_dim": 4096,
}  # fmt: skip
"""Wan-AI/Wan2.1-T2V-1.3B-Diffusers."""

WAN_14B: Config = WAN_2_1_1_3B | {"ffn_dim": 13824, "num_attention_heads": 40, "num_layers": 40}
"""Wan-AI/Wan2.1-T2V-14B-Diffusers, and each of the two experts of Wan2.2-T2V-A14B-Diffusers."""

WAN_2_2_5B: Config = WAN_2_1_1_3B | {
    "ffn_dim": 14336, "in_channels": 48, "num_attention_heads": 24, "num_layers": 30, "out_channels": 48,
}  # fmt: skip
"""Wan-AI/Wan2.2-TI2V-5B-Diffusers."""


@dataclass(frozen=True)
class ClipFacts:
    """Of a released denoiser of clips: its config, its parameters, TFLOP of a pass and attention's share of it by
    frames, width and height in pixels, with a text that is padded to so many tokens. pixels, frames: that one latent
    stands for, each way and in time. steps, guided: as of Facts."""

    config: Config
    parameters: int
    text: int
    tflop: dict[tuple[int, int, int], float]
    attention: dict[tuple[int, int, int], float]
    pixels: int = 8
    frames: int = 4
    steps: int = 50
    guided: bool = True


CLIP_RELEASES: dict[str, ClipFacts] = {
    "Wan2.1-T2V-1.3B": ClipFacts(
        WAN_2_1_1_3B, 1_418_996_800, 512, {(81, 832, 480): 283.0}, {(81, 832, 480): 0.71}
    ),
    "Wan2.1-T2V-14B": ClipFacts(
        WAN_14B, 14_288_491_584, 512, {(81, 832, 480): 1678.0, (81, 1280, 720): 6523.0},
        {(81, 832, 480): 0.53, (81, 1280, 720): 0.72},
    ),
    "Wan2.2-TI2V-5B": ClipFacts(
        WAN_2_2_5B, 4_999_787_712, 512, {(121, 1280, 704): 517.0}, {(121, 1280, 704): 0.54}, pixels=16
    ),
}  # fmt: skip
"""By the names of releases."""
