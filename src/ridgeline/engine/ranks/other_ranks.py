"""The other ranks of a model, which do what the runner of the first does."""

from contextlib import AbstractContextManager, nullcontext

from ridgeline.engine.step_plan import StepPlan

_NOBODY: AbstractContextManager[None] = nullcontext()


class OtherRanks:
    """The other ranks of a model that a single process runs: none, so that every method does nothing.

    Each method returns a context that lasts while this rank does the same. `several` tells whether there are other
    ranks.
    """

    several = False

    def prepare(self, plan: StepPlan) -> AbstractContextManager[None]:
        """Have the other ranks execute Runner.prepare."""
        return _NOBODY

    def hidden(self) -> AbstractContextManager[None]:
        """Have the other ranks execute Runner.hidden, with the batch that they prepared last."""
        return _NOBODY

    def head(self, first: int, count: int) -> AbstractContextManager[None]:
        """Have the other ranks execute Runner.head for `count` of the rows that `hidden` returned last.

        Args:
            first: The index of the first of these rows.
            count: The number of rows.
        """
        return _NOBODY

    def save_states(self) -> AbstractContextManager[None]:
        """Have the other ranks execute Runner.save_states."""
        return _NOBODY

    def rewind(self) -> AbstractContextManager[None]:
        """Have the other ranks execute Runner.rewind."""
        return _NOBODY
