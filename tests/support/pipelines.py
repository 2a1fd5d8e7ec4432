"""Folders of small random pipelines that diffusers runs too: the reference of what a prompt becomes."""

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from support.autoencoders import config as autoencoder_config
from support.autoencoders import their_autoencoder
from support.checkpoints import random_model, redraw

CHANNELS, TEXT_WIDTH, MOST_TOKENS = 4, 24, 512
SIZES = ("96x64", "64x64", "64x96")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>")
_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3's, cut to what a prompt of one message reads."""


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """A symbol for each byte, and Qwen3's control tokens."""
    symbols = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=symbols, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(literal, special=True) for literal in _SPECIAL])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", chat_template=_TEMPLATE
    )


def z_image(folder: Path, *, pixels: int = 3, **scheduler: Any) -> ZImagePipeline:
    """Diffusers' pipeline, also saved as a folder that states SIZES. pixels: channels of a picture.

    t_scale is not the release's 1,000, at which the last bit of a time in fp32, where the reference rounds more than
    once, is 6e-5 of a radian of its sinusoids: random weights make 1e-4 of the latents of that. The seed of the
    denoiser's weights is one of those that magnify the rounding of a text's states least: of eight, latents after four
    guided steps were 2e-6 to 3e-5 from the reference's.
    """
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
    transformer = ZImageTransformer2DModel(
        in_channels=CHANNELS, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=TEXT_WIDTH,
        axes_dims=[8, 4, 4], axes_lens=[640, 64, 64], t_scale=1.0,
    )  # fmt: skip
    redraw(transformer, seed=9)
    values = autoencoder_config(
        [4, 8, 8], latent_channels=CHANNELS, in_channels=pixels, out_channels=pixels, scaling_factor=0.7,
        shift_factor=0.1, use_quant_conv=False, use_post_quant_conv=False,
    )  # fmt: skip
    pipeline = ZImagePipeline(
        FlowMatchEulerDiscreteScheduler(**{"shift": 3.0, **scheduler}),
        their_autoencoder(values, folder / "vae", seed=4),
        encoder,
        tokenizer,
        transformer.eval(),
    )
    pipeline.set_progress_bar_config(disable=True)
    pipeline.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"sizes": SIZES}), encoding="utf-8")
    return pipeline


def generators(seed: int, images: int) -> list[torch.Generator]:
    """One an image, as a request of ours seeds them."""
    return [torch.Generator().manual_seed(seed + image) for image in range(images)]
