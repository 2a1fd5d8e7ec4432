"""The text of --emit: a shell command or a manifest, with comments that say what was priced."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from ridgeline.price.launch.engine_limits import Flags
from ridgeline.price.launch.kubernetes_manifest import manifest
from ridgeline.price.launch.launch_config import TARGETS, LaunchConfig
from ridgeline.price.launch.llama_cpp_flags import gguf_recipe, llama_cpp_flags
from ridgeline.price.launch.sglang_flags import sglang_flags
from ridgeline.price.launch.vllm_flags import vllm_flags

_LINE_BREAKS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def launch_text(target: str, config: LaunchConfig) -> str:
    """Return the command or the manifest that launches a configuration, with its comments.

    Args:
        target: A key of `TARGETS`.
        config: The configuration.

    Raises:
        ValueError: If the engine cannot run the configuration, or if another engine was priced.
    """
    if config.engine != TARGETS[target]:
        raise ValueError(
            f"--emit {target} launches {TARGETS[target]}, but {config.engine} was priced; give --engine "
            f"{TARGETS[target]} or leave it out"
        )
    if config.case.adapters:
        raise ValueError("--emit writes no adapters; leave out --lora, and add them to the command yourself")
    body = _WRITERS[target](config)
    comments = [f"# {_LINE_BREAKS.sub(' ', line)}\n" for line in config.comments]  # a name must not end the comment
    return f"{''.join(comments)}{body}\n"


def _vllm(config: LaunchConfig) -> str:
    return _command(("vllm", "serve", config.model), vllm_flags(config))


def _sglang(config: LaunchConfig) -> str:
    return _command(("python", "-m", "sglang.launch_server"), [("--model-path", config.model), *sglang_flags(config)])


def _llama_cpp(config: LaunchConfig) -> str:
    flags = llama_cpp_flags(config)
    lines = [f"# to make the file: {_LINE_BREAKS.sub(' ', line)}\n" for line in gguf_recipe(config)]
    if config.dtype == "bfloat16" and config.case.model.storage.kv is None:
        lines.append("# KV was priced as bf16; f16 takes as much\n")
    if config.case.kv == "int8":
        lines.append("# KV was priced as int8 with a scale per head; q8_0 has one per 32 values and takes 5% more\n")
    if config.case.setup.devices > 1:
        lines.append(
            "# every layer and its KV were priced as divided over the GPUs, which is --split-mode tensor; llama.cpp "
            "calls it experimental\n"
        )
    return f"{''.join(lines)}{_command(('llama-server',), flags)}"


def _command(words: Sequence[str], flags: Flags) -> str:
    return " \\\n  ".join(shlex.join(line) for line in (words, *flags))


def _kubernetes(config: LaunchConfig) -> str:
    return manifest(config, vllm_flags(config))


_WRITERS: Mapping[str, Callable[[LaunchConfig], str]] = MappingProxyType(
    {"vllm": _vllm, "sglang": _sglang, "llama.cpp": _llama_cpp, "kubernetes": _kubernetes}
)
