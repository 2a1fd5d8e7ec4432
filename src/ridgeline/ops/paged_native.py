"""Attention over paged KV memory by our own kernels: each page is read where it lies, once for all heads that share it.

Shapes as in attention.py and batch.py.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from ridgeline.ops.attention import Attention
from ridgeline.ops.batch import Batch
from ridgeline.ops.kernels import Library
from ridgeline.ops.kernels.attention import KeptCodes, PagedAttention, Scoring, Sequences
from ridgeline.ops.kv import KVGroup, KVSpec
from ridgeline.ops.latent import LatentAttention
from ridgeline.ops.layer_pages import LayerPages
from ridgeline.ops.paged import PagedKV
from ridgeline.ops.paged_state import StatePages
from ridgeline.ops.recurrence import Recurrence


class NativePages:
    """The pages of a model's layers, on the CPU, as our kernels take them; made once."""

    def __init__(
        self,
        library: Library,
        layers: Mapping[int, LayerPages],
        groups: Sequence[KVGroup],
        states: Mapping[int, StatePages] = MappingProxyType({}),
    ) -> None:
        """layers, states: as of PagedKV."""
        self.library, self.layers, self.groups, self.states = library, layers, groups, states
        self._kernels: dict[Attention, PagedAttention] = {}

    def kernel(self, op: Attention) -> PagedAttention:
        """The attention of an op that they take."""
        if op not in self._kernels:
            pages, reach = self.layers[op.layer], op.reach
            scoring = Scoring(reach.kind, reach.size, op.scale, op.softcap, op.sinks_H)
            codes = KeptCodes(pages.code, pages.k_scales, pages.v_scales, *op.kv_scales) if pages.code else None
            self._kernels[op] = PagedAttention(
                self.library, op.heads, scoring, pages.k, pages.v, op.value_dim, op.spec.dtype, codes
            )
        return self._kernels[op]


class NativeKV:
    """A KVContext over pages by our kernels; what they do not take is left to torch's `PagedKV`."""

    def __init__(self, pages: NativePages, batch: Batch) -> None:
        self.pages, self.batch = pages, batch
        self._views: dict[int, Sequences] = {}
        self._torch: PagedKV | None = None

    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """As KVContext.attend."""
        attend = self._attend if op.runs_natively else self._others().attend
        return attend(op, q_THD, k_NKD, v_NKW)

    def _attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        group = self.pages.layers[op.layer].group
        slots_N = self.batch.tables[group].slots_N
        return self.pages.kernel(op).attend(self._view(group), q_THD, k_NKD, v_NKW, slots_N)

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """As KVContext.attend_latent: our kernels read latents of which nothing is to be expanded."""
        if not op.read_natively or any(op.expanded(self.batch.attention(op.reach))):
            return self._others().attend_latent(op, q_THD, kept_T1E)
        return op.release(self._attend(op, op.absorb(q_THD), kept_T1E, None))

    def recur(self, op: Recurrence, inputs: tuple[Tensor, ...]) -> Tensor:
        """As KVContext.recur: torch runs recurrences."""
        return self._others().recur(op, inputs)

    def _view(self, group: int) -> Sequences:
        if group not in self._views:
            spec, tables = self.pages.groups[group].spec, self.batch.tables[group]
            assert isinstance(spec, KVSpec), "a state is not attended to"
            lengths = self.batch.lengths if spec.grows else self.batch.encoded
            self._views[group] = Sequences(self.batch.tokens.starts, lengths, tables.first, tables.pages)
        return self._views[group]

    def _others(self) -> PagedKV:
        if self._torch is None:
            self._torch = PagedKV(self.pages.layers, self.pages.groups, self.batch, self.pages.states)
        return self._torch
