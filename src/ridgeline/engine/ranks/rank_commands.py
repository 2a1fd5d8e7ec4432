"""The commands of the first rank to the others, in the order in which it executes them; plain data, in frames."""

from collections.abc import Sequence

import msgspec
from msgspec import structs

from ridgeline.engine.step_plan import StepPlan


class PrepareBatch(msgspec.Struct, tag="prepare", array_like=True, frozen=True):
    """The command to build the batch of a plan and make KV memory ready for it."""

    plan: StepPlan
    """The plan of the step to prepare."""


class ComputeHiddenStates(msgspec.Struct, tag="hidden", array_like=True, frozen=True):
    """The command to run the batch up to the hidden states of its wanted rows."""


class ComputeLogits(msgspec.Struct, tag="head", array_like=True, frozen=True):
    """The command to compute logits of some of the rows whose hidden states were computed last."""

    first: int
    """The index of the first row to compute logits of."""
    count: int
    """The number of rows to compute logits of."""


class SaveStates(msgspec.Struct, tag="save states", array_like=True, frozen=True):
    """The command to execute Runner.save_states: save recurrent states before each step."""


class Rewind(msgspec.Struct, tag="rewind", array_like=True, frozen=True):
    """The command to execute Runner.rewind: restore the states from before the last step."""


class TimeLink(msgspec.Struct, tag="time", array_like=True, frozen=True):
    """The command to measure the interconnect with all-reduces."""

    sizes: Sequence[int]
    """The message sizes of the all-reduces, in bytes."""
    rounds: int
    """The number of all-reduces of each message size."""


Command = PrepareBatch | ComputeHiddenStates | ComputeLogits | SaveStates | Rewind | TimeLink


def crossing(plan: StepPlan) -> StepPlan:
    """Return a plan that can be sent to other processes: its token ids are lists, because a range cannot be encoded."""
    items = tuple(structs.replace(item, tokens=list(item.tokens)) for item in plan.items)
    return StepPlan(plan.step, items, plan.copies, plan.blank, plan.forget)
