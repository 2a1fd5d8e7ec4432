"""The batch of a step: its rows, sequence lengths and page tables, the same for every backend.

Each backend derives its own form once per step (core/ops/paged_attention.py is PyTorch's). Row counts, lengths and page
tables are on the host, which makes decisions by them. Index tensors for ops are on the device.

Shapes: T token rows, E encoder rows, R rows whose results are needed, B sequences, N rows of either axis.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor

from ridgeline.core.ops.work import AttentionPattern, AttentionWork, StepSegment


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a step of one kind (token rows or encoder rows), sequence after sequence."""

    ids_N: Tensor
    """The token id of each row, int64; for an encoder that reads features, the features, fp32 [N, width]."""
    positions_N: Tensor
    """The position of each row in its sequence, int64."""
    starts: Sequence[int]
    """The B + 1 boundaries of the sequences: sequence b has the rows from starts[b] to starts[b + 1]."""

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def counts(self) -> list[int]:
        """The number of a step's rows in each sequence."""
        return [stop - start for start, stop in pairwise(self.starts)]


@dataclass(frozen=True, slots=True)
class GroupPageTables:
    """The page tables of one KV group in a step."""

    slots_N: Tensor
    """The slot of each row's keys and values, page x S + offset, int64.

    The rows are encoder rows if the group stores encoder positions, and token rows otherwise. If the group stores
    recurrent states, this is the page of each sequence.
    """
    pages: Sequence[Sequence[int]]
    """The pages, by sequence, that hold the keys and values (or the state) that the sequence's rows read."""
    first: Sequence[int]
    """The position, by sequence, of the first key in the pages that the sequence's rows read."""


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """The input of one forward pass of a language model."""

    tokens: Rows
    """The ids, positions and sequence boundaries of the token rows that a step runs through the model's layers."""
    encoder: Rows
    """The rows that the encoder runs in this step: none of a sequence without new inputs; an image is one sequence."""
    wanted_R: Tensor
    """The indices of the token rows whose hidden states or logits are needed, int64."""
    lengths: Sequence[int]
    """The length in tokens of each sequence, the positions of this step included."""
    encoded: Sequence[int]
    """The number of encoder positions that each sequence attends to."""
    tables: Sequence[GroupPageTables]
    """The page tables of the step's sequences, one entry per KV group (layers that share pages)."""
    adapters: Sequence[int] = ()
    """The number of each sequence's LoRA adapter, from 1, or 0 for none; empty if no sequence uses one."""
    _attention: dict[AttentionPattern, AttentionWork] = field(default_factory=dict, compare=False, repr=False)

    def attention(self, reach: AttentionPattern) -> AttentionWork:
        """Return one layer's attention work of a pattern in this step: its queries, pairs and keys.

        They are computed once per step, and are those that a price counts.
        """
        if reach not in self._attention:
            segments = zip(self.tokens.counts, self.lengths, strict=True)
            self._attention[reach] = AttentionWork.of(StepSegment(*each).attention(reach) for each in segments)
        return self._attention[reach]
