"""The ops for the code of a release that no op of ours models, placed in the release's module tree."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from torch import nn

from ridgeline.core.models.from_transformers.aten_costs import AtenTrace, traced
from ridgeline.core.models.from_transformers.aten_fusion import fused_kernels
from ridgeline.core.models.from_transformers.cost_fit import Basis, FittedKernel, TraceSize, fit
from ridgeline.core.ops.op import Op
from ridgeline.core.ops.work import AttentionPattern, RowAxis

PatternOf = Callable[[str], AttentionPattern | None]
"""The function from a module's path to the keys that a query sees in it; None if it does not attend by itself."""

_NAME = "not_modelled"
"""The name of the modules that are added, before their number."""

ROW_SIZES = (TraceSize(8, 8, 1), TraceSize(16, 16, 1), TraceSize(16, 16, 3), TraceSize(24, 24, 5))
"""The sizes of traces of code whose rows do not depend on each other, because our ops do the attention."""


def sequence_sizes(unit: int = 8) -> tuple[TraceSize, ...]:
    """Return the sizes of traces of code that attends by itself or has a state.

    They are prompts, chunks of prompts after some positions, and a decode step. All lengths but that of the decode step
    are multiples of `unit`, the length of the chunks in which a recurrence runs.
    """
    chunks = ((1, 1, 1), (2, 2, 1), (1, 2, 1), (2, 3, 1), (1, 1, 2), (3, 5, 3), (3, 3, 1))
    sizes = (TraceSize(new * unit, keys * unit, logits) for new, keys, logits in chunks)
    return (*sizes, TraceSize(1, unit + 1, 1))


class TracedRun(Protocol):
    """A forward pass of a release's module, which `AtenTrace` watches."""

    def __call__(self, size: TraceSize, trace: AtenTrace) -> None:
        """Run a pass of a size on the meta device."""


def trace_kernels(
    root: nn.Module, run: TracedRun, sizes: Sequence[TraceSize], dtype: str, bases: Sequence[Basis] = ("rows",)
) -> list[FittedKernel]:
    """Return the kernels of a module's code outside our ops, as linear functions of the size of a step.

    Args:
        root: The module, on the meta device.
        run: The forward pass to trace.
        sizes: The sizes to trace: `ROW_SIZES` or those of `sequence_sizes`.
        dtype: The name of the number format of the model.
        bases: The terms in which costs may be linear.

    Raises:
        NotLinear: If the work of some code is not linear in the size.
    """
    traces = []
    for size in sizes:
        with traced(root) as trace:
            run(size, trace)
        traces.append((size, fused_kernels(trace.record)))
    return fit(traces, dtype, bases)


def add_not_modelled(
    root: nn.Module, kernels: Iterable[FittedKernel], pattern_of: PatternOf = lambda _: None
) -> list[tuple[RowAxis, Op]]:
    """Add ops for a release's code outside our ops to the modules whose code they stand for.

    Args:
        root: The release's module.
        kernels: The kernels of the code outside our ops.
        pattern_of: Returns the keys that a query sees in the module at a path.

    Returns:
        Each call of an op in a step, with the rows that it runs over. A price has to see these calls.
    """
    calls: list[tuple[RowAxis, Op]] = []
    for kernel in kernels:
        module = root.get_submodule(kernel.path)
        for axis, op in kernel.ops(pattern_of(kernel.path)):
            module.add_module(free_name(module, op), op)
            calls += [(axis, op)] * kernel.calls
    return calls


def free_name(module: nn.Module, op: Op) -> str:
    """Return a name in a module for an op of its code, which reports show: `unmodelled_copy`, `unmodelled_copy_2`."""
    name = f"unmodelled_{op.traced.replace(' ', '_')}"
    number = sum(each == name or each.startswith(f"{name}_") for each in module._modules) + 1
    return name if number == 1 else f"{name}_{number}"
