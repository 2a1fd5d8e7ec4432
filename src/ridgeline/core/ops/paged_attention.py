"""Attention over a paged KV cache (PagedAttention: Kwon et al., arXiv:2309.06180), in PyTorch.

Keys and values that are stored as codes are read back as codes even in the step that writes them. A sequence's results
then do not depend on where its prefill chunks end.

Shapes: as in attention.py and forward_batch.py, and P pages, S positions per page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import torch
from torch import Tensor

from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.forward_batch import ForwardBatch, GroupPageTables
from ridgeline.core.ops.kv_context import KVContext
from ridgeline.core.ops.kv_layout import NULL_PAGE, KVGroup, KVSpec
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.layer_pages import LayerPages
from ridgeline.core.ops.paged_state import StateGroup, StatePages
from ridgeline.core.ops.recurrence import Recurrence
from ridgeline.core.ops.torch_attention import attend_each, attend_padded, attend_segment, value_of, visible
from ridgeline.core.ops.work import ENCODER, MAX_VERIFY_TOKENS


@dataclass(frozen=True, slots=True)
class PagedDecode:
    """Sequences with one query each, with their page tables padded to one length."""

    rows_B: Tensor
    """The index of each decoding sequence's row in the step."""
    pages_BP: Tensor
    """The KV pages that each decoding sequence's query sees, padded to one length."""
    distance_BL: Tensor
    """The key position minus the query position for each position gathered from pages, int64."""
    visible_BL: Tensor
    """Whether a sequence's query sees each position gathered from its pages."""


@dataclass(frozen=True, slots=True)
class PagedSegment:
    """A sequence with several queries in a step, which are the rows [start, stop)."""

    start: int
    stop: int
    keys: int
    """The number of positions that a sequence's queries attend to."""
    first: int
    """The first position that a sequence's queries attend to."""
    pages_1P: Tensor | None
    """The pages that a sequence's queries read; None if all positions are new, so that nothing is gathered."""


