"""The cost of an encoder's code outside our ops, and of calls of our ops over other rows than those of tokens.

Some classes multiply tables of relative positions by the matrices of a layer (DeBERTa), or look up a bias for each pair
of tokens (MPNet). Such a call of an op has no row for each token. Its cost is part of what is not modelled.
"""

from copy import copy
from typing import Any

import torch

from ridgeline.core.models.common.priced_module import call_hooks
from ridgeline.core.models.from_transformers.aten_costs import AtenTrace
from ridgeline.core.models.from_transformers.aten_fusion import FusedKernel
from ridgeline.core.models.from_transformers.aten_table import OTHER, PRODUCT
from ridgeline.core.models.from_transformers.class_code_ops import ClassOp
from ridgeline.core.models.from_transformers.class_encoder import ClassEncoder
from ridgeline.core.models.from_transformers.cost_fit import Basis, TraceSize, fit
from ridgeline.core.models.from_transformers.meta_tracing import rows_of_call
from ridgeline.core.models.from_transformers.not_modelled import add_not_modelled, trace_kernels
from ridgeline.core.ops.kv_context import Uncached
from ridgeline.core.ops.linear import Linear
from ridgeline.core.ops.number_formats import format_of
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import FULL, StepSegment

_SIZES = tuple(TraceSize(tokens, tokens, logits) for tokens, logits in ((11, 1), (13, 1), (17, 2), (23, 1), (29, 3)))
"""The sizes of the traced texts: numbers that no other size of a model is."""


def trace_costs(model: ClassEncoder) -> None:
    """Add ops to an encoder on the meta device for all that it computes outside our ops, in `not_modelled`.

    Raises:
        NotLinear: If the work of some code is not linear in the tokens of a text and in its pairs of tokens.
    """
    others: dict[TraceSize, list[FusedKernel]] = {size: [] for size in _SIZES}

    def run(size: TraceSize, trace: AtenTrace) -> None:
        rows = size.tokens

        def note(path: str, op: Op, inputs: tuple[Any, ...], output: Any) -> None:
            if rows not in rows_of_call(inputs, output).shape:
                others[size].append(_call(model, path, op, inputs, output))

        ids_T = torch.empty(rows, dtype=torch.int64)
        with call_hooks(model.ops(), note), model.meta():
            model.hidden(ids_T, ids_T, Uncached([StepSegment(rows, rows)]), ids_T)

    dtype = format_of(model.storage.dtype).name
    bases: tuple[Basis, ...] = ("rows",) if model.run.packed else ("rows", "texts")
    kernels = trace_kernels(model.encoder, run, _SIZES, dtype, bases)
    calls = fit(list(others.items()), dtype, bases)
    pattern = None if model.run.packed else FULL
    model.not_modelled = add_not_modelled(model.encoder, [*kernels, *calls], lambda _: pattern)


def _call(model: ClassEncoder, path: str, op: Op, inputs: tuple[Any, ...], output: Any) -> FusedKernel:
    """Return one call of an op over rows that are no tokens."""
    rows = rows_of_call(inputs, output).shape[0]
    if isinstance(op, ClassOp):
        op = copy(op)
        op.observe(inputs, output, rows)
    owner, _, name = path.removeprefix("encoder.").rpartition(".")
    class_name = type(model.encoder.get_submodule(owner)).__name__
    category = PRODUCT if isinstance(op, Linear) else OTHER
    return FusedKernel((owner, class_name, category, (name,)), op.cost_of(rows))
