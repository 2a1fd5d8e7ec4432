"""ClassDecoder: a causal language model of the installed `transformers` package as a model of the engine.

Shapes: T rows of a step, R requested rows, D hidden, V vocabulary.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import CallListener, emptied
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.common.token_tables import TokenTables
from ridgeline.core.models.from_transformers.aten_costs import AtenTrace
from ridgeline.core.models.from_transformers.attention_bridge import AttentionBridge, bind_bridge
from ridgeline.core.models.from_transformers.class_backbone import ClassBackbone, backbone_path
from ridgeline.core.models.from_transformers.class_construction import compute_buffers, path_of
from ridgeline.core.models.from_transformers.class_latents import noting_latents
from ridgeline.core.models.from_transformers.cost_fit import TraceSize
from ridgeline.core.models.from_transformers.joined_matrices import joined_matrices
from ridgeline.core.models.from_transformers.meta_tracing import TRACED_ROWS, AssumesTrue, observing, tracing
from ridgeline.core.models.from_transformers.not_bridged import NO_INTERFACE, NotBridged
from ridgeline.core.models.from_transformers.not_modelled import ROW_SIZES, add_not_modelled, trace_kernels
from ridgeline.core.models.from_transformers.op_replacement import replace_modules
from ridgeline.core.models.from_transformers.rank_part import WHOLE_CLASS, RankPart
from ridgeline.core.models.from_transformers.rotary_lengths import fix_rotary
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.matrix import Matrix
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.row_ops import RowPicker
from ridgeline.core.ops.shard import Indivisible
from ridgeline.core.ops.work import LOGITS, TOKENS, RowAxis


class ClassDecoder(Model):
    """A causal language model whose forward pass is the code of a transformers class.

    A step's rows form one sequence for the class, with positions of their own; attention and only attention tells the
    sequences of a step apart. The class runs without a cache of its own.

    Attributes:
        probe: Returns why the engine cannot run the class, or "" if it can.
        probe_division: Returns why the engine cannot run it divided over devices, or "" if it can.
    """

    probe: Callable[[], str] = str  # which returns "", until a family sets a probe
    probe_division: Callable[[], str] = str

    def __init__(
        self,
        module: Any,
        storage: StorageConfig,
        context: int,
        part: RankPart = WHOLE_CLASS,
        *,
        latents: bool = True,
    ) -> None:
        """Convert the model of a class.

        Args:
            module: The model, a `PreTrainedModel` on the meta device with our attention implementation.
            storage: The dtype and the KV format.
            context: The maximum number of positions of a sequence.
            part: The part of the class that this rank holds.
            latents: Whether to keep latents where the class computes keys and values from them.
        """
        super().__init__()
        config = module.config.get_text_config()
        self.storage, self.context, self.vocabulary = storage, context, config.vocab_size
        compute_buffers(module, module)
        fix_rotary(module, context)
        head, ties = module.get_output_embeddings(), dict(module.all_tied_weights_keys)
        head_name = "" if head is None else path_of(module, head)
        replace_modules(module, storage.dtype, head, part)
        self._wrapper_path = backbone_path(module)
        module.set_submodule(self._wrapper_path, ClassBackbone(module.get_submodule(self._wrapper_path)))
        module.unnamed, module.part = True, "feed-forward"  # the part of all that is in no attention
        self.causal = module
        self._rows = 0  # of the part that runs
        self._latents = latents
        self.picker = RowPicker()
        self.bridge = AttentionBridge()
        with tracing():
            self._attach_attention()
        self._head_name = head_name
        self._tie(ties, head_name)

    def _attach_attention(self) -> None:
        """Make ops for the attention calls of the class, and set the cache formats.

        Raises:
            NotBridged: If the class attends in a way that the ops do not.
        """
        bind_bridge(self.causal, self.bridge)
        with noting_latents(self.causal) if self._latents else nullcontext():
            self._trace_once()
            if not self.bridge.calls:
                raise NotBridged(NO_INTERFACE)
            for call in self.bridge.calls:
                call.module.part = "attention"  # type: ignore[assignment]
            self.kv_specs = tuple(self.bridge.attach(self.storage))

    @property
    def latent(self) -> int:
        """The numbers of the largest latent that a layer keeps of a token; 0 if no layer keeps one."""
        return max((op.sizes.kept for _, op in self.ops_of(LatentAttention)), default=0)

    @override
    def refuse_division(self) -> None:
        """Raise Indivisible if ranks cannot load their parts of the class, or do not give its logits together."""
        super().refuse_division()
        self._refuse_shared_kv_heads()
        if self.storage.shard.size > 1 and (problem := self.probe_division()):
            raise Indivisible(f"the engine cannot divide the class, because {problem}; give --devices 1")

    def _refuse_shared_kv_heads(self) -> None:
        """Raise Indivisible if ranks that share KV heads hold more than one, of which the heads of a rank use one.

        Some classes have a multiple of the KV heads of the config in a few layers.
        """
        ranks = self.storage.shard.size
        for call in self.bridge.calls:
            for spec in (each.spec for each in call.module.modules() if isinstance(each, Matrix)):
                parts = spec.shard.size
                if spec.split == "column" and 1 < parts < ranks and call.kv_heads > 1 and call.latent is None:
                    raise Indivisible(
                        f"{call.kv_heads * parts} KV heads of {type(call.module).__name__} do not divide over {ranks} "
                        f"devices, because the config states {parts}; give --devices {parts}"
                    )

    @cached_property
    @override
    def priced_only(self) -> str:  # type: ignore[override]
        """Why the engine does not run the model, found by the probe; "" if it does."""
        return self.probe()

    @property
    def wrapper(self) -> ClassBackbone:
        """The wrapped backbone, which is a part of the class's language model."""
        return self.causal.get_submodule(self._wrapper_path)

    def _trace_once(self) -> None:
        """Trace the class once, to note its attention calls and the sizes of the rows of its ops."""
        ids_T = torch.empty(TRACED_ROWS, dtype=torch.int64, device="meta")
        with emptied(self), observing(self), AssumesTrue():
            with self.bridge.forward(None), joined_matrices(self):
                x_TD = self._states(ids_T, ids_T)
            self.head(x_TD)
        self.hidden_width = x_TD.shape[-1]

    def _tie(self, ties: Mapping[str, str], head: str) -> None:
        """Share tied parameters as the class does, and set the names of the token tables if the head is tied.

        Args:
            ties: The name of the parameter that each tied one shares, in the class.
            head: The path of the output projection in the class.
        """
        paths = {
            self.checkpoint_name(f"{path}.{name}"): f"{path}.{name}"
            for path, module in self.stored_modules()
            for name, _ in module.named_parameters(recurse=False)
        }
        self.ties = {paths[name]: paths[held] for name, held in ties.items() if {name, held} <= paths.keys()}
        if paths.get(f"{head}.weight") in self.ties:
            tables = (ties[f"{head}.weight"], f"{head}.weight")
            uses = {name: paths[name].removesuffix(".weight") for name in tables}
            self.tables = TokenTables(uses, dict([tables[::-1]]))
        self.tie()

    def _states(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """Return the hidden states of all rows of a step, [T, D], by the class's backbone."""
        given = {"input_ids": ids_T[None], "position_ids": positions_T[None], "use_cache": False, "return_dict": True}
        mask_1T = torch.ones(1, len(ids_T), dtype=torch.bool, device=ids_T.device)
        return self.wrapper.backbone(attention_mask=mask_1T, **given).last_hidden_state[0]

    @override
    def hidden(
        self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor, encoded_ED: Tensor | None = None
    ) -> Tensor:
        self._rows = len(ids_T)
        with self.bridge.forward(kv):
            return self.picker(self._states(ids_T, positions_T), rows_R)

    @override
    def head(self, x_RD: Tensor) -> Tensor:
        if not len(x_RD):  # some classes cannot reshape nothing
            return x_RD.new_empty(0, self.vocabulary, dtype=torch.float32)
        self.wrapper.given_1RD, self._rows = x_RD[None], len(x_RD)
        try:
            rows_1R = torch.zeros(1, len(x_RD), dtype=torch.int64, device=x_RD.device)
            return self.causal(input_ids=rows_1R, use_cache=False, return_dict=True).logits[0].float()
        finally:
            self.wrapper.given_1RD = None

    @override
    def drop_head(self) -> None:
        if not self.has_head:
            return
        kept, parent = f"causal.{self._wrapper_path}.", self.causal
        left_out = [
            re.escape(self.checkpoint_name(f"{path}.{name}"))
            for path, module in self.stored_modules()
            for name in module.tensors()
            if not path.startswith(kept)
        ]
        for name in self._wrapper_path.split("."):
            for other in parent._modules.keys() - {name}:
                delattr(parent, other)
            parent = parent.get_submodule(name)
        self.has_head = False
        self.ties = {path: held for path, held in self.ties.items() if path.startswith(kept)}
        if self.tables is not None:
            del self.tables.uses[f"{self._head_name}.weight"]
        self.ignored_tensors = (*self.ignored_tensors, *left_out)

    @cached_property
    def not_modelled(self) -> list[tuple[RowAxis, Op]]:
        """The calls of ops that stand for the class's code between our ops, which is traced for a price."""
        return self._trace_code()

    def _trace_code(self) -> list[tuple[RowAxis, Op]]:
        """Trace the class at several sizes, and return the calls of ops that stand for its code between our ops."""

        def run(size: TraceSize, trace: AtenTrace) -> None:
            self._run_class({TOKENS: size.tokens, LOGITS: size.logits})

        with emptied(self), AssumesTrue():
            kernels = trace_kernels(self.causal, run, ROW_SIZES, format_of(self.storage.dtype).name)
        return add_not_modelled(self.causal, kernels)

    @override
    def _run_on_meta(self, rows: Mapping[RowAxis, int]) -> None:
        self._run_class(rows)
        for axis, op in self.not_modelled:
            self._rows = rows[axis]
            op(torch.empty(self._rows))

    def _run_class(self, rows: Mapping[RowAxis, int]) -> None:
        """Run the class on the meta device, without the calls of ops that stand for its code."""
        super()._run_on_meta(rows)

    @contextmanager
    @override
    def on_meta(self, listener: CallListener) -> Iterator[None]:
        """Report each op's call, with its first input row by row, while the context is open.

        A few calls whose rows are no tokens, such as that of a norm over compressed keys, are left out.
        """

        def by_rows(path: str, op: Any, inputs: tuple[Any, ...], output: Any) -> None:
            first, rows = inputs[0], self._rows
            if rows in first.shape or len(first) % rows == 0:
                listener(path, op, (first if len(first) == rows else first.reshape(rows, -1), *inputs[1:]), output)

        assert self.not_modelled is not None  # adds ops, whose calls are reported too
        with super().on_meta(by_rows), AssumesTrue():
            yield
