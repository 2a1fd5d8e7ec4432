"""ClassEncoder: an encoder of text of the installed `transformers` package as a model of the engine.

Shapes: T rows of a step, R requested rows, N texts of equal length, L rows of such a text, D hidden.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import CallListener, emptied
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.from_transformers.attention_bridge import IMPLEMENTATION, AttentionBridge, bind_bridge
from ridgeline.core.models.from_transformers.class_construction import (
    compute_buffers,
    constructing,
    context_of,
    path_of,
    refuse_large_buffers,
)
from ridgeline.core.models.from_transformers.class_lookup import is_classifier
from ridgeline.core.models.from_transformers.joined_matrices import joined_matrices
from ridgeline.core.models.from_transformers.meta_tracing import (
    TRACED_ROWS,
    AnswersOne,
    observing,
    rows_of_call,
    tracing,
)
from ridgeline.core.models.from_transformers.not_bridged import NO_INTERFACE, NotBridged
from ridgeline.core.models.from_transformers.op_replacement import replace_modules
from ridgeline.core.models.from_transformers.rotary_lengths import fix_rotary
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.row_ops import RowPicker
from ridgeline.core.ops.work import RowAxis


@dataclass(frozen=True, slots=True)
class EncoderRun:
    """The way in which the class of an encoder runs the texts of a step."""

    packed: bool
    """Whether all texts are one sequence for the class of an encoder, told apart by our attention ops.

    Otherwise the class runs texts of equal length as a batch, with its own attention.
    """
    after_padding: bool = False
    """Whether the position of a text's first token is that after the id of the padding token, as in RoBERTa."""


