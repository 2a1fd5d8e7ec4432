"""A look inside: one forward over prompt and answer, without KV memory, in which hooks keep what the views ask for.

It is a pass of its own, so that keeping tensors disturbs no measurement. Shapes: T positions, D hidden, F neurons.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import listening
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
    """An op that ran: its path, and what went in and came out."""

    path: str
    op: OpT
    inputs: tuple[Any, ...]
    output: Any


@dataclass(slots=True)
class ActivationCapture:
    """What one pass kept. residual: the stream at `position` before the first layer and after each, [D] each.

    attention, experts: the calls of those ops. neurons: the first half of each MLP with the Linear that ran next, its
    down-projection. logits_V: the model's own, at `position`.
    """

    position: int
    residual: list[Tensor] = field(default_factory=list)
    attention: list[CapturedCall[Attention]] = field(default_factory=list)
    experts: list[CapturedCall[Experts]] = field(default_factory=list)
    neurons: list[tuple[CapturedCall[ActivatedProjections], Linear]] = field(default_factory=list)
    logits_V: Tensor = field(default_factory=lambda: torch.empty(0))


@torch.inference_mode()
def capture(model: Model, ids: Sequence[int], position: int, adapter: int = 0) -> ActivationCapture:
    """Run `ids` once and keep what the views need, of `position` where one position is enough. adapter: the
    number of the one that is asked, 0 for none.
    """
    captured, multiplier = ActivationCapture(position), final_norm(model).multiplier
    with ExitStack() as hooks, asking(model, adapter, len(ids)):
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
def asking(model: Model, adapter: int, rows: int) -> Iterator[None]:
    """While inside, so many rows of the model run with the adapter of this number; 0 for none."""
    if model.adapters is None:
        yield
        return
    model.adapters.choose([adapter], [rows], torch.device("cpu"))
    try:
        yield
    finally:
        model.adapters.choose((), (), torch.device("cpu"))


@contextmanager
def _residual(block: nn.Module, captured: ActivationCapture, multiplier: float, *, first: bool) -> Iterator[None]:
    """Keep the stream that leaves a block, and that which enters the first one. multiplier: of its second summand."""

    def stream(x_TD: Tensor, y_TD: Tensor | None) -> Tensor:
        """At the position; blocks pass it on as two summands."""
        x_D = x_TD[captured.position]
        return x_D.clone() if y_TD is None else x_D + y_TD[captured.position] * multiplier

    def enter(_: nn.Module, inputs: tuple[Any, ...]) -> None:
        captured.residual.append(stream(inputs[0], inputs[1]))

    def leave(_: nn.Module, __: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        captured.residual.append(stream(*output))

    handles = [block.register_forward_hook(leave)]
    if first:
        handles.append(block.register_forward_pre_hook(enter))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _calls_of(model: Model, kind: type[OpT], kept: list[CapturedCall[OpT]]) -> AbstractContextManager[None]:
    """Keep the calls of the ops of a class."""

    def keep(path: str, op: OpT, inputs: tuple[Any, ...], output: Any) -> None:
        kept.append(CapturedCall(path, op, inputs, output))

    return listening(model.ops_of(kind), keep)


@contextmanager
def _neurons(model: Model, captured: ActivationCapture) -> Iterator[None]:
    """Keep the activations at the position, each with the Linear that runs next."""
    waiting: list[CapturedCall[ActivatedProjections]] = []  # whose down-projection has not come yet

    def keep(path: str, op: ActivatedProjections, _: tuple[Any, ...], output: Tensor) -> None:
        waiting.append(CapturedCall(path, op, (), output[captured.position].clone()))

    def match(_: str, op: Linear, __: tuple[Any, ...], ___: Any) -> None:
        if waiting:
            captured.neurons.append((waiting.pop(), op))

    with listening(model.ops_of(ActivatedProjections), keep), listening(model.ops_of(Linear), match):
        yield
