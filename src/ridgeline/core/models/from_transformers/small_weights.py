"""The random weights of a small copy of a transformers class, and of the engine's model next to it."""

from typing import Any

import torch
from torch import Tensor, nn

from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.expert_layout import STACKED, UNGATED
from ridgeline.core.ops.experts import Experts

_STD = 0.18  # large enough that every gate and norm moves the logits


def fill_randomly(model: Any) -> None:
    """Fill a model with random weights that all matter; scales of norms lie around 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *_stored_buffers(model)):
            noise = torch.randn(tensor.shape, generator=generator) * _STD
            tensor.copy_(1 + noise if tensor.dim() == 1 and not name.endswith("bias") else noise)
    model.tie_weights()


def _stored_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    """Return the buffers of a model that a checkpoint contains and that hold floats."""
    stored = model.state_dict()
    return [(name, held) for name, held in model.named_buffers() if name in stored and held.is_floating_point()]


def copy_weights(model: PricedModule, reference: nn.Module) -> None:
    """Give a model the weights of its class's own model, whose names it has."""
    weights = reference.state_dict()
    with torch.device("meta"):
        model.create_parameters()
    for path, op in model.ops_of(Experts):
        held = [name for name in (*STACKED.names, *UNGATED.names) if model.checkpoint_name(f"{path}.{name}") in weights]
        op.match_checkpoint(dict.fromkeys(held, "F32").get)
    for name, (module, own) in model.tensors().items():
        for path, tensor in module.load_tensor(own, weights[name]).items():
            module.set_parameter(path, tensor)
    model.tie()
