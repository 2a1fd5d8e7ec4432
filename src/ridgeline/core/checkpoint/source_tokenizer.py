"""Loading of the tokenizer and the chat templates of a model source.

This is separate from source.py because a plan needs only configs and should not wait for the import of the text
modules.
"""

from ridgeline.core.checkpoint.catalogue import CATALOGUE
from ridgeline.core.checkpoint.source import MODEL, ModelSource, as_source
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.text import ChatTemplates, Tokenizer, load_templates, load_tokenizer
from ridgeline.core.text.byte_tokenizer import BYTE_SYMBOLS
from ridgeline.core.text.gguf_tokenizer import read_gguf_templates, read_gguf_tokenizer


def tokenizer_of(model: ModelSource | str, *, or_bytes: bool = False) -> Tokenizer:
    """Return the tokenizer of a model source or model name.

    A folder without a tokenizer gets a byte tokenizer if its config has a vocabulary of 257 ids (256 bytes and one end
    token), whatever its weights are.

    Args:
        model: Source, or a name for `open_source`.
        or_bytes: Whether any folder or catalogue config without a tokenizer gets a byte tokenizer, unless the folder
            declares a tokenizer. GGUF files never get one.

    Raises:
        ModelRefused: If there is no tokenizer or it is broken.
    """
    source = as_source(model)
    if source.folder is None and not or_bytes:
        raise ModelRefused(f"the catalogue has no tokenizer for {source.name}; give the folder of its checkpoint")
    try:
        if source.gguf is not None:
            return read_gguf_tokenizer(source.gguf.metadata, source.gguf.path)
        return load_tokenizer(source.folder or CATALOGUE, or_bytes=or_bytes or _symbols(source) == BYTE_SYMBOLS)
    except ValueError as error:
        raise ModelRefused(str(error)) from None


def _symbols(source: ModelSource) -> object:
    """Return the vocabulary size in the model's config, or None if the config has none."""
    model = source.components.get(MODEL)
    return None if model is None or model.config is None else model.config.values.get("vocab_size")


def templates_of(source: ModelSource, tokenizer: Tokenizer) -> ChatTemplates | None:
    """Return the chat templates of a model source, or None if it has none.

    Raises:
        ModelRefused: If a template is broken. The model is at fault, not the request.
    """
    try:
        if source.gguf is not None:
            return read_gguf_templates(source.gguf.metadata, tokenizer, source.gguf.path)
        return load_templates(source.folder or CATALOGUE, tokenizer)
    except ValueError as error:
        raise ModelRefused(str(error)) from None
