"""The checks of a configuration that several engines share: devices, files and formats that they cannot run."""

from collections.abc import Mapping

from ridgeline.core.ops.number_formats import FORMATS
from ridgeline.price.launch.launch_config import LaunchConfig

Flags = list[tuple[str, ...]]
"""The flags of a command, each with its value if it has one."""


def check_gpu_server(config: LaunchConfig, title: str) -> None:
    """Raise ValueError if an engine that serves Hugging Face checkpoints on GPUs cannot run a configuration."""
    device = config.case.device
    if device.kind == "cpu" or device.maker == "Apple":
        raise ValueError(f"--emit: {title} is launched on GPUs of a server, not on {device.title}; emit llama.cpp")
    if config.model.endswith(".gguf"):
        raise ValueError(f"--emit: {title} loads Hugging Face checkpoints, not {config.model}; emit llama.cpp")
    wanted = config.case.setup.weights
    if wanted in {known.name for known in FORMATS} and config.stored_as:
        raise ValueError(
            f"--emit: {title} loads the checkpoint in its own format, {config.stored_as}, not in {wanted}; leave out "
            "--weights"
        )


def weight_flag(config: LaunchConfig, title: str, known: Mapping[str, str]) -> Flags:
    """Return the flag --quantization for weights that are converted while they are loaded; empty if none are.

    Args:
        config: The configuration.
        title: The engine's name in messages.
        known: The engine's names of the weight formats that it converts to.

    Raises:
        ValueError: If the engine does not convert weights to the format.
    """
    wanted = config.converted
    if not wanted or wanted == config.stored_as:
        return []
    if wanted not in known:
        raise ValueError(
            f"--emit: {title} does not convert weights to {wanted} while it loads them: give a checkpoint in this "
            f"format as MODEL and leave out --weights, or give --weights {' or '.join(known)}"
        )
    if config.stored_as:
        raise ValueError(
            f"--emit: {title} does not convert a checkpoint in {config.stored_as} to {wanted}; leave out --weights"
        )
    return [("--quantization", known[wanted])]


def kv_name(config: LaunchConfig, title: str, known: Mapping[str, str]) -> str:
    """Return an engine's name of the KV format, for a format that is not the model's own.

    Args:
        config: The configuration.
        title: The engine's name in messages.
        known: The engine's names of the KV formats that it has.

    Raises:
        ValueError: If the engine does not have the format.
    """
    wanted = config.case.kv
    if wanted not in known:
        raise ValueError(f"--emit: {title} has no KV cache in {wanted}; give --kv {' or '.join(known)}")
    return known[wanted]