class ClassEncoder(Model):
    """An encoder of text whose forward pass is the code of a transformers class.

    It returns the hidden states of a class without a head, or the scores that a classifier gives to each text, in the
    text's last row. The texts of a step are whole. No keys and values are kept.
    """

    has_head = False
    needs_whole_prompt = True

    not_modelled: Sequence[tuple[RowAxis, Op]] = ()
    """The calls of ops that stand for the code of an encoder's class outside our ops; set by `trace_costs`."""

    def __init__(self, module: Any, storage: StorageConfig, run: EncoderRun) -> None:
        """Convert the model of a class.

        Args:
            module: The model, a result of `encoder_module`.
            storage: The dtype.
            run: The way to run the texts of a step.

        Raises:
            NotBridged: If the code of the class cannot be traced, or does not attend by our ops and is to run packed.
        """
        super().__init__()
        config = module.config
        self.storage, self.vocabulary, self.run = storage, config.vocab_size, run
        self.start = first_position(config) if run.after_padding else 0
        """The class's position of a text's first token."""
        self.context = context_of(config) - self.start
        self.pooled = is_classifier(type(module))
        self.takes = frozenset(signature(module.forward).parameters)
        """The names of the arguments of the class."""
        if "token_type_ids" in self.takes:
            self.token_types = getattr(config, "type_vocab_size", 1) or 1
        self.kv_specs = ()
        compute_buffers(module, module)
        if run.packed:
            fix_rotary(module, self.context)
        self._table = path_of(module, module.get_input_embeddings())
        replace_modules(module, storage.dtype, None)
        module.unnamed, module.part = True, "feed-forward"  # the part of all that is in no attention
        self.encoder = module
        self._rows = 0
        self.picker = RowPicker()
        self.bridge = AttentionBridge()
        bind_bridge(module, self.bridge)
        with tracing():
            self.result_width = self._trace()
        self.hidden_width = getattr(config, "hidden_size", 0) if self.pooled else self.result_width
        for each in module.modules():
            if "Attention" in type(each).__name__:
                each.part = "attention"
        if run.packed:
            self._attach()

    def _trace(self) -> int:
        """Trace the class once, to note its attention calls and the sizes of the rows of its ops; return its width."""
        ids_1T = torch.empty(1, TRACED_ROWS, dtype=torch.int64, device="meta")
        with self.meta(), observing(self, tokens_only=True), self.bridge.forward(None), joined_matrices(self):
            return self._states(ids_1T, ids_1T if self.run.packed else None).shape[-1]

    def _attach(self) -> None:
        """Make an attention op for each traced call."""
        if not self.bridge.calls:
            raise NotBridged(NO_INTERFACE)
        self.bridge.attach(self.storage)
        for _, op in self.ops_of(Attention):
            op.disable_kv_cache()

    def _states(self, ids_NL: Tensor, positions_NL: Tensor | None = None) -> Tensor:
        """Return the hidden states [N, L, D] of texts by the class's code, or a classifier's scores [N, 1, D].

        Args:
            ids_NL: The token ids; those of a second text are shifted by the size of the vocabulary.
            positions_NL: The positions; None if the class numbers them.
        """
        given = {
            "input_ids": ids_NL % self.vocabulary,
            "attention_mask": torch.ones_like(ids_NL),
            "token_type_ids": ids_NL // self.vocabulary,
            "position_ids": positions_NL,
            "use_cache": False,
        }
        left_out = {"token_type_ids"} if self.token_types == 1 else set()
        wanted = self.takes - left_out
        states: Tensor = self.encoder(**{name: value for name, value in given.items() if name in wanted})[0]
        return states[:, None] if self.pooled else states

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        self._rows = len(ids_T)
        if self.run.packed:
            with self.bridge.forward(kv):
                x_TD = self._states(ids_T[None], positions_T[None] + self.start)[0]
        elif ids_T.is_meta:
            x_TD = self._states(ids_T[None])[0]  # a price has one text
        else:
            x_TD = self._by_length(ids_T, positions_T)
        if ids_T.is_meta:
            for _, op in self.not_modelled:
                op(torch.empty(self._rows))
        return self.picker(x_TD.to(self.storage.dtype), rows_R)

    def _by_length(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """Return the results [T, D] of the texts of a step; the class runs those of one length together."""
        x_TD = ids_T.new_empty(len(ids_T), self.result_width, dtype=self.storage.dtype)
        for length, firsts in _texts_by_length(positions_T).items():
            firsts_N = torch.tensor(firsts, device=ids_T.device)
            rows_NL = firsts_N[:, None] + torch.arange(length, device=ids_T.device)
            written_NL = rows_NL[:, -1:] if self.pooled else rows_NL
            x_TD[written_NL] = self._states(ids_T[rows_NL]).to(x_TD.dtype)
        return x_TD

    @contextmanager
    @override
    def on_meta(self, listener: CallListener) -> Iterator[None]:
        """Report each op's call with its first input row by row, while the context is open.

        Calls whose rows are no tokens, such as those of relative positions, are left out: `trace_costs` counts them.
        """

        def by_rows(path: str, op: Any, inputs: tuple[Any, ...], output: Any) -> None:
            first = rows_of_call(inputs, output)
            if self._rows in first.shape:
                listener(path, op, (first.reshape(self._rows, -1), *inputs[1:]), output)

        with super().on_meta(by_rows), self.meta():
            yield

    @contextmanager
    def meta(self) -> Iterator[None]:
        """Let the class run on the meta device while the context is open."""
        with emptied(self), AnswersOne():
            yield

    @override
    def _token_table(self) -> tuple[str, Embedding]:
        """Return the token embedding of the class, which is not always its first."""
        return next(
            (path, op)
            for path, op in self.ops_of(Embedding)
            if self.checkpoint_name(f"{path}.weight") == f"{self._table}.weight"
        )


def encoder_module(cls: Any, config: Any, dtype: torch.dtype, *, packed: bool) -> Any:
    """Return the model of an encoder's class on the meta device.

    Args:
        cls: The class, a `PreTrainedModel`, as `encoder_class` returns it.
        config: Its config, which is copied.
        dtype: The dtype of the parameters.
        packed: Whether our attention is its implementation; otherwise its own is.

    Raises:
        NotBridged: If the class has no such implementation, cannot be built from the config, or computes tables that
            would fill the memory.
    """
    with constructing(config):
        module = encoder_of(cls, deepcopy(config), dtype, IMPLEMENTATION if packed else "eager")
    refuse_large_buffers(module)
    return module


def encoder_of(cls: Any, config: Any, dtype: torch.dtype, attention: str) -> Any:
    """Return the model of an encoder's class on the current device, without a pooler that only its training needs.

    Args:
        cls: The class.
        config: Its config, which takes the name of the attention implementation.
        dtype: The dtype of the parameters.
        attention: The name of the attention implementation.
    """
    options = {"add_pooling_layer": False} if "add_pooling_layer" in signature(cls.__init__).parameters else {}
    module = cls._from_config(config, dtype=dtype, attn_implementation=attention, **options).eval()
    if getattr(module, "pooler", None) is not None and not is_classifier(cls):
        module.pooler = _NoPooler()
    return module


class _NoPooler(nn.Module):
    """The pooler of a class whose pooled state is not needed."""

    @override
    def forward(self, x_NLD: Tensor) -> None:
        """Return nothing."""


def first_position(config: Any) -> int:
    """Return the position after that of the padding token, where texts begin in some classes."""
    return (getattr(config, "pad_token_id", None) or 0) + 1


def _texts_by_length(positions_T: Tensor) -> dict[int, list[int]]:
    """Return the first rows of the texts of a step by the texts' length; a text begins at position 0."""
    firsts = (positions_T == 0).nonzero().flatten().tolist()
    found: dict[int, list[int]] = {}
    for first, end in zip(firsts, [*firsts[1:], len(positions_T)], strict=True):
        found.setdefault(end - first, []).append(first)
    return found
