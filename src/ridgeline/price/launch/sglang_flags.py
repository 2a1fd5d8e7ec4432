"""The flags of `python -m sglang.launch_server` for a priced configuration."""

import math
from collections.abc import Mapping
from types import MappingProxyType

from ridgeline.price.launch.engine_limits import Flags, check_gpu_server, kv_name, weight_flag
from ridgeline.price.launch.launch_config import LaunchConfig

_PAGE = 16  # the positions of a page where the command does not state them
_WEIGHTS: Mapping[str, str] = MappingProxyType({"fp8": "fp8"})
_KV: Mapping[str, str] = MappingProxyType({"fp8": "fp8_e4m3", "nvfp4": "nvfp4"})


def sglang_flags(config: LaunchConfig) -> Flags:
    """Return the flags of SGLang's server.

    Raises:
        ValueError: If SGLang cannot run the configuration.
    """
    check_gpu_server(config, "SGLang")
    case = config.case
    if config.chunk is not None:
        raise ValueError("--emit: SGLang has no limit of one request's tokens in a step; leave out --chunk")
    flags: Flags = [("--dtype", config.dtype), *weight_flag(config, "SGLang", _WEIGHTS)]
    if case.model.storage.kv is not None:
        flags.append(("--kv-cache-dtype", kv_name(config, "SGLang", _KV)))
    # This share counts weights and KV only; the rest of --memory-utilization is for the activations of a step.
    share = math.floor(config.loaded_share * 1000) / 1000
    flags += [
        ("--tp-size", str(case.setup.devices)),
        ("--mem-fraction-static", f"{share:g}"),
        # A request must be shorter than the context, not as long.
        ("--context-length", str(min(config.context + 1, case.model.context))),
        ("--max-running-requests", str(config.requests)),
        ("--chunked-prefill-size", str(config.step_tokens)),
        ("--max-prefill-tokens", str(config.step_tokens)),
    ]
    if config.prefix_cache is False:
        flags.append(("--disable-radix-cache",))
    if config.pages is not None:
        flags.append(("--max-total-tokens", str(config.pages * (config.page_size or _PAGE))))
    if config.page_size is not None:
        flags.append(("--page-size", str(config.page_size)))
    return flags
