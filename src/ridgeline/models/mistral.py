"""Mistral 7B (arXiv:2310.06825): Llama with a sliding window, where the config states one."""

from ridgeline.models.decoder import Decoder
from ridgeline.models.fields import Fields
from ridgeline.models.llama import read_settings
from ridgeline.models.storage import Storage


def same_window(fields: Fields) -> tuple[int | None, ...]:
    """The window of every layer: `sliding_window`, or none."""
    window = fields.count("sliding_window") if fields.has("sliding_window") else None
    return (window,) * fields.layers


def build(fields: Fields, storage: Storage) -> Decoder:
    """Mistral 7B and its descendants that keep the block."""
    return Decoder(read_settings(fields, storage, windows=same_window(fields)))
