"""Folders of small random pipelines that diffusers runs too: the reference of what a prompt becomes."""

import json
from collections.abc import Sequence
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLWan,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    LCMScheduler,
    PixArtAlphaPipeline,
    PixArtSigmaPipeline,
    PixArtTransformer2DModel,
    UniPCMultistepScheduler,
    WanPipeline,
    WanTransformer3DModel,
    ZImagePipeline,
    ZImageTransformer2DModel,
)
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoModelForTextEncoding, PreTrainedModel, PreTrainedTokenizerFast

from support.autoencoders import config as autoencoder_config
from support.autoencoders import their_autoencoder
from support.checkpoints import random_model, redraw

CHANNELS, TEXT_WIDTH, MOST_TOKENS = 4, 24, 512
SIZES = ("96x64", "64x64", "64x96")
CLIP_SIZES = ("64x32", "32x64")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3's, cut to what a prompt of one message reads."""


def saved(pipeline: Any, folder: Path, sizes: Sequence[str] = SIZES) -> Any:
    """The pipeline, silent from now on, also saved as a folder that states these sizes."""
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"sizes": sizes}), encoding="utf-8")
    return pipeline


def of_bytes(special: Sequence[str]) -> Tokenizer:
    """A symbol for each byte, and these special ones behind them."""
    symbols = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=symbols, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(literal, special=True) for literal in special])
    return tokenizer


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A symbol for each byte, and Qwen3's control tokens."""
    tokenizer = of_bytes(_SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=_TEMPLATE
    )


def z_image_transformer(text_width: int, seed: int) -> ZImageTransformer2DModel:
    """Z-Image's denoiser, small and random.

    Weights of what reads the noise level are a quarter of others: it has 256 inputs and 1,024 hidden, and scales of
    every row would be about 10 where trained ones are about 1. That magnified rounding to 1e-5 or 9e-5 of the latents
    after five guided steps, as weights and processors differ; so it is 2e-6, of any seed.
    """
    transformer = ZImageTransformer2DModel(
        in_channels=CHANNELS, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=text_width,
        axes_dims=[8, 4, 4], axes_lens=[640, 64, 64],
    )  # fmt: skip
    redraw(transformer, seed)
    for layer in (transformer.t_embedder.mlp[0], transformer.t_embedder.mlp[2]):
        layer.weight.data /= 4
    return transformer.eval()


