"""The batch: what a step runs, the same for whatever computes it. A backend (`core/ops/paged_attention.py` is torch's)
makes its own view of it, once a step.

Row counts, lengths and tables are known to the host, which decides by them; what ops index with lies on the device.
Shapes: T rows of tokens, E rows of an encoder, R rows that are wanted, B sequences, N rows of either space.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from torch import Tensor

from ridgeline.core.ops.work import AttentionPattern, AttentionWork, StepSegment


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one space, sequence after sequence.

    ids_N, positions_N: int64; of an encoder that reads features ids_N are those, fp32 [N, width]. starts: B + 1
    numbers; sequence b has the rows from starts[b] to starts[b + 1].
    """

    ids_N: Tensor
    positions_N: Tensor
    starts: Sequence[int]

    def __len__(self) -> int:
        return self.starts[-1]

    @property
    def counts(self) -> list[int]:
        """Rows of each sequence."""
        return [stop - start for start, stop in pairwise(self.starts)]


@dataclass(frozen=True, slots=True)
class GroupPageTables:
    """The page tables of one KV group.

    slots_N: int64, where the K and V of each row go: page x S + offset; rows of the encoder where the group keeps the
    encoder's positions, else of tokens; where it keeps states, the page of each sequence. pages: for each sequence
    those that hold what its rows see. first: the position with which each of these begins.
    """

    slots_N: Tensor
    pages: Sequence[Sequence[int]]
    first: Sequence[int]


@dataclass(frozen=True, slots=True)
class ForwardBatch:
    """A step.

    tokens, encoder: the rows of either space; a sequence whose encoder does not run in this step has none of the
    second, and one of several images has each apart. wanted_R: int64, the rows of tokens whose hidden states or logits
    are wanted. lengths: positions that each sequence has, those of this step included. encoded: positions of the
    encoder that each looks at. tables: by group. adapters: the number of the one that each sequence is asked of,
    counted from 1, 0 for none; empty where none is.
    """

    tokens: Rows
    encoder: Rows
    wanted_R: Tensor
    lengths: Sequence[int]
    encoded: Sequence[int]
    tables: Sequence[GroupPageTables]
    adapters: Sequence[int] = ()
    _attention: dict[AttentionPattern, AttentionWork] = field(default_factory=dict, compare=False, repr=False)

    def attention(self, reach: AttentionPattern) -> AttentionWork:
        """What attention of this reach has to do in one layer, as the step is priced by: counted once a step."""
        if reach not in self._attention:
            segments = zip(self.tokens.counts, self.lengths, strict=True)
            self._attention[reach] = AttentionWork.of(StepSegment(*each).attention(reach) for each in segments)
        return self._attention[reach]
