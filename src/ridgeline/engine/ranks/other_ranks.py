"""The other ranks of a model, which do what the runner of the first does."""

from contextlib import AbstractContextManager, nullcontext

from ridgeline.engine.step_plan import StepPlan

_NO_CONTEXT: AbstractContextManager[None] = nullcontext()


class OtherRanks:
    """The other ranks of a model that a single process runs: none, so that every method does nothing.

    Each method returns a context that lasts while this rank does the same. `several` tells whether there are other
    ranks.
    """

    several = False

    def prepare(self, plan: StepPlan) -> AbstractContextManager[None]:
        """Have the other ranks build the batch of a plan and make KV memory ready for it (Runner.prepare)."""
        return _NO_CONTEXT

    def hidden(self) -> AbstractContextManager[None]:
        """Have the other ranks compute hidden states of the batch that they prepared last (Runner.hidden)."""
        return _NO_CONTEXT

    def head(self, first: int, count: int) -> AbstractContextManager[None]:
        """Have the other ranks compute logits of `count` of the rows of hidden states computed last (Runner.head).

        Args:
            first: The index of the first of these rows.
            count: The number of rows.
        """
        return _NO_CONTEXT

    def save_states(self) -> AbstractContextManager[None]:
        """Have the other ranks save recurrent states before each step from now on (Runner.save_states)."""
        return _NO_CONTEXT

    def rewind(self) -> AbstractContextManager[None]:
        """Have the other ranks restore the recurrent states from before the last step (Runner.rewind)."""
        return _NO_CONTEXT
