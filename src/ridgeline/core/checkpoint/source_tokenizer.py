"""The tokenizer and the chat templates of a model. Apart from source.py: a plan needs configs and should not wait for
text.
"""

from ridgeline.core.checkpoint.catalogue import CATALOGUE
from ridgeline.core.checkpoint.source import MODEL, ModelSource, as_source
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.text import ChatTemplates, Tokenizer, load_templates, load_tokenizer
from ridgeline.core.text.byte_tokenizer import BYTE_SYMBOLS
from ridgeline.core.text.gguf_tokenizer import read_gguf_templates, read_gguf_tokenizer


def tokenizer_of(model: ModelSource | str, *, or_bytes: bool = False) -> Tokenizer:
    """The tokenizer of a source, or of a name as `open_source` takes it; `or_bytes` as in `load_tokenizer`.

    A folder without a tokenizer whose config has as many symbols as there are bytes, and an end, is read as bytes
    whatever its weights are. Raises ModelRefused where there is none or it is broken.
    """
    source = as_source(model)
    if source.folder is None and not or_bytes:
        raise ModelRefused(f"the catalogue holds no tokenizer for {source.name}; give its checkpoint folder")
    try:
        if source.gguf is not None:
            return read_gguf_tokenizer(source.gguf.metadata, source.gguf.path)
        return load_tokenizer(source.folder or CATALOGUE, or_bytes=or_bytes or _symbols(source) == BYTE_SYMBOLS)
    except ValueError as error:
        raise ModelRefused(str(error)) from None


def _symbols(source: ModelSource) -> object:
    """What the model's config states as the size of its vocabulary; None where it states nothing."""
    model = source.components.get(MODEL)
    return None if model is None or model.config is None else model.config.values.get("vocab_size")


def templates_of(source: ModelSource, tokenizer: Tokenizer) -> ChatTemplates | None:
    """As `load_templates`. Raises ModelRefused for a broken template: the folder is at fault, not who asks."""
    try:
        if source.gguf is not None:
            return read_gguf_templates(source.gguf.metadata, tokenizer, source.gguf.path)
        return load_templates(source.folder or CATALOGUE, tokenizer)
    except ValueError as error:
        raise ModelRefused(str(error)) from None