class PagedGroup:
    """A step's sequences as PyTorch attends to them, for the layers of one KV group, which all use the same object."""

    def __init__(self, spec: KVSpec, page_size: int, batch: ForwardBatch, tables: GroupPageTables) -> None:
        self.slots_N, self.device = tables.slots_N, tables.slots_N.device
        self.spec, self.page_size, self.tables = spec, page_size, tables
        self.lengths = batch.lengths if spec.grows else batch.encoded
        decodes: dict[int, list[tuple[int, int]]] = {}
        self.segments: list[PagedSegment] = []
        for sequence, (start, stop) in enumerate(pairwise(batch.tokens.starts)):
            if stop - start == 1:
                decodes.setdefault(self._bucket(self.lengths[sequence]), []).append((sequence, start))
            else:
                new = spec.grows and stop - start == self.lengths[sequence]
                self.segments.append(self._segment(sequence, start, stop, new=new))
        self.decodes = [self._decode(*zip(*bucket, strict=True)) for bucket in decodes.values()]

    def _bucket(self, length: int) -> int:
        """Return the length class of a decoding sequence; the sequences of one class share a call.

        At most half of a padded sequence is then padding.
        """
        seen = length - self.spec.first_seen(length - 1)
        return (seen // self.page_size).bit_length()

    def _segment(self, sequence: int, start: int, stop: int, *, new: bool) -> PagedSegment:
        """Return the part of a sequence with several queries, without pages if all its positions are new."""
        if new:
            return PagedSegment(start, stop, stop - start, 0, None)
        first, pages = self.tables.first[sequence], self.tables.pages[sequence]
        pages_1P = torch.tensor([pages], device=self.device)
        return PagedSegment(start, stop, self.lengths[sequence] - first, first, pages_1P)

    def _decode(self, sequences: Sequence[int], rows: Sequence[int]) -> PagedDecode:
        """Return sequences with one query each, with their page tables padded to the longest."""
        pages = [self.tables.pages[sequence] for sequence in sequences]
        width = max(map(len, pages))
        padded = [[*own, *[NULL_PAGE] * (width - len(own))] for own in pages]
        first_B1 = torch.tensor([[self.tables.first[sequence]] for sequence in sequences], device=self.device)
        last_B1 = torch.tensor([[self.lengths[sequence] - 1] for sequence in sequences], device=self.device)
        position_BL = first_B1 + torch.arange(width * self.page_size, device=self.device)
        return PagedDecode(
            torch.tensor(rows, device=self.device),
            torch.tensor(padded, device=self.device),
            position_BL - last_B1,
            visible(self.spec.reach, last_B1, position_BL) & (position_BL <= last_B1),
        )


class KVPages:
    """The pages of a model's KV cache, created once; PyTorch attends over them unless a backend subclasses it."""

    def __init__(
        self,
        layers: Mapping[int, LayerPages],
        groups: Sequence[KVGroup],
        states: Mapping[int, StatePages] = MappingProxyType({}),
    ) -> None:
        """Combine the pages of a model's layers, which exist already, into one KV cache.

        Args:
            layers: The pages of each attention layer, by layer index (`Attention.layer`).
            groups: The KV groups of the layers.
            states: The pages of each recurrent layer, by layer index.
        """
        self.layers, self.groups, self.states = layers, groups, states

    def context(self, batch: ForwardBatch) -> KVContext:
        """Return the KVContext of a step; it may be reused if the batch is the same."""
        return self.paged(batch)

    def paged(self, batch: ForwardBatch) -> "PagedKV":
        """Return the KVContext of a step in which PyTorch attends."""
        return PagedKV(self.layers, self.groups, batch, self.states)


class PartialKV:
    """The base class of KVContexts with a backend's kernels, which leave unsupported ops to PyTorch's `PagedKV`."""

    def __init__(self, pages: KVPages, batch: ForwardBatch | None) -> None:
        """Create a step's KV context over pages.

        Args:
            pages: The pages of the KV cache.
            batch: The batch of the step; None for a replayed step, in which PyTorch does nothing.
        """
        self._pages, self._own_batch = pages, batch
        self._others: PagedKV | None = None

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Store latents in pages and attend over them in PyTorch, for backends without such a kernel."""
        return self._in_torch().attend_latent(op, q_THD, kept_T1E)

    def recur(self, op: Recurrence, inputs: tuple[Tensor, ...]) -> Tensor:
        """Run a recurrent op in PyTorch and advance its states."""
        return self._in_torch().recur(op, inputs)

    def _in_torch(self) -> "PagedKV":
        if self._others is None:
            self._others = self._pages.paged(self._batch())
        return self._others

    def _batch(self) -> ForwardBatch:
        assert self._own_batch is not None, "a step that runs attention in torch cannot be replayed"
        return self._own_batch


class PagedKV:
    """The KVContext of a step over pages in PyTorch.

    It writes the step's keys and values to their slots, and reads each sequence through its page table.
    """

    def __init__(
        self,
        layers: Mapping[int, LayerPages],
        groups: Sequence[KVGroup],
        batch: ForwardBatch,
        states: Mapping[int, StatePages] = MappingProxyType({}),
    ) -> None:
        """Create a step's KV context over pages in PyTorch.

        Args:
            layers: The pages of each attention layer, by layer index (`Attention.layer`).
            groups: The KV groups of the layers.
            batch: The batch of the step.
            states: The pages of each recurrent layer, by layer index.
        """
        self.layers, self.batch, self.states = layers, batch, states
        self.views = {
            index: PagedGroup(group.spec, group.page_size, batch, tables)
            for index, (group, tables) in enumerate(zip(groups, batch.tables, strict=True))
            if isinstance(group.spec, KVSpec)
        }
        held = {store.group for store in states.values()}
        self.state_views = {index: StateGroup(batch, batch.tables[index]) for index in held}

    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """Store a layer's new keys and values, and attend each of the step's queries to its sequence: [T, H, W]."""
        if not op.spec.is_cached:
            assert k_NKD is not None, "without a cache all keys must be given"
            counts = (self.batch.encoder if op.attention_pattern.query_axis == ENCODER else self.batch.tokens).counts
            return attend_each(op, q_THD, k_NKD, v_NKW, counts, counts)
        store, scales = self.layers[op.layer], op.kv_scales
        view = self.views[store.group]
        if k_NKD is not None:
            k_NKD, v_NKW = store.write(view.slots_N, k_NKD, v_NKW, scales)
        out_THW = q_THD.new_empty(q_THD.shape[0], q_THD.shape[1], op.value_dim)
        for decode in view.decodes:
            k_KBLD, v_KBLW = store.gather(decode.pages_BP, scales)
            out_THW[decode.rows_B] = attend_padded(
                op, q_THD[decode.rows_B], k_KBLD, value_of(op, k_KBLD, v_KBLW), decode.distance_BL, decode.visible_BL
            )
        for s in view.segments:
            if s.pages_1P is None:
                assert k_NKD is not None, "new positions need keys"
                k_KLD = k_NKD[s.start : s.stop].transpose(0, 1)
                v_KLW = None if v_NKW is None else v_NKW[s.start : s.stop].transpose(0, 1)
            else:
                k_KLD, v_KLW = (block[:, 0, : s.keys] for block in store.gather(s.pages_1P, scales))
            out_THW[s.start : s.stop] = attend_segment(
                op, q_THD[s.start : s.stop], k_KLD, value_of(op, k_KLD, v_KLW), s.first
            )
        return out_THW

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """Store a layer's new latents, and attend each of the step's queries to its sequence: [T, H, W]."""
        store = self.layers[op.layer]
        view = self.views[store.group]
        kept_T1E, _ = store.write(view.slots_N, kept_T1E, None)
        one, few, many = op.expanded(self.batch.attention(op.attention_pattern))
        out_THW = q_THD.new_empty(*q_THD.shape[:2], op.sizes.value)
        for d in view.decodes:
            kept_1BLE, _ = store.gather(d.pages_BP)
            out_THW[d.rows_B] = op.over_padded(q_THD[d.rows_B], kept_1BLE, d.distance_BL, d.visible_BL, expanded=one)
        for s in view.segments:
            if s.pages_1P is None:
                kept_1LE = kept_T1E[s.start : s.stop].transpose(0, 1)
            else:
                kept_1LE = store.gather(s.pages_1P)[0][:, 0, : s.keys]
            expanded = few if s.stop - s.start <= MAX_VERIFY_TOKENS else many
            out_THW[s.start : s.stop] = op.over_segment(q_THD[s.start : s.stop], kept_1LE, s.first, expanded=expanded)
        return out_THW

    def recur(self, op: Recurrence, inputs: tuple[Tensor, ...]) -> Tensor:
        """Advance a recurrent layer's state of every sequence by the step's rows, and return the outputs: [T, W]."""
        store = self.states[op.layer]
        return self.state_views[store.group].recur(op, store.numbers, inputs)
