"""Loading of models from disk.

`source.py` resolves the name of a model and reads its configs, `folder.py` finds the tensors of a folder,
`safetensors_header.py` validates safetensors headers, `weight_loader.py` loads each tensor into its parameter exactly
once, and `source_tokenizer.py` loads the tokenizer. `backends/model_loader.py` builds a model, loads its weights with
these modules and prepares it for its device.
"""

from ridgeline.core.checkpoint.source import ModelSource, open_source, read_config

__all__ = [
    "ModelSource",
    "open_source",
    "read_config",
]
