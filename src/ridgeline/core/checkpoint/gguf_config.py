"""Conversion of GGUF metadata to a config.json, and of GGUF tensor names to the names in Hugging Face checkpoints.

The keys are those of ggml/docs/gguf.md. `Fields` decides by name how to treat an unknown key, as in any config: one
that changes the result is rejected.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ridgeline.core.checkpoint.gguf_header import GGUFHeader, package
from ridgeline.core.models.common.fields import MAX_LAYERS, Fields, ModelRefused
from ridgeline.core.ops.matrix.gguf_matrix import BLOCKS

ROPE_FACTORS = "rope_freqs.weight"
"""The name of the GGUF tensor of divisors of rotary frequencies; all other tensors belong to the model."""
WIDE = ("F32", "F16", "BF16")
"""The GGUF tensor types that are plain numbers and not quantised blocks."""
ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
}  # fmt: skip
"""The Hugging Face architecture of each supported GGUF architecture."""
_MODULES = ("model.embed_tokens", "model.norm", "lm_head")
_PARTS = (
    "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm",
    "self_attn.k_norm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "input_layernorm",
    "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm",
)  # fmt: skip
# Fields of config.json by the part of the GGUF key after the architecture's name.
_FIELDS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
}
_LAYERS_OF_GEMMA2_27B = 46  # llama.cpp also selects the query scaling by this number


def read_gguf_config(header: GGUFHeader) -> Fields:
    """Return the config of the model in a GGUF file.

    Raises:
        ModelRefused: If the file holds something other than a model, or only a part of one, or if the architecture, a
            tensor type or a value is missing or not supported.
    """
    metadata, path = header.metadata, header.path
    kind, parts, name = (metadata.get(key) for key in ("general.type", "split.count", "general.architecture"))
    if kind not in (None, "model"):
        raise ModelRefused(f"{path} holds a {kind}, not a model; give the file of the model itself")
    if parts not in (None, 0, 1):
        raise ModelRefused(f"{path} is one of {parts} parts of a model; join them (llama-gguf-split --merge)")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise ModelRefused(
            f"{path}: architecture {name!r} is not supported in GGUF files; {', '.join(ARCHITECTURES)} are"
        )
    for tensor in header.tensors.values():
        if tensor.dtype not in (*WIDE, *BLOCKS):
            raise ModelRefused(
                f"{path}: tensor {tensor.name} is stored in {tensor.dtype}, which is not supported; "
                f"{', '.join((*WIDE, *BLOCKS))} are"
            )
    own = {key.removeprefix(f"{name}."): value for key, value in metadata.items() if key.startswith(f"{name}.")}
    return Fields({**_values(header, name, own), **_stored(header)}, str(path))


def tensor_names(header: GGUFHeader) -> dict[str, str]:
    """Return the Hugging Face name of each tensor in a GGUF file, except for the rotary factors.

    An unknown tensor keeps its own name.

    Raises:
        ModelRefused: If the number of layers is invalid.
    """
    types, name = package(header.path), header.metadata["general.architecture"]
    layers = header.metadata.get(f"{name}.block_count")
    if type(layers) is not int or not 1 <= layers <= MAX_LAYERS:
        raise ModelRefused(f"{header.path}: {name}.block_count is {layers!r}; it must be from 1 to {MAX_LAYERS}")
    known = types.get_tensor_name_map(types.MODEL_ARCH[name.upper()], layers)
    modules = (*_MODULES, *(f"model.layers.{layer}.{part}" for layer in range(layers) for part in _PARTS))
    theirs = {known.get_name(module): module for module in modules}
    found: dict[str, str] = {}
    for tensor in header.tensors:
        module, dot, last = tensor.rpartition(".")
        if tensor != ROPE_FACTORS:
            found[tensor] = f"{theirs.get(module, module)}{dot}{last}"
    return found


def tensor_bytes(header: GGUFHeader) -> int:
    """Return the bytes of the model's tensors in a GGUF file."""
    return sum(tensor.end - tensor.begin for name, tensor in header.tensors.items() if name != ROPE_FACTORS)


