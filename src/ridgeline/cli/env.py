"""`ridgeline env`: the machine and the versions, for a bug report."""

import json
import platform
from importlib.metadata import version

import torch

from ridgeline.cli import options
from ridgeline.host import GIB, available_memory, processor
from ridgeline.ops.kernels import state
from ridgeline.version import __version__

_PACKAGES = ("torch", "safetensors", "tokenizers", "sentencepiece", "jinja2", "numpy")


def env(as_json: options.Json = False) -> None:
    """Say what this machine is and which versions are installed: what a bug report needs."""
    facts = {
        "ridgeline": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "kernels": state(),
        "memory available": f"{available_memory() / GIB:.1f} GiB",
        **{name: version(name) for name in _PACKAGES},
    }
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name:17} {value}")
