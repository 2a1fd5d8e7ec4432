"""The logit rows of a plan, as the sampler is told of them."""

from collections.abc import Iterator, Sequence
from typing import overload

from ridgeline.engine.request import Request
from ridgeline.engine.sampling.row import SampleRow
from ridgeline.engine.step_plan import StepPlan


class SampleRows(Sequence[SampleRow]):
    """What the sampler has to know about the logit rows of a plan. Each is made when it is read, from its request as it
    is then: before the plan's tokens are accepted."""

    def __init__(self, plan: StepPlan, requests: dict[int, Request]) -> None:
        self._plan, self._requests = plan, requests

    def __len__(self) -> int:
        return sum(len(item.logits) for item in self._plan.items)

    def __iter__(self) -> Iterator[SampleRow]:
        for item in self._plan.items:
            for offset in item.logits:
                yield self._row(self._requests[item.request], item.start + offset + 1)

    @overload
    def __getitem__(self, index: int) -> SampleRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[SampleRow]: ...
    def __getitem__(self, index: int | slice) -> SampleRow | list[SampleRow]:
        return list(self)[index]

    @staticmethod
    def _row(request: Request, position: int) -> SampleRow:
        guide = request.guide
        assert guide is None or position == request.known, "a guide knows what may follow the last token only"
        return SampleRow(
            request.params,
            request.seed,
            position,
            request.choice,
            position - request.prompt_length,
            tuple(request.stop_ids),
            request.history,
            None if guide is None else guide.allowed(),
            None if guide is None else guide.timestamps,
        )
