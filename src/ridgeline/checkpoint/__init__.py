"""A folder on disk becomes a model.

`source.py` finds what a name stands for and reads what describes it, `folder.py` finds the tensors of a folder,
`header.py` checks what a safetensors file claims, `fill.py` puts each tensor into its parameter exactly once;
`tokenizer.py` finds what reads its prompts, `autoencoder.py` loads what turns latents or tokens into pictures.
"""

from ridgeline.checkpoint.autoencoder import load_autoencoder, load_vq_autoencoder
from ridgeline.checkpoint.fill import load_denoiser, load_model
from ridgeline.checkpoint.source import Source, open_source, read_config

__all__ = [
    "Source",
    "load_autoencoder",
    "load_denoiser",
    "load_model",
    "load_vq_autoencoder",
    "open_source",
    "read_config",
]
