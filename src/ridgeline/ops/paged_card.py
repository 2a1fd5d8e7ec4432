"""Attention over paged KV memory by our kernels for cards: each page is read where it lies, through tables on the card.

Shapes as in attention.py and batch.py.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ridgeline.ops.attention import Attention, Keeping
from ridgeline.ops.batch import Batch
from ridgeline.ops.kernels.attention import KeptCodes, Scoring
from ridgeline.ops.kv import KVGroup, KVSpec
from ridgeline.ops.latent import LatentAttention
from ridgeline.ops.layer_pages import LayerPages
from ridgeline.ops.paged import PagedKV
from ridgeline.ops.paged_state import StatePages
from ridgeline.ops.recurrence import Recurrence
from ridgeline.ops.rotary import Angles
from ridgeline.ops.staging import staged

if TYPE_CHECKING:
    from ridgeline.ops.kernels.triton import PagedAttention, Seen

_Int = TypeVar("_Int", bound=np.integer)


class CardPages:
    """The pages of a model's layers as our kernels for cards take them; made once."""

    def __init__(
        self,
        layers: Mapping[int, LayerPages],
        groups: Sequence[KVGroup],
        states: Mapping[int, StatePages] = MappingProxyType({}),
    ) -> None:
        """layers, states: as of PagedKV."""
        self.layers, self.groups, self.states = layers, groups, states
        self._kernels: dict[Attention, PagedAttention] = {}

    def kernel(self, op: Attention) -> "PagedAttention":
        """The attention of an op that they take."""
        if op not in self._kernels:
            from ridgeline.ops.kernels.triton import PagedAttention

            pages, reach = self.layers[op.layer], op.reach
            scoring = Scoring(reach.kind, reach.size, op.scale, op.softcap, op.sinks_H)
            codes = KeptCodes(pages.code, pages.k_scales, pages.v_scales, *op.kv_scales) if pages.code else None
            self._kernels[op] = PagedAttention(op.heads, scoring, pages.k, pages.v, op.spec.dtype, codes)
        return self._kernels[op]


class OnPages(Keeping):
    """A KVContext over pages on a card. Where tables and slots are is for those to say who make one."""

    def __init__(self, pages: CardPages) -> None:
        self.pages = pages

    @abstractmethod
    def seen(self, group: int) -> "Seen":
        """The step's sequences as the layers of a group see them."""

    @abstractmethod
    def slots(self, group: int) -> Tensor:
        """Where the group's new keys and values go, int64 [N]."""

    def keep(self, op: Attention, q_THD: Tensor, k_NKD: Tensor, v_NKW: Tensor, angles: Angles | None) -> Tensor:
        """As Keeping.keep."""
        turns = q_THD if angles is not None else None  # else they are as they are, and may be of other rows than keys
        turned_THD = self.pages.kernel(op).keep(turns, k_NKD, v_NKW, self.slots(self._group(op)), angles)
        return q_THD if turned_THD is None else turned_THD

    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """As KVContext.attend."""
        kernel, group = self.pages.kernel(op), self._group(op)
        if k_NKD is not None:
            assert v_NKW is not None, "values are kept beside keys"
            kernel.keep(None, k_NKD, v_NKW, self.slots(group), None)
        return kernel.attend(self.seen(group), q_THD)

    def _group(self, op: Attention) -> int:
        return self.pages.layers[op.layer].group


class CardKV(OnPages):
    """A KVContext for any step; what our kernels do not take is left to torch's `PagedKV`. All that it tells the card
    of the step it tells when it is made, so that what follows can be captured."""

    def __init__(self, pages: CardPages, batch: Batch) -> None:
        super().__init__(pages)
        self.batch = batch
        self._seen = {
            index: _seen(batch, index, group.spec, group.page_size)
            for index, group in enumerate(pages.groups)
            if isinstance(group.spec, KVSpec)
        }
        self._torch: PagedKV | None = None

    def seen(self, group: int) -> "Seen":
        """As OnPages.seen."""
        return self._seen[group]

    def slots(self, group: int) -> Tensor:
        """As OnPages.slots."""
        return self.batch.tables[group].slots_N

    def attend(self, op: Attention, q_THD: Tensor, k_NKD: Tensor | None, v_NKW: Tensor | None) -> Tensor:
        """As KVContext.attend."""
        if op.read_on_card:
            return super().attend(op, q_THD, k_NKD, v_NKW)
        return self._others().attend(op, q_THD, k_NKD, v_NKW)

    def attend_latent(self, op: LatentAttention, q_THD: Tensor, kept_T1E: Tensor) -> Tensor:
        """As KVContext.attend_latent: torch reads latents."""
        return self._others().attend_latent(op, q_THD, kept_T1E)

    def recur(self, op: Recurrence, inputs: tuple[Tensor, ...]) -> Tensor:
        """As KVContext.recur: torch runs recurrences."""
        return self._others().recur(op, inputs)

    def _others(self) -> PagedKV:
        if self._torch is None:
            self._torch = PagedKV(self.pages.layers, self.pages.groups, self.batch, self.pages.states)
        return self._torch


def _seen(batch: Batch, group: int, spec: KVSpec, page_size: int) -> "Seen":
    """A step as the layers of a group see it: sequences with one query apart from those with several; all in one
    transfer."""
    from ridgeline.ops.kernels.triton import One, Seen, Several

    tables, counts = batch.tables[group], batch.tokens.counts
    lengths = batch.lengths if spec.grows else batch.encoded
    begins = accumulate(map(len, tables.pages), initial=0)
    # Kernels look up the page of a position, counted from the sequence's first.
    offsets = [begin - first // page_size for begin, first in zip(begins, tables.first, strict=False)]
    rooms = np.where(np.array(counts) > 1, rooms_of(np.array(lengths)), 0)
    *first_rows, in_all = accumulate(rooms.tolist(), initial=0)
    rows = np.array([offsets, lengths, batch.tokens.starts[:-1], counts, first_rows], np.int32)
    # One query first, then several, then none, whose keys are in no copy.
    rows[4, rows[3] == 0] = in_all
    rows = rows[:, np.argsort((rows[3] != 1) + (rows[3] == 0).astype(int), kind="stable")]
    ones = counts.count(1)
    before = np.cumsum(rows[3], dtype=np.int32) - rows[3] - np.int32(ones)
    pages = np.fromiter(chain.from_iterable(tables.pages), np.int32)
    numbers = staged(np.concatenate([rows.ravel(), before, pages]), tables.slots_N.device)
    table_6B, flat = numbers[: rows.size + len(before)].view(6, -1), numbers[rows.size + len(before) :]
    offset_C, length_C, row_C, count_C, begin_C, before_C = table_6B[:, ones:].unbind()
    queries = sum(counts) - ones
    return Seen(
        flat,
        One(*table_6B[:3, :ones].unbind()) if ones else None,
        Several(offset_C, length_C, row_C, count_C, before_C, begin_C, queries, max(counts), in_all)
        if queries
        else None,
    )


def rooms_of(lengths_C: NDArray[_Int]) -> NDArray[_Int]:
    """Rows that sequences of these lengths have in a copy of their keys and values."""
    from ridgeline.ops.kernels.triton import ROOM

    return -(-lengths_C // ROOM) * ROOM
