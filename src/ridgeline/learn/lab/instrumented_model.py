"""The built-in model looked into, in fp32: what each layer has, what happens if a part is taken out.

Nothing of the model is rewritten for it. Positions are arguments of a forward, attention asks a context that is
given to it, and an activation is a function of its op.

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
from ridgeline.core.models.common.priced_module import Told, listening
from ridgeline.core.ops.activation import ActivatedProjections
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.backend import REFERENCE
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.torch_attention import attend_segment
from ridgeline.core.ops.work import AttentionPattern, StepSegment

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play with her ball in the park. One day, she "
    "saw "
    "a big dog. The dog was happy and wanted to play too. Lily threw the ball and the dog ran after it."
)
"""A story to measure the loss on. It was written for that, and is in no corpus."""


class ExperimentContext(Uncached):
    """Attention as an experiment wants it. reach: which keys a query sees, where it is not the model's; without:
    layers whose attention gives nothing.
    """

    def __init__(self, length: int, reach: AttentionPattern | None = None, without: Collection[int] = ()) -> None:
        super().__init__([StepSegment(length, length)])
        self.reach, self.without = reach, without

    @override
    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """As KVContext.attend, of one sequence."""
        assert k_NKD is not None
        assert v_NKW is not None
        if op.layer in self.without:
            return torch.zeros_like(q_THD)
        return attend_segment(op, q_THD, k_NKD.transpose(0, 1), v_NKW.transpose(0, 1), reach=self.reach)


def in_fp32(name: str) -> Model:
    """A model whose weights are stored as they are, widened."""
    model = build(read_config(name), torch.float32)
    model.load_state_dict({path: tensor.float() for path, tensor in load_model(name).state_dict().items()}, assign=True)
    model.tie()
    return model


class InstrumentedModel:
    """A model and its tokenizer."""

    def __init__(self, name: str = "tales") -> None:
        self.model = in_fp32(name)
        self.tokenizer = tokenizer_of(name)
        self.blocks: Sequence[Any] = self.model.get_submodule("model.layers")  # type: ignore[assignment]

    def ids(self, text: str) -> list[int]:
        """Of a text."""
        return self.tokenizer.encode(text, parse_special=False)

    def pieces(self, text: str) -> list[str]:
        """Its tokens as text."""
        return [self.tokenizer.piece(token) for token in self.ids(text)]

    @torch.inference_mode()
    def logits(self, ids: Sequence[int], context: ExperimentContext | None = None, *, turned: bool = True) -> Tensor:
        """Of every position [T, V]. turned: whether keys and queries are rotated by their positions; else all are those
        of position 0, which turns nothing.
        """
        count = len(ids)
        positions_T = torch.arange(count) if turned else torch.zeros(count, dtype=torch.int64)
        out: Tensor = self.model(
            torch.tensor(ids), positions_T, context or ExperimentContext(count), torch.arange(count)
        )
        return out

    def loss(self, ids: Sequence[int], context: ExperimentContext | None = None, *, turned: bool = True) -> float:
        """Nats a token that the model is surprised by, from the second token on."""
        logits_TV = self.logits(ids, context, turned=turned)
        return float(functional.cross_entropy(logits_TV[:-1], torch.tensor(ids[1:])))

    def states(
        self, ids: Sequence[int], context: ExperimentContext | None = None, *, turned: bool = True
    ) -> list[Tensor]:
        """The stream [T, D]: the embedding, then what each layer leaves."""
        found: list[Tensor] = []

        def begin(_: Any, inputs: tuple[Any, ...]) -> None:
            found.append(inputs[0].clone())  # a later norm adds to it where it lies

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
        """The shares of attention of each layer [H, T, T]: row a query, column a key."""
        found: list[Tensor] = []

        def note(_: str, op: Any, inputs: tuple[Any, ...], __: Any) -> None:
            q_THD, k_TKD = op.meeting(inputs)
            k_HTD = k_TKD.repeat_interleave(q_THD.shape[1] // k_TKD.shape[1], 1).transpose(0, 1)
            scores_HTT = (q_THD.transpose(0, 1) @ k_HTD.transpose(1, 2)) * op.scale
            hidden_TT = torch.ones(len(ids), len(ids), dtype=torch.bool).triu(1)
            found.append(scores_HTT.masked_fill(hidden_TT, float("-inf")).softmax(-1))

        self._listen(ids, note)
        return found

    def unrotated(self, ids: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        """Of each layer queries and keys [T, H, D] before they are rotated, keys repeated for the heads that share
        them.
        """
        found: list[tuple[Tensor, Tensor]] = []

        def note(_: str, __: Any, inputs: tuple[Any, ...], ___: Any) -> None:
            q_THD, k_TKD = inputs[:2]
            found.append((q_THD, k_TKD.repeat_interleave(q_THD.shape[1] // k_TKD.shape[1], 1)))

        self._listen(ids, note)
        return found

    def _listen(self, ids: Sequence[int], note: Told) -> None:
        """Run a text; `note` is told of each call of attention."""
        with listening(self.model.ops_of(Attention), note):
            self.logits(ids)

    @property
    def table(self) -> Tensor:
        """The embedding [V, D]."""
        return self.model.get_parameter("model.embed_tokens.weight")

    @contextmanager
    def activated(self, function: Callable[[Tensor], Tensor]) -> Iterator[None]:
        """While it lasts, the gates of all layers go through another function, in PyTorch."""

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
        """While it lasts, the feed-forward part of every layer gives nothing."""
        handles = [
            block.mlp.register_forward_hook(lambda _, __, output: torch.zeros_like(output)) for block in self.blocks
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
