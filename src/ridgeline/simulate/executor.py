"""An executor that runs nothing: it says what a plan's step would take, and ends each request at its length."""

from collections.abc import Callable, Sequence

from ridgeline.engine.sampling.row import Sampled, SampleRow
from ridgeline.engine.step_plan import StepPlan

END_ID, OTHER_ID = 0, 1
"""The end token of every model that is simulated, and the one that stands for all others."""

_END, _OTHER = Sampled(END_ID), Sampled(OTHER_ID)


class PricedExecutor:
    """As engine.Executor. It alone knows how long answers will be: the engine is told of an end when it comes."""

    def __init__(self, nanoseconds: Callable[[StepPlan], int]) -> None:
        """nanoseconds: what the step of a plan takes. took: what the last one did."""
        self._nanoseconds = nanoseconds
        self.took = 0
        self._left: dict[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._answers: dict[int, Sequence[int]] = {}

    def expect(self, request: int, tokens: int, answer: Sequence[int] = ()) -> None:
        """A request ends with its `tokens`-th token. answer: the first of them, where a trace knows what they are."""
        self._left[request] = self._lengths[request] = tokens
        if answer:
            self._answers[request] = answer

    def forget(self, request: int) -> int:
        """It has ended; how many tokens it was given."""
        self._answers.pop(request, None)
        return self._lengths.pop(request) - self._left.pop(request)

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled]:
        """Price the plan and give each of its logit rows a token; nobody is made to wait."""
        self.took = self._nanoseconds(plan)
        left, answers, given = self._left, self._answers, []
        for item in plan.items:
            if item.logits:
                tokens = left[item.request] = left[item.request] - 1
                other = self._known(item.request) if item.request in answers else _OTHER
                given.append(other if tokens else _END)
        return given

    def _known(self, request: int) -> Sampled:
        """The next token of an answer that a trace knows something of."""
        answer, place = self._answers[request], self._lengths[request] - self._left[request] - 1
        return Sampled(answer[place]) if place < len(answer) else _OTHER
