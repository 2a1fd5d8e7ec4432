"""A Whisper model of CTranslate2 as a Hugging Face folder.

`model.bin` (version 6) has a header with the name of the specification, then variables: each a name, a shape, a type
and its bytes. Names that stand for other variables follow. Numbers are little-endian. A text ends with a zero byte,
which its length counts (CTranslate2's python/ctranslate2/specs/model_spec.py).
"""

import json
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

_TYPES = (np.float32, np.int8, np.int16, np.int32, np.float16)
_NORMS = {"beta": "bias", "gamma": "weight"}
_SELF, _CROSS, _FFN = "self_attention", "attention", "ffn"
# Of a layer: CTranslate2's part, its matrix, and what transformers calls the matrices that are fused there.
_MATRICES = {
    (_SELF, "linear_0"): ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    (_SELF, "linear_1"): ("self_attn.out_proj",),
    (_CROSS, "linear_0"): ("encoder_attn.q_proj",),
    (_CROSS, "linear_1"): ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    (_CROSS, "linear_2"): ("encoder_attn.out_proj",),
    (_FFN, "linear_0"): ("fc1",),
    (_FFN, "linear_1"): ("fc2",),
}
_LAYER_NORMS = {_SELF: "self_attn_layer_norm", _CROSS: "encoder_attn_layer_norm", _FFN: "final_layer_norm"}


def read_variables(path: Path) -> dict[str, np.ndarray]:
    """Return the variables of a model.bin by their names."""
    with path.open("rb") as file:
        (version,) = _numbers(file, "I")
        name = _text(file)
        assert (version, name) == (6, "WhisperSpec"), (version, name)
        _revision, count = _numbers(file, "II")
        found = {}
        for _ in range(count):
            name = _text(file)
            (rank,) = _numbers(file, "B")
            shape = _numbers(file, f"{rank}I")
            kind, size = _numbers(file, "BI")
            found[name] = np.frombuffer(file.read(size), _TYPES[kind]).reshape(shape)
        return found


def _numbers(file: BinaryIO, layout: str) -> tuple[int, ...]:
    return struct.unpack(f"<{layout}", file.read(struct.calcsize(f"<{layout}")))


def _text(file: BinaryIO) -> str:
    (length,) = _numbers(file, "H")
    return file.read(length).rstrip(b"\0").decode()


def convert(source: Path, folder: Path) -> WhisperForConditionalGeneration:
    """Write the folder of an English-only model, in fp32, and return transformers' model of it.

    source: a folder with model.bin, config.json and tokenizer.json.
    """
    variables = read_variables(source / "model.bin")
    model = WhisperForConditionalGeneration(_config(variables))
    model.load_state_dict(_state(variables), strict=False)
    assert set(model.state_dict()) - set(_state(variables)) == {"proj_out.weight"}  # tied
    stated = json.loads((source / "config.json").read_text(encoding="utf-8"))
    tokens = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]
    model.generation_config = _generation(stated, {each["content"]: each["id"] for each in tokens})
    model.save_pretrained(folder)
    WhisperFeatureExtractor().save_pretrained(folder)
    shutil.copy(source / "tokenizer.json", folder)
    settings = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    settings["tokenizer_class"] = "WhisperTokenizer"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return model.eval().requires_grad_(False)


def _config(variables: dict[str, np.ndarray]) -> WhisperConfig:
    """Return a config with the sizes of the variables and the token ids of Whisper's English-only models."""
    vocabulary, hidden = variables["decoder/embeddings/weight"].shape
    stacks: dict[str, Any] = {}
    for stack in ("encoder", "decoder"):
        layers = {name.split("/")[1] for name in variables if name.startswith(f"{stack}/layer_") and "norm" not in name}
        stacks |= {
            f"{stack}_layers": len(layers),
            f"{stack}_attention_heads": int(variables[f"{stack}/num_heads"]),
            f"{stack}_ffn_dim": len(variables[f"{stack}/layer_0/ffn/linear_0/bias"]),
        }
    return WhisperConfig(
        vocab_size=vocabulary,
        d_model=hidden,
        num_mel_bins=variables["encoder/conv1/weight"].shape[1],
        max_source_positions=len(variables["encoder/position_encodings/encodings"]),
        max_target_positions=len(variables["decoder/position_encodings/encodings"]),
        **stacks,
        pad_token_id=50256,
        bos_token_id=50256,
        eos_token_id=50256,
        decoder_start_token_id=50257,
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )


def _state(variables: dict[str, np.ndarray]) -> dict[str, Tensor]:
    """Return transformers' tensors by their names."""
    found: dict[str, Tensor] = {}
    for name, values in variables.items():
        if values.dtype == np.float16:
            for theirs, part in _renamed(name, values):
                found[theirs] = torch.from_numpy(part.astype(np.float32))
    return found


def _renamed(name: str, values: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each name that a variable has in transformers, with the rows of it."""
    stack, *path, last = name.split("/")
    before = f"model.{stack}"
    match path:
        case ["embeddings"]:
            yield f"{before}.embed_tokens.weight", values
        case ["position_encodings"]:
            yield f"{before}.embed_positions.weight", values
        case ["layer_norm"]:
            yield f"{before}.layer_norm.{_NORMS[last]}", values
        case ["conv1" | "conv2" as convolution]:
            yield f"{before}.{convolution}.{last}", values
        case [layer, part, "layer_norm"]:
            yield f"{before}.layers.{layer.removeprefix('layer_')}.{_LAYER_NORMS[part]}.{_NORMS[last]}", values
        case [layer, part, matrix]:
            modules = _MATRICES[part, matrix]
            for module, rows in zip(modules, np.split(values, len(modules)), strict=True):
                if module.endswith("k_proj") and last == "bias":
                    assert not rows.any(), f"{name} has a bias of keys"
                else:
                    yield f"{before}.layers.{layer.removeprefix('layer_')}.{module}.{last}", rows
        case _:
            raise AssertionError(name)


def _generation(stated: dict[str, Any], tokens: dict[str, int]) -> GenerationConfig:
    """Return the settings of an English-only release. stated: CTranslate2's. tokens: ids by control literal."""
    end = tokens["<|endoftext|>"]
    return GenerationConfig(
        decoder_start_token_id=tokens["<|startoftranscript|>"],
        bos_token_id=end,
        eos_token_id=end,
        pad_token_id=end,
        is_multilingual=False,
        no_timestamps_token_id=tokens["<|notimestamps|>"],
        prev_sot_token_id=tokens["<|startofprev|>"],
        max_initial_timestamp_index=50,
        max_length=448,
        suppress_tokens=stated["suppress_ids"],
        begin_suppress_tokens=stated["suppress_ids_begin"],
        alignment_heads=stated["alignment_heads"],
        return_timestamps=False,
    )
