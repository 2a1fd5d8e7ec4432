"""An executor that runs no model: it computes the priced duration of each step and ends requests at given lengths."""

from collections.abc import Callable, Sequence

from ridgeline.engine.sampling.sample_row import Sampled, SampleRow
from ridgeline.engine.step_plan import PlanItem, StepPlan

END_ID, OTHER_ID = 0, 1
"""The token that ends every simulated response, and the one that stands for all other tokens."""

_END, _OTHER = Sampled(END_ID), Sampled(OTHER_ID)


class PricedExecutor:
    """An engine executor that runs no model and only computes the predicted duration of each step plan.

    It alone knows the response lengths in advance; the engine sees the end token when it is sampled.
    """

    def __init__(self, nanoseconds: Callable[[StepPlan], int]) -> None:
        """Create an executor that gets a step plan's duration from `nanoseconds`; `took` is that of the last step."""
        self._nanoseconds = nanoseconds
        self.took = 0
        self._last: dict[int, int] = {}  # by request: the position whose logits give the last token
        self._answers: dict[int, tuple[int, Sequence[int]]] = {}

    def expect(self, request: int, prompt: int, tokens: int, answer: Sequence[int] = ()) -> None:
        """Set in advance after how many tokens a simulated request ends.

        Args:
            request: The request's number in the engine.
            prompt: Tokens of the prompt.
            tokens: Tokens of the response; the last one is the end token.
            answer: The first tokens of the response, if a trace knows them.
        """
        self._last[request] = prompt + tokens - 2
        if answer:
            self._answers[request] = prompt, answer

    def forget(self, request: int) -> None:
        """Drop the state of a request that has ended."""
        del self._last[request]
        self._answers.pop(request, None)

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled]:
        """Price the plan and return a token for each item that needs logits, without waiting."""
        self.took = self._nanoseconds(plan)
        last, answers = self._last, self._answers
        return [
            _END
            if item.start + wanted[0] == last[item.request]
            else self._known(item)
            if answers and item.request in answers
            else _OTHER
            for item in plan.items
            if (wanted := item.logits)
        ]

    def _known(self, item: PlanItem) -> Sampled:
        """Return the next token of a response whose first tokens a trace knows."""
        prompt, answer = self._answers[item.request]
        place = item.start + item.logits[0] + 1 - prompt
        return Sampled(answer[place]) if place < len(answer) else _OTHER
