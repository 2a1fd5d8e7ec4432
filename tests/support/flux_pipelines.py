"""Folders of small random pipelines of FLUX.1 and FLUX.2-klein, which diffusers runs too."""

import json
from pathlib import Path
from typing import Any

from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
    FluxPipeline,
    FluxTransformer2DModel,
)
from tokenizers import processors
from transformers import CLIPTextModel, PreTrainedTokenizerFast

from support.autoencoders import config as autoencoder_config
from support.autoencoders import their_autoencoder, their_packed_autoencoder
from support.checkpoints import random_model, redraw
from support.pipelines import TEXT_WIDTH, byte_tokenizer, of_bytes, saved, t5_encoder, t5_tokenizer

CLIP_WIDTH, CLIP_TOKENS = 20, 77
_DYNAMIC = {
    "use_dynamic_shifting": True, "shift": 3.0, "base_shift": 0.5, "max_shift": 1.15, "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
}  # fmt: skip


def klein(folder: Path, *, distilled: bool) -> Flux2KleinPipeline:
    """Diffusers' pipeline, also saved as a folder that states SIZES. Its text encoder has as many layers as states are
    taken after."""
    tokenizer = byte_tokenizer()
    encoder = random_model(
        "qwen3",
        {
            "vocab_size": len(tokenizer), "hidden_size": 12, "intermediate_size": 20, "num_hidden_layers": 29,
            "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 6, "max_position_embeddings": 640,
            "tie_word_embeddings": True,
        },
        seed=5,
    )  # fmt: skip
    transformer = Flux2Transformer2DModel(
        in_channels=8, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=36, timestep_guidance_channels=16, axes_dims_rope=(4, 4, 4, 4), guidance_embeds=False,
    )  # fmt: skip
    redraw(transformer, seed=9)
    values = autoencoder_config([4, 8, 8], latent_channels=2, layers_per_block=1)
    pipeline = Flux2KleinPipeline(
        FlowMatchEulerDiscreteScheduler(**_DYNAMIC),
        their_packed_autoencoder(values, folder / "vae", seed=4),
        encoder,
        tokenizer,
        transformer.eval(),
        is_distilled=distilled,
    )
    return saved(pipeline, folder)


def flux(folder: Path, *, dev: bool) -> FluxPipeline:
    """Diffusers' pipeline of FLUX.1-dev or -schnell, also saved as a folder that states SIZES; as the release's, the
    config of its T5 says nothing of its class."""
    tokenizer, pairs = t5_tokenizer(), _clip_tokenizer()
    clip = random_model(
        "clip_text_model",
        {
            "vocab_size": len(pairs), "hidden_size": CLIP_WIDTH, "intermediate_size": 30, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": CLIP_TOKENS, "bos_token_id": pairs.bos_token_id,
            "eos_token_id": pairs.eos_token_id, "pad_token_id": pairs.pad_token_id,
        },
        seed=3,
        auto=_Clip,
    )  # fmt: skip
    transformer = FluxTransformer2DModel(
        in_channels=8, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=TEXT_WIDTH, pooled_projection_dim=CLIP_WIDTH, axes_dims_rope=(4, 4, 8), guidance_embeds=dev,
    )  # fmt: skip
    redraw(transformer, seed=9)
    values = autoencoder_config(
        [4, 8, 8], latent_channels=2, scaling_factor=0.7, shift_factor=0.1, use_quant_conv=False,
        use_post_quant_conv=False,
    )  # fmt: skip
    pipeline = FluxPipeline(
        FlowMatchEulerDiscreteScheduler(**(_DYNAMIC if dev else {"shift": 1.0})),
        their_autoencoder(values, folder / "vae", seed=4),
        clip,
        pairs,
        t5_encoder("t5", len(tokenizer)),
        tokenizer,
        transformer.eval(),
    )
    saved(pipeline, folder)
    config = folder / "text_encoder_2" / "config.json"
    stated = json.loads(config.read_text(encoding="utf-8"))
    kept = {name: value for name, value in stated.items() if name not in ("architectures", "dtype", "torch_dtype")}
    config.write_text(json.dumps(kept), encoding="utf-8")
    return pipeline


class _Clip:
    """What `random_model` makes CLIP's text half by."""

    @staticmethod
    def from_config(config: Any, **_: Any) -> CLIPTextModel:
        return CLIPTextModel(config)


def _clip_tokenizer() -> PreTrainedTokenizerFast:
    """A symbol for each byte, between a beginning and an end, which is also what texts are padded with."""
    around = ("<|startoftext|>", "<|endoftext|>")
    tokenizer = of_bytes(around)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{around[0]} $A {around[1]}", special_tokens=[(each, tokenizer.token_to_id(each)) for each in around]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=around[0], eos_token=around[1], pad_token=around[1],
        model_max_length=CLIP_TOKENS,
    )  # fmt: skip
