"""`ridgeline env`: the machine and the versions, for a bug report."""

import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

import torch

from ridgeline import __version__
from ridgeline.cli import options
from ridgeline.engine.kv.memory import GIB, available_memory

_PACKAGES = ("torch", "safetensors", "tokenizers", "sentencepiece", "jinja2", "numpy")


def env(as_json: options.Json = False) -> None:
    """Say what this machine is and which versions are installed: what a bug report needs."""
    facts = {
        "ridgeline": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "memory available": f"{available_memory() / GIB:.1f} GiB",
        **{name: version(name) for name in _PACKAGES},
    }
    if as_json:
        print(json.dumps(facts))
        return
    for name, value in facts.items():
        print(f"{name:17} {value}")


def _processor() -> str:
    """The processor's name as the kernel has it."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
