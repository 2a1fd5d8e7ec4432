"""The steps that the CUDA backend captures as graphs, and their size buckets."""

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
"""The batch sizes for which decode steps are captured as CUDA graphs; a batch is padded to the smallest that holds it.

The kernels of larger batches run for longer than Python needs to launch them.
"""

CAPTURED_ROWS = (*range(16, 129, 16), *range(160, 513, 32), *range(576, 2049, 64))
"""The row counts for which steps with prompts are captured as CUDA graphs; a step is padded to the next of them.

From 64 rows on, padding adds less than a quarter to a step, and from 512 rows on, less than an eighth.
"""

CAPTURED_SEQUENCES = (1, 8, 64, 256)
"""The sequence counts for which steps with prompts are captured as CUDA graphs, and their counts of logit rows."""

FLOPS_PER_LAUNCH = 1e11
"""The FLOPs that a large GPU computes while Python launches one op: 160 us at 600 TFLOP/s (benchmarks/gpu.md)."""


@dataclass(frozen=True, slots=True)
class CapturedSteps:
    """The sizes of a model's steps that are captured as CUDA graphs; they use no LoRA adapters and run no encoder."""

    most_rows: int
    """The maximum number of rows of a step with prompts that is captured as a CUDA graph."""

    title: ClassVar[str] = "captured steps"
    how: ClassVar[str] = "captured"

    def shape_of(self, work: Work) -> ReplayShape | None:
        """Return the padded size of the CUDA graph that runs a step, or None if the step is not captured."""
        if work.has_adapters or work.rows.get(ENCODER):
            return None
        sizes = work.tokens, work.logit_rows, work.sequences
        return captured_shape(*sizes, self.most_rows, verifies=work.is_verify)

    def largest(self, tokens: int) -> ReplayShape:
        """Return a padded size that no captured step exceeds, if steps have at most this many tokens.

        Its rows are those of the largest step with prompts or of the largest captured batch, whichever has more. Its
        rows of logits are those of the largest captured batch.
        """
        most = CAPTURED_BATCHES[-1]
        prompts = captured_shape(min(tokens, self.most_rows), 0, 0, self.most_rows, verifies=False)
        return ReplayShape(most if prompts is None else max(most, prompts.rows), most)

    def held_bytes(self, model: nn.Module) -> None:
        """Return None instead of the bytes that op results hold between steps: all CUDA graphs share this memory."""


def captures(model: nn.Module) -> bool:
    """Return whether steps of a model need nothing from the host, so that they can be captured as CUDA graphs.

    The kernels must read all keys and values through page tables on the GPU. There must be no cross-attention, latent
    attention or recurrence, and no experts, whose rows are counted on the host.
    """
    if not isinstance(model, Model) or not model.has_head or model.has_cross_attention:
        return False
    ops = [op for _, op in model.ops()]
    asks = any(isinstance(op, Experts | Recurrence | LatentAttention) for op in ops)
    return not asks and all(attends(op) for op in ops if isinstance(op, Attention))


def most_captured_rows(model: nn.Module) -> int:
    """Return the maximum number of rows of a captured step with prompts, for a model whose steps are captured.

    A large GPU needs more time to multiply more rows than Python needs to launch the ops, so larger steps are launched
    op by op.
    """
    assert isinstance(model, Model)
    ops = [op for _, op in model.ops()]
    most = len(ops) * FLOPS_PER_LAUNCH / (2 * sum(op.parameter_count() for op in ops))
    return max((rows for rows in CAPTURED_ROWS if rows <= most), default=0)


def captured_shape(tokens: int, logits: int, sequences: int, most: int, *, verifies: bool) -> ReplayShape | None:
    """Return the padded size (bucket) of the CUDA graph that runs a step, or None if it is not captured.

    Args:
        tokens: Rows of the step.
        logits: Rows of logits.
        sequences: Sequences of the step.
        most: Maximum number of rows of a step with prompts.
        verifies: Whether every row is also a row of logits.
    """
    if verifies:
        rows = _next(CAPTURED_BATCHES, tokens)
        return None if rows is None else ReplayShape(rows, rows)
    rows, wanted = _next(CAPTURED_ROWS, tokens), _next(CAPTURED_SEQUENCES, max(logits, sequences))
    return None if rows is None or rows > most or wanted is None else ReplayShape(rows, wanted)


def _next(buckets: Sequence[int], count: int) -> int | None:
    """Return the smallest of the given sizes that is at least `count`, or None."""
    place = bisect_left(buckets, count)
    return buckets[place] if place < len(buckets) else None
