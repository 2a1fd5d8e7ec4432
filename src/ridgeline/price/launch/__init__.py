"""Launch commands of other engines for a configuration that was priced (`--emit` of `ridgeline plan` and `simulate`).

`launch_config.py` holds the configuration. `vllm_flags.py`, `sglang_flags.py` and `llama_cpp_flags.py` translate it
into the flags of an engine, and `engine_limits.py` has the checks that they share. `launch_text.py` writes the command
with its comments, and `kubernetes_manifest.py` a manifest.
"""

from ridgeline.price.launch.launch_config import TARGETS, LaunchConfig
from ridgeline.price.launch.launch_text import launch_text

__all__ = ["TARGETS", "LaunchConfig", "launch_text"]
