"""Orders: what the first rank tells the others, in the order in which it does the same; plain data, as frames."""

from collections.abc import Sequence

import msgspec
from msgspec import structs

from ridgeline.engine.step_plan import StepPlan


class PrepareBatch(msgspec.Struct, tag="prepare", array_like=True, frozen=True):
    """Make a batch of a plan, and KV memory ready for it."""

    plan: StepPlan


class ComputeHiddenStates(msgspec.Struct, tag="hidden", array_like=True, frozen=True):
    """Run the batch up to the hidden states of the rows that are wanted."""


class ComputeLogits(msgspec.Struct, tag="head", array_like=True, frozen=True):
    """Give logits of so many of these rows, from one on."""

    first: int
    count: int


class SaveStates(msgspec.Struct, tag="save states", array_like=True, frozen=True):
    """As Runner.save_states."""


class Rewind(msgspec.Struct, tag="rewind", array_like=True, frozen=True):
    """As Runner.rewind."""


class TimeLink(msgspec.Struct, tag="time", array_like=True, frozen=True):
    """Add up messages of so many bytes, each so often."""

    sizes: Sequence[int]
    rounds: int


Command = PrepareBatch | ComputeHiddenStates | ComputeLogits | SaveStates | Rewind | TimeLink


def crossing(plan: StepPlan) -> StepPlan:
    """A plan whose ids are lists: a range says the same, and does not cross."""
    items = tuple(structs.replace(item, tokens=list(item.tokens)) for item in plan.items)
    return StepPlan(plan.step, items, plan.copies, plan.blank, plan.forget)
