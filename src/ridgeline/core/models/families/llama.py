"""Llama 2, 3, 3.1 and 3.2 (arXiv:2307.09288, arXiv:2407.21783)."""

from ridgeline.core.models.common.decoder import Decoder
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.llama_decoder import build_backbone
from ridgeline.core.models.common.storage import StorageConfig


def build(fields: Fields, storage: StorageConfig) -> Decoder:
    """Build the model of a Llama config."""
    d, trunk = build_backbone(fields, storage)
    return Decoder(d, trunk, tied=fields.flag("tie_word_embeddings", False))


FAMILY = Family("LlamaForCausalLM", "llama", build)
