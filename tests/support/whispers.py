"""Small random Whispers: transformers' and ours from the folder that it writes."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import WhisperConfig, WhisperForConditionalGeneration

from ridgeline.backends.model_loader import load_model
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.families.whisper import FRAMES
from ridgeline.engine.encoder_features import EncoderFeatures
from support.checkpoints import WEIGHT_STD

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "d_model": 36,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 44,
    "decoder_ffn_dim": 50,
    "num_mel_bins": 11,
    "max_source_positions": 21,
    "max_target_positions": 40,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
    "decoder_start_token_id": 3,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}


def random_whisper(seed: int = 0, **changes: Any) -> WhisperForConditionalGeneration:
    """Transformers' model in fp32 with weights that all matter; sizes small, odd and different from each other."""
    config = WhisperConfig(**SIZES | changes)
    config._attn_implementation = "eager"
    model = WhisperForConditionalGeneration(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator) * WEIGHT_STD
        parameter.data = 1 + noise if parameter.dim() == 1 and not name.endswith("bias") else noise
    model.tie_weights()
    return model.requires_grad_(False)


def saved(theirs: WhisperForConditionalGeneration, folder: Path) -> Model:
    """Ours, from the folder that transformers wrote."""
    theirs.save_pretrained(folder)
    return load_model(str(folder))


def heard(theirs: WhisperForConditionalGeneration, count: int, seed: int = 1) -> Tensor:
    """Random log-mel features of so many windows, as transformers takes them: [windows, bins, frames]."""
    config, generator = theirs.config, torch.Generator().manual_seed(seed)
    return torch.randn(count, config.num_mel_bins, FRAMES * config.max_source_positions, generator=generator)


def rows_of(features_BMF: Tensor) -> Tensor:
    """The same as rows of an encoder: [windows x positions, numbers of two frames]."""
    return features_BMF.transpose(1, 2).reshape(-1, FRAMES * features_BMF.shape[1])


def as_input(features_MF: Tensor) -> EncoderFeatures:
    """One window as a request has it."""
    return EncoderFeatures.of(rows_of(features_MF[None]).numpy())
