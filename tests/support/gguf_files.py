"""Small GGUF files, written and quantised by the `gguf` package, and what they stand for by its dequantisers."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from torch import Tensor

Choice = Callable[[str], Type]
"""The type of a matrix, by its name in the file."""

SETTINGS = {
    "max_position_embeddings": "context_length",
    "num_hidden_layers": "block_count",
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "sliding_window": "attention.sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}


def write_gguf(
    path: Path,
    model_type: str,
    config: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    choose: Choice = lambda _: Type.F32,
    metadata: Callable[[gguf.GGUFWriter], None] = lambda _: None,
    factors: Sequence[float] = (),
) -> dict[str, Tensor]:
    """Write a checkpoint of transformers as its converter does: names, the order of Llama's queries and keys, Gemma's
    norms with 1 added. metadata: writes what else there is. factors: of the rope's frequencies. Gives the tensors that
    the file stands for, by their names in the checkpoint."""
    writer = gguf.GGUFWriter(path, model_type)
    for field, key in SETTINGS.items():
        if (value := config.get(field)) is not None:
            put = writer.add_float32 if isinstance(value, float) else writer.add_uint32
            put(f"{model_type}.{key}", value)
    writer.add_float32(f"{model_type}.rope.freq_base", float(config.get("rope_theta", 10_000.0)))
    metadata(writer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[model_type.upper()], config["num_hidden_layers"])
    stands_for: dict[str, Tensor] = {}
    for ours, tensor in tensors.items():
        name = names.get_name(ours, (".weight", ".bias"))
        assert name is not None, ours
        heads = 0
        if model_type == "llama" and ".self_attn." in ours and ours.split(".")[-2] in ("q_proj", "k_proj"):
            heads = config["num_attention_heads" if "q_proj" in ours else "num_key_value_heads"]
        one = float(model_type == "gemma2" and ours.endswith("norm.weight"))
        rows = tensor.float().numpy() + np.float32(one)
        kind = choose(name) if rows.ndim > 1 else Type.F32
        stored = blocks_of(turned(rows, heads), kind)
        writer.add_tensor(name, stored, raw_dtype=kind)
        held = turned_back(numbers_of(stored, kind), heads) - np.float32(one)
        stands_for[ours] = torch.from_numpy(held.reshape(rows.shape).copy())
    if factors:
        writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stands_for


def turned(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as the converter writes them: the pairs that turn side by side."""
    if not heads:
        return rows
    split = rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


def turned_back(rows: np.ndarray, heads: int) -> np.ndarray:
    """What `turned` was given."""
    if not heads:
        return rows
    split = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return split.swapaxes(1, 2).reshape(rows.shape)


# Of types of K where the large scales begin, the most that a code times its small scale is, and what the scales are
# beside each other: that of the codes and, where there is one, that of the minima.
LARGE_SCALES = {
    Type.Q2_K: (80, 3 * 15, [1.0, 1.0]), Type.Q3_K: (108, 4 * 32, [1.0]), Type.Q4_K: (0, 15 * 63, [1.0, 4.0]),
    Type.Q5_K: (0, 31 * 63, [1.0, 8.0]), Type.Q6_K: (208, 31 * 64, [1.0]),
}  # fmt: skip


def blocks_of(rows: np.ndarray, kind: Type) -> np.ndarray:
    """Rows in blocks of a type. Those of K, to which the package does not quantise, are random."""
    if kind in LARGE_SCALES:
        return random_blocks(rows, kind)
    return gguf.quants.quantize(np.ascontiguousarray(rows), kind)


def random_blocks(rows: np.ndarray, kind: Type) -> np.ndarray:
    """Blocks in which every bit of codes and small scales is drawn, and the large scales are of the rows' size."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    count = rows.size // 256
    generator = np.random.default_rng(rows.shape[0] * 1000 + rows.shape[1])
    blocks = generator.integers(0, 256, (count, size), dtype=np.uint8)
    large = float(np.abs(rows).mean()) * generator.uniform(0.5, 1.5, (count, 2))
    at, most, steps = LARGE_SCALES[kind]
    scales = (large[:, : len(steps)] / most * steps).astype(np.float16).view(np.uint8)
    blocks[:, at : at + scales.shape[1]] = scales
    return blocks.reshape(len(rows), -1)


def numbers_of(stored: np.ndarray, kind: Type) -> np.ndarray:
    """What blocks stand for, by the package's dequantiser."""
    return gguf.quants.dequantize(stored, kind)
