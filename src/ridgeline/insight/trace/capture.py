"""A capture of internal activations, in one forward pass over prompt and response without a KV cache.

It is a separate pass, so that storing tensors does not disturb any measurement. Shapes: T positions, D hidden, F
neurons.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import call_hooks
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import StepSegment
from ridgeline.insight.trace.anatomy import blocks, final_norm

OpT = TypeVar("OpT", bound=Op)


@dataclass(frozen=True, slots=True)
class CapturedCall(Generic[OpT]):
    """An op call of a forward pass, with its path, inputs and output."""

    path: str
    op: OpT
    inputs: tuple[Any, ...]
    output: Any


@dataclass(slots=True)
class ActivationCapture:
    """The activations and op calls that one capture pass stored."""

    position: int
    residual: list[Tensor] = field(default_factory=list)
    """The residual stream at `position` before the first layer and after each layer, [D] each.

    It is empty for a transformers class.
    """
    attention: list[CapturedCall[Attention]] = field(default_factory=list)
    """The captured calls of attention ops."""
    experts: list[CapturedCall[Experts]] = field(default_factory=list)
    """The captured calls of mixture-of-experts ops."""
    neurons: list[tuple[CapturedCall[ActivatedProjections], Linear]] = field(default_factory=list)
    """The activations of each dense MLP at `position` before its down-projection, [F], with that down-projection."""
    logits_V: Tensor = field(default_factory=lambda: torch.empty(0))
    """The model's output logits at `position`."""


@torch.inference_mode()
def capture(model: Model, ids: Sequence[int], position: int, adapter: int = 0) -> ActivationCapture:
    """Run a forward pass over token ids and store the activations that the views need.

    Args:
        model: The model.
        ids: Tokens of prompt and response.
        position: The position of the stored residual stream, neurons and logits; op calls are stored with all
            positions.
        adapter: The number of the LoRA adapter; 0 for none.
    """
    captured = ActivationCapture(position)
    with ExitStack() as hooks, selected_adapter(model, adapter, len(ids)):
        if not model.traced_from:  # the blocks of a transformers class may return anything
            multiplier = final_norm(model).multiplier
            for index, block in enumerate(blocks(model)):
                hooks.enter_context(_residual(block, captured, multiplier, first=index == 0))
        hooks.enter_context(_calls_of(model, Attention, captured.attention))
        hooks.enter_context(_calls_of(model, Experts, captured.experts))
        hooks.enter_context(_neurons(model, captured))
        captured.logits_V = model(
            torch.tensor(ids),
            torch.arange(len(ids)),
            Uncached([StepSegment(len(ids), len(ids))]),
            torch.tensor([position]),
        )[0]
    return captured


@contextmanager
def selected_adapter(model: Model, adapter: int, rows: int) -> Iterator[None]:
    """Select a LoRA adapter for a number of rows within this context; 0 selects none."""
    if model.adapters is None:
        yield
        return
    model.adapters.set_step([adapter], [rows], torch.device("cpu"))
    try:
        yield
    finally:
        model.adapters.set_step((), (), torch.device("cpu"))


@contextmanager
def _residual(block: nn.Module, captured: ActivationCapture, multiplier: float, *, first: bool) -> Iterator[None]:
    """Store the residual stream after a block, and before the first one.

    Args:
        block: The transformer block.
        captured: The capture that stores it.
        multiplier: The factor of the second summand; a block returns the residual stream as two summands.
        first: Whether it is the first block.
    """

    def stream(x_TD: Tensor, y_TD: Tensor | None) -> Tensor:
        """Return the residual stream at the captured position; blocks pass it on as two summands."""
        x_D = x_TD[captured.position]
        return x_D.clone() if y_TD is None else x_D + y_TD[captured.position] * multiplier

    def enter(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        captured.residual.append(stream(inputs[0], inputs[1]))

    def leave(_: nn.Module, __: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        captured.residual.append(stream(*output))

    before = block.register_forward_pre_hook(enter) if first else nullcontext()
    with block.register_forward_hook(leave), before:
        yield


def _calls_of(model: Model, kind: type[OpT], kept: list[CapturedCall[OpT]]) -> AbstractContextManager[None]:
    """Append the calls of all ops of a class to a list, within this context."""

    def keep(path: str, op: OpT, inputs: tuple[Any, ...], output: Any) -> None:
        kept.append(CapturedCall(path, op, inputs, output))

    return call_hooks(model.ops_of(kind), keep)


@contextmanager
def _neurons(model: Model, captured: ActivationCapture) -> Iterator[None]:
    """Store MLP activations at the captured position, each with the Linear that runs next."""
    waiting: list[CapturedCall[ActivatedProjections]] = []  # until their down-projections run

    def keep(path: str, op: ActivatedProjections, _: tuple[Any, ...], output: Tensor) -> None:
        waiting.append(CapturedCall(path, op, (), output[captured.position].clone()))

    def match(_: str, op: Linear, __: tuple[Any, ...], ___: Any) -> None:
        if waiting:
            captured.neurons.append((waiting.pop(), op))

    with call_hooks(model.ops_of(ActivatedProjections), keep), call_hooks(model.ops_of(Linear), match):
        yield
