"""A folder on disk becomes a model.

`header.py` checks what a safetensors file claims, `folder.py` finds the tensors of a checkpoint, `fill.py` puts each
into its parameter exactly once, `load.py` does it all;
`tokenizer.py` finds what reads its prompts.
"""

from ridgeline.checkpoint.load import load_model, model_folder, read_config

__all__ = ["load_model", "model_folder", "read_config"]
