"""The rotary embeddings of a transformers class that depend on the length of a sequence, for steps of the engine.

The engine stores keys after rotation, so a sequence cannot change its frequencies while it grows, and all sequences of
a step share the frequencies. So the context decides, as for the families here: all sequences use the long factors of
longrope if the context is longer than the original one, otherwise the short ones. Dynamic scaling changes nothing up to
the context, and no sequence becomes longer than that.
"""

from typing import Any

from torch import nn


def fix_rotary(model: nn.Module, context: int) -> None:
    """Make each rotary embedding of a class give a position the same rotation in every step.

    Args:
        model: The model of the class, whose frequencies are computed.
        context: The maximum number of positions of a sequence.
    """
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if isinstance(kinds, str):
            module.rope_type = _fixed(module, kinds, None, context)  # type: ignore[assignment]
        elif isinstance(kinds, dict):
            each = {layer: _fixed(module, kind, layer, context) for layer, kind in kinds.items()}
            module.rope_type = each  # type: ignore[assignment]


def _fixed(module: Any, kind: str, layer: str | None, context: int) -> str:
    """Make the embedding of one type of layer depend on no length, and return its kind from then on."""
    if kind == "longrope":
        every = module.config.rope_parameters
        original = (every if layer is None else every[layer])["original_max_position_embeddings"]
        if context > original:
            _use_long_factors(module, layer, original)
    return "default" if kind in ("longrope", "dynamic") else kind


def _use_long_factors(module: Any, layer: str | None, original: int) -> None:
    """Replace the frequencies of an embedding by those of sequences that are longer than the original context."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    held = module._buffers["inv_freq" if layer is None else f"{layer}_inv_freq"]
    frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](module.config, held.device, seq_len=original + 1, layer_type=layer)
    held.copy_(frequencies)
