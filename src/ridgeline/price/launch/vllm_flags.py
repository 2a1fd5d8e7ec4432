"""The flags of `vllm serve` for a priced configuration."""

from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.price.launch.engine_limits import Flags, check_gpu_server, kv_name, weight_flag
from ridgeline.price.launch.launch_config import LaunchConfig

VERSION = "0.33.0"
"""The version of vLLM whose flags are emitted, which is also the tag of its container image."""

_WEIGHTS: Mapping[str, str] = MappingProxyType({"fp8": "fp8", "int8": "int8_per_channel_weight_only"})
_KV: Mapping[str, str] = MappingProxyType({"fp8": "fp8", "int8": "int8_per_token_head", "nvfp4": "nvfp4"})


def vllm_flags(config: LaunchConfig) -> Flags:
    """Return the flags of `vllm serve`.

    Raises:
        ValueError: If vLLM cannot run the configuration.
    """
    check_gpu_server(config, "vLLM")
    case = config.case
    flags: Flags = [("--dtype", config.dtype), *weight_flag(config, "vLLM", _WEIGHTS)]
    if case.model.storage.kv is not None:
        flags.append(("--kv-cache-dtype", kv_name(config, "vLLM", _KV)))
    if case.ranks > 1:  # attention and requests on each GPU, experts divided among all
        flags += [("--data-parallel-size", str(case.ranks)), ("--enable-expert-parallel",)]
    else:
        flags.append(("--tensor-parallel-size", str(case.setup.devices)))
    flags += [
        ("--gpu-memory-utilization", f"{case.setup.utilization:g}"),
        ("--max-model-len", str(config.context)),
        ("--max-num-seqs", str(config.requests)),
        ("--max-num-batched-tokens", str(config.step_tokens)),
        ("--enable-chunked-prefill",),
    ]
    if config.chunk is not None:
        flags.append(("--long-prefill-token-threshold", str(config.chunk)))
    if config.prefix_cache is not None:
        flags.append((f"--{'' if config.prefix_cache else 'no-'}enable-prefix-caching",))
    if config.pages is not None:
        flags.append(("--num-gpu-blocks-override", str(config.pages)))
    if config.page_size is not None:
        flags.append(("--block-size", str(config.page_size)))
    return flags
