"""Access to the inside of the built-in model, in fp32: the values of each layer, and the effect of removing a part.

The model itself is unchanged. Positions are arguments of its forward pass, attention goes through a context argument,
and an activation is a function of its op.

Shapes: T positions, D hidden, H heads, L layers, V vocabulary.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import read_config
from ridgeline.core.checkpoint.source_tokenizer import tokenizer_of
from ridgeline.core.models import build
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import CallListener, call_hooks
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.backend import REFERENCE
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.torch_attention import attend_segment
from ridgeline.core.ops.work import AttentionPattern, StepSegment

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play with her ball in the park. One day, she "
    "saw a big dog. The dog was happy and wanted to play too. Lily threw the ball and the dog ran after it."
)
"""A story to measure the loss on, written for that purpose."""


class ExperimentContext(Uncached):
    """An attention context that can replace the model's attention pattern and switch off attention in some layers.

    Attributes:
        reach: Attention pattern instead of the model's own, if not None.
        without: Layers whose attention returns zeros.
    """

    def __init__(self, length: int, reach: AttentionPattern | None = None, without: Collection[int] = ()) -> None:
        super().__init__([StepSegment(length, length)])
        self.reach, self.without = reach, without

    @override
    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """Attend within one sequence, with the experiment's changes; see `KVContext.attend`."""
        assert k_NKD is not None
        assert v_NKW is not None
        if op.layer in self.without:
            return torch.zeros_like(q_THD)
        return attend_segment(op, q_THD, k_NKD.transpose(0, 1), v_NKW.transpose(0, 1), reach=self.reach)


def in_fp32(name: str) -> Model:
    """Load a model and convert its weights to fp32."""
    model = build(read_config(name), torch.float32)
    model.load_state_dict({path: tensor.float() for path, tensor in load_model(name).state_dict().items()}, assign=True)
    model.tie()
    return model


class InstrumentedModel:
    """A model and its tokenizer, with access to states, attention weights and parts."""

    def __init__(self, name: str = "tales") -> None:
        self.model = in_fp32(name)
        self.tokenizer = tokenizer_of(name)
        self.blocks: Sequence[Any] = self.model.get_submodule("model.layers")  # type: ignore[assignment]

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        return self.tokenizer.encode(text, parse_special=False)

    def pieces(self, text: str) -> list[str]:
        """Return the tokens of a text as strings."""
        return [self.tokenizer.printable_token(token) for token in self.ids(text)]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], context: ExperimentContext | None = None, *, turned: bool = True) -> Tensor:
        """Return the logits of every position [T, V].

        Args:
            ids: Token ids.
            context: Attention context, if not the normal one.
            turned: Whether queries and keys are rotated by their positions; if not, all have position 0, which is no
                rotation.
        """
        count = len(ids)
        positions_T = torch.arange(count) if turned else torch.zeros(count, dtype=torch.int64)
        out: Tensor = self.model(
            torch.tensor(ids), positions_T, context or ExperimentContext(count), torch.arange(count)
        )
        return out

    def loss(self, ids: Sequence[int], context: ExperimentContext | None = None, *, turned: bool = True) -> float:
        """Return the model's mean cross-entropy on token ids in nats per token, from the second token on."""
        logits_TV = self.logits(ids, context, turned=turned)
        return float(functional.cross_entropy(logits_TV[:-1], torch.tensor(ids[1:])))

    def states(
        self, ids: Sequence[int], context: ExperimentContext | None = None, *, turned: bool = True
    ) -> list[Tensor]:
        """Return the residual stream [T, D] after the embedding and after each layer."""
        found: list[Tensor] = []

        def begin(_: Any, inputs: tuple[Any, ...]) -> None:
            found.append(inputs[0].clone())  # clone it, because a later norm adds to it in place

        def note(_: Any, __: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
            found.append(output[0] + output[1])

        handles = [self.blocks[0].register_forward_pre_hook(begin)]
        handles += [block.register_forward_hook(note) for block in self.blocks]
        try:
            self.logits(ids, context, turned=turned)
        finally:
            for handle in handles:
                handle.remove()
        return found

    def weights(self, ids: Sequence[int]) -> list[Tensor]:
        """Return the attention weights of each layer [H, T, T], with a row per query and a column per key."""
        found: list[Tensor] = []

        def note(_: str, op: Any, inputs: tuple[Any, ...], __: Any) -> None:
            q_THD, k_TKD = op.scored_queries_and_keys(inputs)
            k_HTD = k_TKD.repeat_interleave(q_THD.shape[1] // k_TKD.shape[1], 1).transpose(0, 1)
            scores_HTT = (q_THD.transpose(0, 1) @ k_HTD.transpose(1, 2)) * op.scale
            hidden_TT = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
            found.append(scores_HTT.masked_fill(hidden_TT, float("-inf")).softmax(-1))

        self._listen(ids, note)
        return found

    def unrotated(self, ids: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Return each layer's queries and keys [T, H, D] before the rotation.

        A key is repeated for every head that shares it.
        """
        found: list[tuple[Tensor, Tensor]] = []

        def note(_: str, __: Any, inputs: tuple[Any, ...], ___: Any) -> None:
            q_THD, k_TKD = inputs[:2]
            found.append((q_THD, k_TKD.repeat_interleave(q_THD.shape[1] // k_TKD.shape[1], 1)))

        self._listen(ids, note)
        return found

    def _listen(self, ids: Sequence[int], note: CallListener) -> None:
        """Run token ids through the model and call `note` for each attention op."""
        with call_hooks(self.model.ops_of(Attention), note):
            self.logits(ids)

    @property
    def table(self) -> Tensor:
        """The model's embedding table [V, D]."""
        return self.model.get_parameter("model.embed_tokens.weight")

    @contextmanager
    def activated(self, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """Replace the activation in the feed-forward part of all layers by a PyTorch function inside this context."""

        def activate(gate_TF: Tensor, up_TF: Tensor | None = None) -> Tensor:
            return function(gate_TF) if up_TF is None else function(gate_TF) * up_TF

        gates = [op for _, op in self.model.ops_of(ActivatedProjections)]
        for op in gates:
            op.activate = activate  # type: ignore[assignment, method-assign]
            REFERENCE.bind(op)
        try:
            yield
        finally:
            for op in gates:
                del op.activate
                self.model.backend.bind(op)

    @contextmanager
    def without_feed_forward(self) -> Iterator[None]:
        """Make the feed-forward part of every layer return zeros inside this context."""
        handles = [
            block.mlp.register_forward_hook(lambda _, __, output: torch.zeros_like(output)) for block in self.blocks
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
