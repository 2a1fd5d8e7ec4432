"""A folder of a small random speech model with a whole vocabulary: bytes, control tokens, moments."""

import json
from pathlib import Path
from typing import Any, Final

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from transformers import GenerationConfig, WhisperForConditionalGeneration

from support.whispers import random_whisper

POSITIONS: Final = 50
"""Of a window: two frames of 10 ms each."""
END, START, TRANSLATE, TRANSCRIBE, NO_TIMESTAMPS = 256, 257, 261, 262, 266
LANGUAGES = {"<|en|>": 258, "<|fr|>": 259, "<|de|>": 260}
_CONTROLS = (
    "<|endoftext|>", "<|startoftranscript|>", *LANGUAGES, "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
)  # fmt: skip
FIRST = NO_TIMESTAMPS + 1
VOCABULARY = FIRST + POSITIONS + 1
GENERATION: dict[str, Any] = {
    "decoder_start_token_id": START,
    "eos_token_id": END,
    "pad_token_id": END,
    "bos_token_id": END,
    "is_multilingual": True,
    "lang_to_id": LANGUAGES,
    "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
    "no_timestamps_token_id": NO_TIMESTAMPS,
    "max_initial_timestamp_index": 20,
    "suppress_tokens": [1, 2, 7, START, TRANSLATE, TRANSCRIBE, 263, 264, 265],
    "begin_suppress_tokens": [32, END],
    "return_timestamps": False,
}


def speech_model(seed: int = 0) -> WhisperForConditionalGeneration:
    """Transformers' model, which generates by GENERATION."""
    theirs = random_whisper(
        seed, vocab_size=VOCABULARY, max_source_positions=POSITIONS, num_mel_bins=80, pad_token_id=END,
        decoder_start_token_id=START, eos_token_id=END, bos_token_id=END,
    )  # fmt: skip
    # Tokens' embeddings are small beside what layers add, else the head, which they are, says a token again and again.
    theirs.model.decoder.embed_tokens.weight.mul_(0.5)
    theirs.generation_config = GenerationConfig(**GENERATION)
    return theirs


def write_speech_model(folder: Path, seed: int = 0) -> WhisperForConditionalGeneration:
    """Its folder: weights, generation_config.json, tokenizer.json."""
    theirs = speech_model(seed)
    theirs.save_pretrained(folder)
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    pipeline = tokenizers.Tokenizer(models.BPE({symbol: token for token, symbol in enumerate(symbols)}, []))
    pipeline.pre_tokenizer, pipeline.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    pipeline.add_special_tokens(list(_CONTROLS))
    pipeline.add_tokens([f"<|{place * 0.02:.2f}|>" for place in range(POSITIONS + 1)])
    assert pipeline.get_vocab_size() == VOCABULARY
    pipeline.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "WhisperTokenizer", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return theirs


def sound(seconds: float, seed: int = 0, rate: int = 16_000) -> torch.Tensor:
    """Chirps between pauses, fp32: something else in every window."""
    generator = torch.Generator().manual_seed(seed)
    time = torch.arange(int(seconds * rate)) / rate
    pitch = 200 + 150 * torch.rand(int(seconds * 3) + 2, generator=generator).repeat_interleave(rate // 3)[: len(time)]
    loud = torch.rand(int(seconds * 5) + 2, generator=generator).repeat_interleave(rate // 5)[: len(time)]
    return loud * torch.sin(2 * torch.pi * pitch * time) * 0.5
