"""The decode steps that the CPU backend records and replays (call_recording.py)."""

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn

from ridgeline.backends.cpu.call_recording import MAX_RECORDED_ROWS, RecordingArena
from ridgeline.backends.cpu.cpu_coverage import covers
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.backend import ReplayShape
from ridgeline.core.ops.kv_layout import KVSpec
from ridgeline.core.ops.matrix.operands import DTYPES
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import Work


def records(model: nn.Module) -> bool:
    """Return whether a model's decode steps of few sequences are recorded for replay.

    The library must compute all ops of the model, with keys and values that it can read.
    """
    if not isinstance(model, Model) or not model.has_head or model.storage.dtype not in DTYPES:
        return False
    kept = all(isinstance(spec, KVSpec) and spec.grows for spec in model.kv_specs)
    return kept and all(map(covers, model.decode_ops()))


def recorded_bytes(model: Model) -> int:
    """Return the bytes that recorded decode steps hold, or 0 if the model's steps are not recorded.

    These are the results of all ops of the largest step, computed from their shapes.
    """
    if not records(model):
        return 0
    memory = RecordingArena("meta")

    def add_bytes(_: str, op: Op, inputs: tuple[Any, ...], output: Any) -> None:
        results = output if isinstance(output, tuple) else (output,)
        fresh = [result for result in results if all(result is not given for given in inputs)]
        if isinstance(op, Attention) and op.rope is not None:
            fresh += inputs[:2]  # rotated, next to what they were
        for tensor in fresh:
            memory.take(tensor.shape, tensor.dtype)

    model.trace_calls(dict.fromkeys(model.row_axes, MAX_RECORDED_ROWS), add_bytes)
    return memory.nbytes


@dataclass(frozen=True, slots=True)
class RecordedSteps:
    """The recorded steps of a model: decode steps of few rows, also with draft tokens, but without adapters."""

    title: ClassVar[str] = "recorded decode steps"
    how: ClassVar[str] = "recorded"

    def shape_of(self, work: Work) -> ReplayShape | None:
        """Return the size of a recorded step, or None if the step is not recorded."""
        few = work.tokens <= MAX_RECORDED_ROWS and work.is_verify and not work.has_adapters
        return ReplayShape(work.tokens, work.logit_rows) if few else None

    def largest(self, tokens: int) -> ReplayShape:
        """Return the size of the largest recorded step."""
        return ReplayShape(MAX_RECORDED_ROWS, MAX_RECORDED_ROWS)

    def held_bytes(self, model: nn.Module) -> int:
        """Return the bytes of the results of all ops in the largest recorded step."""
        assert isinstance(model, Model), "only steps of language models can be recorded"
        return recorded_bytes(model)
