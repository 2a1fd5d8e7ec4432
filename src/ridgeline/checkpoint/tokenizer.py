"""The tokenizer of a model by its name. Apart from load.py: a plan needs configs and should not wait for text."""

from ridgeline.checkpoint.load import CATALOGUE, model_folder
from ridgeline.models.fields import ModelRefused
from ridgeline.text import Tokenizer, load_tokenizer


def tokenizer_of(name: str, *, or_bytes: bool = False) -> Tokenizer:
    """The tokenizer of a model named as `model_folder` takes it; `or_bytes` as in `load_tokenizer`.

    Raises ModelRefused where there is none or it is broken.
    """
    folder = model_folder(name)
    if folder == CATALOGUE and not or_bytes:
        raise ModelRefused(f"the catalogue holds no tokenizer for {name}; give its checkpoint folder")
    try:
        return load_tokenizer(folder, or_bytes=or_bytes)
    except ValueError as error:
        raise ModelRefused(str(error)) from None
