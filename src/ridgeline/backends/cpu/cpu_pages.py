"""Attention over paged KV memory with our CPU kernels, which read each page in place, once for all heads that share it.

Shapes as in attention.py and forward_batch.py.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor
from typing_extensions import override

from ridgeline.backends.cpu.cpu_attention import CpuPagedAttention, CpuStepSequences
from ridgeline.backends.cpu.cpu_coverage import attends, reads_latents
from ridgeline.backends.cpu.library import Library
from ridgeline.backends.kernel_support import AttentionScoring, KVCodes
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.forward_batch import ForwardBatch
from ridgeline.core.ops.kv_layout import KVGroup, KVSpec
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.paged_attention import KVPages, PartialKV
from ridgeline.core.ops.paged_state import StatePages


class CpuPages(KVPages):
    """The KV pages of a model's layers in CPU memory, in the form that our kernels need."""

    def __init__(
        self,
        library: Library,
        layers: Mapping[int, LayerPages],
        groups: Sequence[KVGroup],
        states: Mapping[int, StatePages] = MappingProxyType({}),
    ) -> None:
        super().__init__(layers, groups, states)
        self.library = library
        self._kernels: dict[Attention, CpuPagedAttention] = {}

    def kernel(self, op: Attention) -> CpuPagedAttention:
        """Return the attention kernel of an op that our CPU kernels support."""
        if op not in self._kernels:
            pages, scoring = self.layers[op.layer], AttentionScoring.of(op)
            codes = KVCodes.of(op, pages)
            self._kernels[op] = CpuPagedAttention(
                self.library, op.heads, scoring, pages.k, pages.v, op.value_dim, op.spec.dtype, codes
            )
        return self._kernels[op]

    @override
    def context(self, batch: ForwardBatch) -> "CpuKV":
        """Return the KVContext of a step, after setting the kernels' thread count to PyTorch's."""
        self.library.share_threads()
        return CpuKV(self, [tables.slots_N for tables in batch.tables], {}, batch)


class CpuKV(PartialKV):
    """A KVContext in which our CPU kernels attend over pages.

    Its sequences belong to a batch, or, in a replayed step, are structures at fixed addresses whose contents change
    from step to step.
    """

    _pages: CpuPages

    def __init__(
        self,
        pages: CpuPages,
        slots: Sequence[Tensor],
        sequences: dict[int, CpuStepSequences],
        batch: ForwardBatch | None = None,
    ) -> None:
        """Store the slots and sequences of a step for its attention layers.

        Args:
            pages: Pages of the model.
            slots: Slots of the new keys and values, int64 [N], for each KV group.
            sequences: Sequences of each KV group. Those of a batch are created at first use.
            batch: Batch of the step, or None for a replayed step.
        """
        super().__init__(pages, batch)
        self._slots, self._sequences = slots, sequences

    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """Store new keys and values, if any, and return the attention of the queries -> [T, H, W]."""
        attend = self._attend if attends(op) else self._in_torch().attend
        return attend(op, q_THD, k_NKD, v_NKW)

    def _attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        group = self._pages.layers[op.layer].group
        return self._pages.kernel(op).attend(self._seen(group), q_THD, k_NKD, v_NKW, self._slots[group])

    @override
    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Attend over latents with our kernels, unless the step expands latents to keys and values."""
        if not reads_latents(op) or any(op.expanded(self._batch().attention(op.attention_pattern))):
            return super().attend_latent(op, q_THD, kept_T1E)
        return op.project_values(self._attend(op, op.absorb(q_THD), kept_T1E, None))

    def _seen(self, group: int) -> CpuStepSequences:
        """Return the lengths and pages of a step's sequences for the layers of one KV group."""
        if group not in self._sequences:
            spec, batch = self._pages.groups[group].spec, self._batch()
            assert isinstance(spec, KVSpec), "attention needs a KV cache, not a recurrent state"
            lengths, tables = batch.lengths if spec.grows else batch.encoded, batch.tables[group]
            self._sequences[group] = CpuStepSequences(batch.tokens.starts, lengths, tables.first, tables.pages)
        return self._sequences[group]
