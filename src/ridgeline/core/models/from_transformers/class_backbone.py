"""The backbone of a transformers class: the search for it, and a wrapper that lets its language model run alone.

Shapes: T rows of a step, R requested rows, D hidden.
"""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.from_transformers.meta_tracing import accepted
from ridgeline.core.models.from_transformers.not_bridged import NotBridged


class ClassBackbone(nn.Module):
    """The backbone of a class in a wrapper, which returns hidden states that it is given instead of computing them."""

    unnamed = False

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        backbone.unnamed = True  # type: ignore[assignment]
        self.backbone = backbone
        self.given_1RD: Tensor | None = None

    @override
    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the backbone, which some classes read from outside."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("backbone"), name)

    @override
    def forward(self, *inputs: Any, **others: Any) -> Any:
        """Return the class's output for these inputs, or the given hidden states in its form."""
        return self.backbone(*inputs, **others) if self.given_1RD is None else _States(self.given_1RD)


class _States:
    """Hidden states as a class's backbone returns them, with nothing else in the result."""

    def __init__(self, x_1TD: Tensor) -> None:
        self.last_hidden_state = x_1TD

    def __getitem__(self, index: int) -> Tensor:
        return (self.last_hidden_state,)[index]

    def __getattr__(self, name: str) -> None:
        return None


class _Stopped(Exception):
    """The end of a forward pass from which nothing more is needed."""


def backbone_path(model: Any) -> str:
    """Return the path of the module that the language model of a class calls for hidden states.

    It is the first called module that contains the token embedding.
    """
    embedding, called = model.get_input_embeddings(), list[str]()
    paths = [path for path, module in model.named_modules() if path and embedding in module.modules()]

    def stop(path: str) -> None:
        called.append(path)
        raise _Stopped

    handles = [model.get_submodule(path).register_forward_pre_hook(lambda *_, path=path: stop(path)) for path in paths]
    try:
        ids_1T = torch.zeros(1, 1, dtype=torch.int64, device="meta")
        model(**accepted(model, input_ids=ids_1T, position_ids=ids_1T, use_cache=False))
    except _Stopped:
        return called[0]
    finally:
        for handle in handles:
            handle.remove()
    raise NotBridged("its language model calls no module that contains the token embedding")
