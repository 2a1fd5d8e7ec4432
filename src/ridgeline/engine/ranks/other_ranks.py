"""The other ranks of a model, which do what the runner of its first part does."""

from contextlib import AbstractContextManager, nullcontext

from ridgeline.engine.step_plan import StepPlan

_NOBODY: AbstractContextManager[None] = nullcontext()


class OtherRanks:
    """The other ranks of a model that one process runs, which has none.

    Each method returns a context that lasts while this rank does the same. several: whether there are any.
    """

    several = False

    def prepare(self, plan: StepPlan) -> AbstractContextManager[None]:
        """Have them do as Runner.prepare."""
        return _NOBODY

    def hidden(self) -> AbstractContextManager[None]:
        """Have them do as Runner.hidden, with the batch that they prepared last."""
        return _NOBODY

    def head(self, first: int, count: int) -> AbstractContextManager[None]:
        """Have them do as Runner.head, with so many of the rows that `hidden` gave last, from the row `first` on."""
        return _NOBODY

    def save_states(self) -> AbstractContextManager[None]:
        """Have them do as Runner.save_states."""
        return _NOBODY

    def rewind(self) -> AbstractContextManager[None]:
        """Have them do as Runner.rewind."""
        return _NOBODY
