"""The flags of `llama-server` for a priced configuration, and the GGUF file that it loads."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ridgeline.core.models.common.recipes.llama_cpp import MIXES
from ridgeline.price.launch.engine_limits import Flags, kv_name
from ridgeline.price.launch.launch_config import LaunchConfig

_DTYPES: Mapping[str, str] = MappingProxyType({"float32": "f32", "float16": "f16", "bfloat16": "f16"})
"""llama.cpp's KV formats by PyTorch's names; f16 is as large as bf16, and the default."""
_KV: Mapping[str, str] = MappingProxyType({"int8": "q8_0"})
_MAX_SLOTS = 256
"""The maximum number of slots of a server: LLAMA_MAX_SEQ in src/llama-cparams.h of llama.cpp."""


def llama_cpp_flags(config: LaunchConfig) -> Flags:
    """Return the flags of `llama-server`.

    Raises:
        ValueError: If llama.cpp cannot run the configuration.
    """
    case, stored = config.case, config.case.model.storage.kv
    for given, name in ((config.chunk, "--chunk"), (config.pages, "--pages")):
        if given is not None:
            raise ValueError(f"--emit: llama.cpp has no option for {name}; leave it out")
    if case.setup.devices > 1 and stored is not None:
        raise ValueError("--emit: llama.cpp divides layers only over GPUs with an unquantised KV cache; leave out --kv")
    kv = _DTYPES[config.dtype] if stored is None else kv_name(config, "llama.cpp", _KV)
    model = gguf_file(config)
    if config.requests > _MAX_SLOTS:
        raise ValueError(
            f"--emit: llama.cpp runs at most {_MAX_SLOTS} requests at a time, not {config.requests:,}; plan more "
            f"replicas (--users), or limit `simulate` with --max-requests {_MAX_SLOTS}"
        )
    flags: Flags = [
        ("--model", model),
        ("--gpu-layers", "0" if case.device.kind == "cpu" else "all"),
        # A slot has its share of the positions from the start.
        ("--ctx-size", str(config.context * config.requests)),
        ("--parallel", str(config.requests)),
        ("--no-kv-unified",),
        ("--batch-size", str(config.step_tokens)),
        ("--ubatch-size", str(config.step_tokens)),
        ("--flash-attn", "on"),
        ("--cache-type-k", kv),
        ("--cache-type-v", kv),
    ]
    if case.setup.devices > 1:
        flags.append(("--split-mode", "tensor"))
    if config.prefix_cache is not None:
        flags.append((f"--{'' if config.prefix_cache else 'no-'}cache-prompt",))
    return flags


def gguf_file(config: LaunchConfig) -> str:
    """Return the name of the GGUF file to load, which is the model itself or one to be made from it.

    Raises:
        ValueError: If llama.cpp has no such format.
    """
    if config.model.endswith(".gguf"):
        if config.case.setup.weights is not None:
            raise ValueError("--emit: llama.cpp loads a GGUF file in its own formats; leave out --weights")
        return config.model
    return f"{Path(config.model).name}-{_gguf_format(config)}.gguf"


def gguf_recipe(config: LaunchConfig) -> tuple[str, ...]:
    """Return the commands that make the GGUF file from a checkpoint; empty if the model is such a file."""
    if config.model.endswith(".gguf"):
        return ()
    made, name = shlex.quote(gguf_file(config)), _gguf_format(config)
    model = shlex.quote(config.model)
    fetch = "" if Path(config.model).exists() else f"hf download {model} --local-dir model && "
    convert = f"{fetch}convert_hf_to_gguf.py {'model' if fetch else model}"
    if config.case.weights not in MIXES:
        return (f"{convert} --outtype {name.lower() if name != 'MXFP4' else 'auto'} --outfile {made}",)
    return (f"{convert} --outfile model.gguf", f"llama-quantize model.gguf {made} {name}")


def _gguf_format(config: LaunchConfig) -> str:
    """Return llama.cpp's name of the weight format, in capitals as in the names of files."""
    weights = config.case.weights
    if weights in MIXES or (weights == "mxfp4" == config.stored_as):
        return weights.upper()
    if weights in {"fp32", "fp16", "bf16"} and not config.stored_as:
        return {"fp32": "F32", "fp16": "F16", "bf16": "BF16"}[weights]
    raise ValueError(
        f"--emit: llama.cpp has no GGUF format that stores weights as {weights}; give --weights q4_k_m, q8_0 or "
        "another of its formats, or a GGUF file as MODEL"
    )