def z_image(folder: Path, *, pixels: int = 3, **scheduler: Any) -> ZImagePipeline:
    """Diffusers' pipeline, also saved as a folder that states SIZES. pixels: channels of a picture."""
    tokenizer = byte_tokenizer()
    encoder = random_model(
        "qwen3",
        {
            "vocab_size": len(tokenizer), "hidden_size": TEXT_WIDTH, "intermediate_size": 40, "num_hidden_layers": 3,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 640,
            "tie_word_embeddings": True,
        },
        seed=5,
    )  # fmt: skip
    values = autoencoder_config(
        [4, 8, 8], latent_channels=CHANNELS, in_channels=pixels, out_channels=pixels, scaling_factor=0.7,
        shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip
    pipeline = ZImagePipeline(
        FlowMatchEulerDiscreteScheduler(**{"shift": 3.0, **scheduler}),
        their_autoencoder(values, folder / "vae", seed=4),
        encoder,
        tokenizer,
        z_image_transformer(TEXT_WIDTH, seed=4),
    )
    return saved(pipeline, folder)


def t5_tokenizer() -> PreTrainedTokenizerFast:
    """A symbol for each byte; an end of text behind it, as T5 has it."""
    tokenizer = of_bytes(("<pad>", "</s>"))
    end = ("</s>", tokenizer.token_to_id("</s>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[end])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>")


def t5_encoder(kind: str, vocabulary: int) -> PreTrainedModel:
    """The encoder of T5 or UMT5."""
    config = {
        "vocab_size": vocabulary, "d_model": TEXT_WIDTH, "d_ff": 36, "d_kv": 6, "num_heads": 4, "num_layers": 2,
        "relative_attention_num_buckets": 8, "relative_attention_max_distance": 20,
        "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
    }  # fmt: skip
    return random_model(kind, config, seed=6, auto=AutoModelForTextEncoding)


def pixart(folder: Path, *, sigma: bool, consistent: bool = False) -> PixArtSigmaPipeline | PixArtAlphaPipeline:
    """Diffusers' pipeline of PixArt-Sigma or -alpha, also saved as a folder that states SIZES. consistent: with the
    scheduler of PixArt-LCM."""
    tokenizer = t5_tokenizer()
    transformer = PixArtTransformer2DModel(
        num_attention_heads=3, attention_head_dim=8, in_channels=CHANNELS, out_channels=2 * CHANNELS, num_layers=2,
        cross_attention_dim=24, sample_size=64 if sigma else 128, caption_channels=TEXT_WIDTH,
        interpolation_scale=1, use_additional_conditions=not sigma,
    )  # fmt: skip
    redraw(transformer, seed=9)
    scheduler = LCMScheduler(beta_start=0.0001, beta_end=0.02, beta_schedule="linear")
    values = autoencoder_config([4, 8, 8, 8], latent_channels=CHANNELS, scaling_factor=0.13025)
    pipeline = (PixArtSigmaPipeline if sigma else PixArtAlphaPipeline)(
        tokenizer=tokenizer,
        text_encoder=t5_encoder("t5", len(tokenizer)),
        vae=their_autoencoder(values, folder / "vae", seed=4),
        transformer=transformer.eval(),
        scheduler=scheduler if consistent else DPMSolverMultistepScheduler(),
    )
    return saved(pipeline, folder)


def wan(folder: Path, *, experts: bool = False, fifth: bool = False, scheduler: Any = None) -> WanPipeline:
    """Diffusers' pipeline of Wan, also saved as a folder that states CLIP_SIZES. experts: two, as 2.2's A14B has them.
    fifth: as 2.2's 5B, whose tokens each have a noise level and whose VAE packs pixels. scheduler: by default as
    released."""
    tokenizer, channels = t5_tokenizer(), 6 if fifth else CHANNELS
    transformers = [
        WanTransformer3DModel(
            num_attention_heads=2, attention_head_dim=12, in_channels=channels, out_channels=channels,
            text_dim=TEXT_WIDTH, freq_dim=16, ffn_dim=40, num_layers=2, rope_max_seq_len=32,
        ).eval()
        for _ in range(1 + experts)
    ]  # fmt: skip
    for number, transformer in enumerate(transformers):
        redraw(transformer, seed=9 + number)
    packed = {"is_residual": True, "patch_size": 2, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16}
    vae = AutoencoderKLWan(
        base_dim=3, z_dim=channels, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.1 * each for each in range(channels)], latents_std=[1 + 0.2 * each for each in range(channels)],
        **(packed if fifth else {}),
    ).eval()  # fmt: skip
    redraw(vae, seed=4)
    pipeline = WanPipeline(
        tokenizer=tokenizer,
        text_encoder=t5_encoder("umt5", len(tokenizer)),
        vae=vae,
        transformer=transformers[0],
        transformer_2=transformers[1] if experts else None,
        scheduler=scheduler
        or UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
        boundary_ratio=0.875 if experts else None,
        expand_timesteps=fifth,
    )
    return saved(pipeline, folder, CLIP_SIZES)


def wan_of_pictures(folder: Path, **stated: Any) -> tuple[WanPipeline, AutoencoderKL]:
    """The same of 2.1 with the autoencoder of a picture for each frame, which diffusers' pipeline cannot call; and that
    autoencoder. stated: more of what the folder states."""
    pipeline = wan(folder)
    values = autoencoder_config([4, 8, 8, 8], latent_channels=CHANNELS, scaling_factor=0.7, shift_factor=0.1)
    rmtree(folder / "vae")
    autoencoder = their_autoencoder(values, folder / "vae", seed=4)
    pipeline.vae_scale_factor_temporal = 1
    for name, changes in (
        ("model_index.json", {"vae": ["diffusers", "AutoencoderKL"]}),
        ("generation_config.json", stated),
    ):
        path = folder / name
        path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return pipeline, autoencoder


def widen(folder: Path, copy: Path) -> None:
    """Copy a built-in pipeline with its weights in fp32, in which two libraries compute alike."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        wide = copy / path.relative_to(folder)
        wide.parent.mkdir(exist_ok=True)
        if path.suffix == ".safetensors":
            save_file({name: value.float() for name, value in load_file(path).items()}, wide, {"format": "pt"})
        else:
            wide.write_bytes(path.read_bytes().replace(b'"bfloat16"', b'"float32"'))


def generators(seed: int, images: int) -> list[torch.Generator]:
    """One an image, as a request of ours seeds them."""
    return [torch.Generator().manual_seed(seed + image) for image in range(images)]
