"""The tokenizer of a model. Apart from source.py: a plan needs configs and should not wait for text."""

from ridgeline.checkpoint.source import CATALOGUE, Source, as_source
from ridgeline.models.fields import ModelRefused
from ridgeline.text import Tokenizer, load_tokenizer


def tokenizer_of(model: Source | str, *, or_bytes: bool = False) -> Tokenizer:
    """The tokenizer of a source, or of a name as `open_source` takes it; `or_bytes` as in `load_tokenizer`.

    Raises ModelRefused where there is none or it is broken.
    """
    source = as_source(model)
    if source.folder is None and not or_bytes:
        raise ModelRefused(f"the catalogue holds no tokenizer for {source.name}; give its checkpoint folder")
    try:
        return load_tokenizer(source.folder or CATALOGUE, or_bytes=or_bytes)
    except ValueError as error:
        raise ModelRefused(str(error)) from None
