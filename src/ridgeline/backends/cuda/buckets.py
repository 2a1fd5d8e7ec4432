"""The steps that the CUDA backend captures as graphs, and the buckets of sizes as which they run."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ridgeline.backends.cuda.cuda_coverage import attends
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.backend import ReplayShape
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.latent_attention import LatentAttention
from ridgeline.core.ops.recurrence import Recurrence
from ridgeline.core.ops.work import ENCODER, Work

CAPTURED_BATCHES = (1, 2, 4, *range(8, 257, 8))
"""The buckets of decode steps that are captured: a batch runs as the next larger one. The kernels of a batch larger
than the last one run for longer than Python takes to ask for them."""

CAPTURED_ROWS = (*range(16, 129, 16), *range(160, 513, 32), *range(576, 2049, 64))
"""The buckets of rows of steps with prompts that are captured. From 64 rows on, no step runs a quarter more than it
has, and from 512 on, none an eighth more."""

CAPTURED_SEQUENCES = (1, 8, 64, 256)
"""The buckets of their sequences, and of the rows whose logits are wanted."""

ASKED_FLOPS = 1e11
"""The FLOPs that a large GPU does while Python asks for an op: 160 us of 600 TFLOP/s (benchmarks/gpu.md)."""


@dataclass(frozen=True, slots=True)
class CapturedSteps:
    """The steps that are captured: those without adapters or an encoder that fit a bucket. most_rows: of a step with
    prompts.
    """

    most_rows: int

    title: ClassVar[str] = "captured steps"
    how: ClassVar[str] = "captured"

    def shape_of(self, work: Work) -> ReplayShape | None:
        """Return the bucket in which a step is captured, or None if it fits none."""
        if work.adapted or work.rows.get(ENCODER):
            return None
        sizes = work.tokens, work.logit_rows, work.sequences
        return captured_shape(*sizes, self.most_rows, verifies=work.is_verify)

    def largest(self, tokens: int) -> ReplayShape:
        """Return the largest bucket: of prompts or of decode steps in its rows, of decode steps in its logits."""
        most = CAPTURED_BATCHES[-1]
        prompts = captured_shape(min(tokens, self.most_rows), 0, 0, self.most_rows, verifies=False)
        return ReplayShape(most if prompts is None else max(most, prompts.rows), most)

    def held_bytes(self, model: nn.Module) -> None:
        """Return None: graphs share their memory, in which results come and go."""


def captures(model: nn.Module) -> bool:
    """Return whether a step asks nothing of the host, so that it is captured as a CUDA graph: the kernels read all that
    is kept, through tables on the GPU, and no experts are counted.
    """
    if not isinstance(model, Model) or not model.has_head or model.encodes:
        return False
    ops = [op for _, op in model.ops()]
    asks = any(isinstance(op, Experts | Recurrence | LatentAttention) for op in ops)
    return not asks and all(attends(op) for op in ops if isinstance(op, Attention))


def most_captured_rows(model: nn.Module) -> int:
    """Return the most rows of a step with prompts that is captured; 0 for a model whose steps are not.

    A large GPU multiplies more rows for longer than Python takes to ask for their ops, which are asked for one by one
    then.
    """
    if not captures(model):
        return 0
    assert isinstance(model, Model)
    ops = [op for _, op in model.ops()]
    most = len(ops) * ASKED_FLOPS / (2 * sum(op.parameter_count() for op in ops))
    return max((rows for rows in CAPTURED_ROWS if rows <= most), default=0)


def captured_shape(tokens: int, logits: int, sequences: int, most: int, *, verifies: bool) -> ReplayShape | None:
    """Return the bucket of a step of so many rows, rows of logits and sequences; None if it is not captured. most: rows
    of one with prompts. verifies: whether each row is one of logits too.
    """
    if verifies:
        rows = _next(CAPTURED_BATCHES, tokens)
        return None if rows is None else ReplayShape(rows, rows)
    rows, wanted = _next(CAPTURED_ROWS, tokens), _next(CAPTURED_SEQUENCES, max(logits, sequences))
    return None if rows is None or rows > most or wanted is None else ReplayShape(rows, wanted)


def _next(buckets: Sequence[int], count: int) -> int | None:
    place = bisect_left(buckets, count)
    return buckets[place] if place < len(buckets) else None
