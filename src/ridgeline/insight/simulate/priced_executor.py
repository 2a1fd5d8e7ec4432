"""An executor that runs nothing: it says what a plan's step would take, and ends each request at its length."""

from collections.abc import Callable, Sequence

from ridgeline.engine.sampling.sample_row import Sampled, SampleRow
from ridgeline.engine.step_plan import PlanItem, StepPlan

END_ID, OTHER_ID = 0, 1
"""The end token of every model that is simulated, and the one that stands for all others."""

_END, _OTHER = Sampled(END_ID), Sampled(OTHER_ID)


class PricedExecutor:
    """As engine.Executor. It alone knows how long answers will be: the engine is told of an end when it comes."""

    def __init__(self, nanoseconds: Callable[[StepPlan], int]) -> None:
        """nanoseconds: what the step of a plan takes. took: what the last one did."""
        self._nanoseconds = nanoseconds
        self.took = 0
        self._last: dict[int, int] = {}  # the position whose logits give a request its last token
        self._answers: dict[int, tuple[int, Sequence[int]]] = {}

    def expect(self, request: int, prompt: int, tokens: int, answer: Sequence[int] = ()) -> None:
        """A request with a prompt of so many tokens ends with the `tokens`-th that it is given. answer: the first of
        these, where a trace knows what they are.
        """
        self._last[request] = prompt + tokens - 2
        if answer:
            self._answers[request] = prompt, answer

    def forget(self, request: int) -> None:
        """It has ended."""
        del self._last[request]
        self._answers.pop(request, None)

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled]:
        """Price the plan and give each of its logit rows a token; nobody is made to wait."""
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
        """The next token of an answer that a trace knows something of."""
        prompt, answer = self._answers[item.request]
        place = item.start + item.logits[0] + 1 - prompt
        return Sampled(answer[place]) if place < len(answer) else _OTHER
