"""A view of feed-forward layers as key-value memories: the most active neurons, and the tokens that they promote.

A neuron is one column in the middle of an MLP. It adds its activation times its row of the down-projection to the
residual stream. Read through the final norm's scale and the LM head, that row promotes certain tokens (Geva et al.,
arXiv:2012.14913 and arXiv:2203.14680). Shapes: D hidden, F neurons, V vocabulary, N selected neurons.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import layer_of
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.matrix import Matrix
from ridgeline.core.text import Tokenizer
from ridgeline.insight.trace.anatomy import final_norm
from ridgeline.insight.trace.capture import ActivationCapture, CapturedCall
from ridgeline.insight.trace.token_candidates import Token, likeliest


@dataclass(frozen=True, slots=True)
class Neuron:
    """The activation of one feed-forward neuron at one position, with the tokens that it promotes."""

    layer: int
    expert: int | None
    """The expert that contains the neuron; None in a dense layer."""
    index: int
    activation: float
    """The input of the down-projection, multiplied by the router's weight in a mixture of experts."""
    promotes: tuple[tuple[Token, float], ...]
    """The tokens whose logits the neuron raises most, with the increase."""


@dataclass(frozen=True, slots=True)
class FeedForwardMemory:
    """The neurons with the largest absolute activation in each layer, at one position."""

    position: int
    layers: tuple[tuple[Neuron, ...], ...]


@dataclass(frozen=True, slots=True)
class _Fired:
    """An active neuron before its promoted tokens are known; `row_D` is its row of the down-projection."""

    layer: int
    expert: int | None
    index: int
    activation: float
    row_D: Tensor


@torch.inference_mode()
def memory(
    model: Model, captured: ActivationCapture, tokenizer: Tokenizer, neurons: int = 3, words: int = 5
) -> FeedForwardMemory:
    """Return the most active neurons of each layer with the tokens that they promote.

    Args:
        model: The model.
        captured: The activations of a forward pass.
        tokenizer: The model's tokenizer.
        neurons: The number of neurons per layer.
        words: The number of promoted tokens per neuron.
    """
    found: dict[int, list[_Fired]] = {}
    for call, down in captured.neurons:
        layer = _layer(call)
        rows_FD = _rows_of(down.matrix)
        found.setdefault(layer, []).extend(_most(layer, None, call.output.float(), rows_FD, neurons))
    for mixture in captured.experts:
        layer = _layer(mixture)
        found.setdefault(layer, []).extend(_of_experts(layer, mixture, captured.position, neurons))
    strongest = [
        one
        for layer in sorted(found)
        for one in sorted(found[layer], key=lambda fired: -abs(fired.activation))[:neurons]
    ]
    promoted = _promoted(model, strongest, tokenizer, words)
    each = [
        Neuron(one.layer, one.expert, one.index, one.activation, tokens)
        for one, tokens in zip(strongest, promoted, strict=True)
    ]
    layers = tuple(tuple(neuron for neuron in each if neuron.layer == layer) for layer in sorted(found))
    return FeedForwardMemory(captured.position, layers)


def _layer(call: CapturedCall[Experts] | CapturedCall[ActivatedProjections]) -> int:
    layer = layer_of(call.path)
    assert layer is not None, f"{call.path} does not belong to a layer"
    return layer


def _most(layer: int, expert: int | None, activation_F: Tensor, rows_FD: Tensor, neurons: int) -> list[_Fired]:
    """Return the most active neurons of one MLP."""
    chosen = activation_F.abs().topk(min(neurons, len(activation_F))).indices.tolist()
    return [_Fired(layer, expert, index, float(activation_F[index]), rows_FD[index].float()) for index in chosen]


def _of_experts(layer: int, call: CapturedCall[Experts], position: int, neurons: int) -> list[_Fired]:
    """Return the most active neurons of each expert that processed the token."""
    op = call.op
    x_1D, weights_1K, picked_1K = (own[position : position + 1] for own in call.inputs[:3])
    fired = []
    for weight, expert in zip(weights_1K[0], picked_1K[0].tolist(), strict=True):
        activation_F = op.activated(expert, x_1D)[0].float()
        fired += _most(layer, expert, activation_F * weight, _rows_of(op.matrices(expert)[-1]), neurons)
    return fired


def _rows_of(down: Matrix) -> Tensor:
    """Return the vector that each neuron adds to the residual stream per unit of activation: [F, D], without bias."""
    rows_FD = down.product(torch.eye(down.inputs, dtype=down.spec.dtype))
    bias = down.own_bias
    return rows_FD if bias is None else rows_FD - bias


def _promoted(
    model: Model, fired: list[_Fired], tokenizer: Tokenizer, words: int
) -> list[tuple[tuple[Token, float], ...]]:
    """Return the tokens whose logits each neuron raises most, with one pass through the head for all neurons."""
    scale_D = final_norm(model).scale
    added_ND = torch.stack([one.activation * one.row_D * scale_D for one in fired])
    raised_NV = model.head(added_ND.to(model.storage.dtype))
    return [likeliest(raised_V, words, tokenizer) for raised_V in raised_NV]
