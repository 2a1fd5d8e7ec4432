"""The sampling inputs of a plan's logit rows, made from the plan's requests."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Union, overload

from typing_extensions import override

from ridgeline.engine.request import Request
from ridgeline.engine.sampling.sample_row import History, SampleRow
from ridgeline.engine.step_plan import StepPlan
from ridgeline.engine.token_rules import TokenRuleProcessor

if TYPE_CHECKING:
    from ridgeline.engine.structured_output import OutputConstraint

AnyGuide = Union["OutputConstraint", TokenRuleProcessor, None]


class SampleRows(Sequence[SampleRow]):
    """The sampling inputs of a plan's logit rows, each of which is made when it is read.

    It describes its request at that moment, so it must be read before the plan's tokens are accepted.
    """

    def __init__(self, plan: StepPlan, requests: dict[int, Request]) -> None:
        self._plan, self._requests = plan, requests

    @override
    def __len__(self) -> int:
        return sum(len(item.logits) for item in self._plan.items)

    @override
    def __iter__(self) -> Iterator[SampleRow]:
        for item in self._plan.items:
            request = self._requests[item.request] if item.logits else None
            history, guide = (None, None) if request is None else (request.history, request.constraint)
            for offset in item.logits:
                assert request is not None
                if offset > item.logits[0]:  # the row after a guess samples as if the guess were right
                    history, guide = _after(item.tokens[offset], history, guide)
                yield _row(request, item.start + offset + 1, history, guide)

    @overload
    def __getitem__(self, index: int) -> SampleRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[SampleRow]: ...
    @override
    def __getitem__(self, index: int | slice) -> SampleRow | list[SampleRow]:
        return list(self)[index]


def _after(token: int, history: History | None, guide: AnyGuide) -> tuple[History | None, AnyGuide]:
    """Return copies of a history and a constraint that have taken one more, guessed token."""
    if history is not None:
        history = history.copy()
        history.append(token)
    if guide is not None:
        assert not isinstance(guide, TokenRuleProcessor), "a request with token rules has no draft tokens"
        guide = guide.ahead()
        guide.take(token)
    return history, guide


def _row(request: Request, position: int, history: History | None, guide: AnyGuide) -> SampleRow:
    return SampleRow(
        request.spec.params,
        request.seed,
        position,
        request.choice,
        position - request.prompt_length,
        tuple(request.stop_ids),
        history,
        None if guide is None else guide.allowed(),
        None if guide is None else guide.timestamps,
    )
