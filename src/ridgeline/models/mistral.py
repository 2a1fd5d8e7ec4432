"""Mistral 7B (arXiv:2310.06825): Llama with a sliding window, where the config states one."""

from ridgeline.models.decoder import Decoder
from ridgeline.models.fields import Fields
from ridgeline.models.llama import read_settings
from ridgeline.models.storage import Storage

UNSTATED_WINDOW = 4096  # what transformers takes for Mistral and Qwen where `sliding_window` is not null but absent


def read_window(fields: Fields, unstated: int | None = None) -> int | None:
    """`sliding_window`: null for none, `unstated` where the config does not have the field."""
    if fields.has("sliding_window"):
        return fields.count("sliding_window")
    return None if "sliding_window" in fields.values else unstated


def build(fields: Fields, storage: Storage) -> Decoder:
    """Mistral 7B and its descendants that keep the block."""
    window = read_window(fields, UNSTATED_WINDOW)
    return Decoder(read_settings(fields, storage, windows=(window,) * fields.layers))
