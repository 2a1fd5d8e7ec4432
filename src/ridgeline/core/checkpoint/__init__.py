"""A folder on disk becomes a model.

`source.py` finds what a name stands for and reads what describes it, `folder.py` finds the tensors of a folder,
`safetensors_header.py` checks what a safetensors file claims, `weight_loader.py` puts each tensor into its parameter
exactly once; `source_tokenizer.py` finds what reads its prompts. `backends/model_loader.py` does all of this, and
prepares the model for its device.
"""

from ridgeline.core.checkpoint.source import ModelSource, open_source, read_config

__all__ = [
    "ModelSource",
    "open_source",
    "read_config",
]