def _values(header: GGUFHeader, name: str, own: dict[str, Any]) -> dict[str, Any]:
    """Return the config fields that GGUF metadata states.

    The understood keys are removed from `own`, the metadata of the architecture.

    Raises:
        ModelRefused: If a value is missing or not supported.
    """
    values: dict[str, Any] = {"architectures": [ARCHITECTURES[name]], "model_type": name}
    values |= {field: own.pop(key) for key, field in _FIELDS.items() if key in own}
    table = header.tensors.get("token_embd.weight")
    if table is None:
        raise ModelRefused(f"{header.path} lacks the tensor token_embd.weight; fetch it again")
    values["vocab_size"] = table.shape[0]
    own.pop("vocab_size", None)
    values.setdefault("num_key_value_heads", values.get("num_attention_heads"))
    values.setdefault("rope_theta", 10_000.0)
    values["tie_word_embeddings"] = "output.weight" not in header.tensors
    if name in ("llama", "qwen3"):
        values["attention_bias"] = "blk.0.attn_q.bias" in header.tensors
    width = _head_dim(header, values)
    for key in ("attention.value_length", "rope.dimension_count"):
        if own.pop(key, width) != width:
            raise ModelRefused(
                f"{header.path}: {name}.{key} differs from the head's width, {width}, which is not supported"
            )
    if name == "gemma2":
        whole = values["num_hidden_layers"] == _LAYERS_OF_GEMMA2_27B
        values["query_pre_attn_scalar"] = values["hidden_size"] / values["num_attention_heads"] if whole else width
        values["head_dim"] = width
    scaling = _scaling(header, own, width, values.get("max_position_embeddings"))
    if scaling:
        values["rope_scaling"] = scaling
    return values | {f"{name}.{key}": value for key, value in own.items()}


def _head_dim(header: GGUFHeader, values: Mapping[str, Any]) -> int:
    """Return the size of an attention head from GGUF metadata, after a check of the sizes that it is computed from.

    Raises:
        ModelRefused: If a size is invalid.
    """
    hidden, heads = (values.get(field) for field in ("hidden_size", "num_attention_heads"))
    if type(hidden) is not int or type(heads) is not int or hidden < 1 or heads < 1:
        raise ModelRefused(
            f"{header.path}: embedding_length {hidden!r} and head_count {heads!r} are not valid; fetch it again"
        )
    width = values.get("head_dim", hidden // heads)
    if type(width) is not int:
        raise ModelRefused(f"{header.path}: attention.key_length {width!r} is not valid; fetch it again")
    return width


def _scaling(header: GGUFHeader, own: dict[str, Any], width: int, context: object) -> dict[str, Any]:
    """Return the rotary scaling of a GGUF file in the form of `rope_scaling`, or {} if there is none.

    The GGUF converter turns Llama 3.1's scaling into one factor per frequency. They are returned as LongRoPE factors
    without LongRoPE's attention scaling.
    """
    kind, factor = own.pop("rope.scaling.type", None), own.pop("rope.scaling.factor", None)
    original = own.pop("rope.scaling.original_context_length", None)
    own.pop("rope.scaling.finetuned", None)
    factors = header.tensors.get(ROPE_FACTORS)
    if factors is not None:
        if kind not in (None, "none") or factors.dtype != "F32" or factors.shape != (width // 2,):
            raise ModelRefused(
                f"{header.path}: tensor {ROPE_FACTORS} {list(factors.shape)} does not fit a rope of type {kind!r}; "
                "fetch it again"
            )
        divisors = np.fromfile(header.path, "<f4", math.prod(factors.shape), offset=factors.begin).tolist()
        named = {"short_factor": divisors, "long_factor": divisors}
        return {"rope_type": "longrope", **named, "attention_factor": 1.0, "original_max_position_embeddings": context}
    if kind in (None, "none"):
        return {} if factor in (None, 1.0) else {"rope_type": "linear", "factor": factor}
    scaling = {"rope_type": kind, "factor": factor}
    return scaling if original is None or kind == "linear" else scaling | {"original_max_position_embeddings": original}


def _stored(header: GGUFHeader) -> dict[str, Any]:
    """Return the dtype and the weight formats of a GGUF file as config fields.

    The model is in bf16 if all matrices are, and otherwise in fp32: F16 and the scales of blocks have values that bf16
    cannot represent.
    """
    matrices = [tensor for tensor in header.tensors.values() if len(tensor.shape) > 1]
    types = {
        ours.removesuffix(".weight"): header.tensors[theirs].dtype
        for theirs, ours in tensor_names(header).items()
        if header.tensors[theirs].dtype in BLOCKS
    }
    dtype = "bfloat16" if all(tensor.dtype == "BF16" for tensor in matrices) else "float32"
    section = {"quantization_config": {"quant_method": "gguf", "types": types}} if types else {}
    return {"torch_dtype": dtype, **section}
