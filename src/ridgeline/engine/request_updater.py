"""The application of a step's outcomes to its requests: tokens, scores, hidden states, failures and ends."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from msgspec import structs

from ridgeline.engine.events import TokenEvent
from ridgeline.engine.request import FinishReason, Request
from ridgeline.engine.sampling.sample_row import HiddenStates, Outcome, RowFailure, Sampled, Scored
from ridgeline.engine.scheduler import Scheduler
from ridgeline.engine.step_plan import PlanItem, StepPlan

if TYPE_CHECKING:
    from ridgeline.engine.speculation.speculator import Speculator


class RequestUpdater:
    """The part of an engine that applies the outcomes of steps to their requests, and ends requests.

    `output_tokens` and `dropped_tokens` are as in `Stats`.
    """

    def __init__(
        self,
        requests: dict[int, Request],
        parked: dict[int, Request],
        scheduler: Scheduler,
        speculator: "Speculator | None",
    ) -> None:
        """Make an updater for an engine; it removes requests from the engine's maps when they end.

        Args:
            requests: The requests that have not ended, by id.
            parked: The first choices of those that wait for `Engine.begin`, by group.
            scheduler: The scheduler, which knows every request that is not parked.
            speculator: Receives every token, if there is one.
        """
        self._requests, self._parked, self._scheduler, self.speculator = requests, parked, scheduler, speculator
        self.output_tokens = self.dropped_tokens = 0
        self._ended: dict[tuple[int, int], int] = {}
        """The output lengths of the choices that ended with the last step, by group and choice."""

    def take(self, plan: StepPlan, outcomes: Sequence[Outcome], now: int) -> list[TokenEvent]:
        """Apply the outcomes of a plan to its requests; return the events, in the order of its items.

        Outcomes of requests that have ended since the plan was made are dropped.
        """
        events = list[TokenEvent]()
        self._ended.clear()
        given = _of_items(plan, outcomes)
        if self.speculator is None:
            path = self._scheduler.fast_path
            fast = path.accept(given, self._requests, now, events, general=self._take_one, end=self._end)
            self.output_tokens += fast
            self._scheduler.computed_tokens += fast
        else:  # the speculator needs every token
            for item, outcome in given:
                if item.request in self._requests:
                    self._take_one(self._requests[item.request], item, outcome, now, events)
        return events

    def drop(self, group: int, choice: int, kept: int) -> None:
        """Count the tokens of a completion past its first `kept` as dropped, because its text has ended before them.

        The choice may have ended with the last step.
        """
        ended = self._ended.pop((group, choice), None)
        if ended is not None:
            self.dropped_tokens += ended - kept
        request = self._requests.get(group + choice)
        if request is not None:
            assert 0 < kept <= request.output_length, f"cannot keep {kept} of {request.output_length} tokens"
            self.dropped_tokens += request.output_length - kept

    def finish(
        self, request: Request, finish: FinishReason, now: int, error: str | None = None, token: Sampled | None = None
    ) -> TokenEvent:
        """End a request and release its memory; return the event of its end.

        Every end of a request goes through this method.
        """
        request.finish, request.error = finish, error
        request.timing = replace(request.timing, finished=now)
        self._scheduler.release(request)
        if self._parked.get(request.group) is request:
            del self._parked[request.group]
        if self.speculator is not None:
            self.speculator.forget(request)
        del self._requests[request.id]
        scores = request.take_new_scores(last=True) if finish in (FinishReason.STOP, FinishReason.LENGTH) else None
        return TokenEvent(
            request.group, request.choice, token, now, request.cached, request.timing, finish, error, scores
        )

    def give_up(
        self, request: Request, reason: str | None, now: int, finish: FinishReason = FinishReason.ERROR
    ) -> list[TokenEvent]:
        """End a request and the further completions that were to start from its prompt; return their events."""
        return [self.finish(choice, finish, now, reason) for choice in (request, *request.children)]

    def _take_one(
        self, request: Request, item: PlanItem, outcome: Outcome | None, now: int, events: list[TokenEvent]
    ) -> None:
        """Apply the outcome of one plan item, of any kind, to its request."""
        if isinstance(outcome, Scored):
            if request.scores is not None:
                request.scores += outcome.scores
            outcome = outcome.sampled
            if outcome is None and request.scores is not None:
                events.append(self._token_event(request, None, now))
        if outcome is None:
            self._scheduler.commit(request, item)
            if request.computed == request.known:
                self._end_prompt(request, now, events)
        elif isinstance(outcome, RowFailure):
            events += self._end_without_token(request, outcome, now)
        elif isinstance(outcome, HiddenStates):
            self._take_hidden(request, item, outcome, now, events)
        else:
            self._take_tokens(request, item, (outcome,) if isinstance(outcome, Sampled) else outcome, now, events)

    def _take_tokens(
        self, request: Request, item: PlanItem, sampled: Sequence[Sampled], now: int, events: list[TokenEvent]
    ) -> None:
        """Append sampled tokens, at least one, to a request, up to one that ends it."""
        if request.timing.first_token is None:
            request.timing = replace(request.timing, first_token=now)
        if self.speculator is not None:
            self.speculator.verified(request, len(item.logits) - 1, [one.token for one in sampled])
        finish, known = None, request.known
        for one in sampled:
            finish = request.append(one.token)
            if finish is not None:
                self.dropped_tokens += len(sampled) - (request.known - known)
                break
            events.append(self._token_event(request, one, now))
        self.output_tokens += request.known - known
        self._scheduler.commit(request, item)
        self._start_children(request, now)
        if finish is not None:
            self._end(request, finish, one, now, events)

    def _start_children(self, request: Request, now: int) -> None:
        """Start the further completions of a request from the KV pages of its prompt, which is computed."""
        for child in request.children:
            self._scheduler.fork(request, child, now)
        request.children = []

    def _end_prompt(self, request: Request, now: int, events: list[TokenEvent]) -> None:
        """End a request whose prompt is computed and that wants no token."""
        assert not request.limit, "a token is sampled only for a request whose known tokens are all computed"
        request.timing = replace(request.timing, first_token=now)
        self._start_children(request, now)
        events.append(self.finish(request, FinishReason.LENGTH, now))

    def _end(self, request: Request, finish: FinishReason, last: Sampled, now: int, events: list[TokenEvent]) -> None:
        """End a request with its last token and append the events."""
        self._ended[request.group, request.choice] = request.output_length
        # A stop token is no text, but the token that completes a structured output is.
        completes = finish is FinishReason.STOP and last.token not in request.stop_ids
        if completes:
            events.append(self._token_event(request, last, now))
        events.append(self.finish(request, finish, now, token=None if completes else last))

    @staticmethod
    def _token_event(request: Request, one: Sampled | None, now: int) -> TokenEvent:
        """Return the event of a token that does not end its request, or of scores that come before the first token."""
        scores = None if request.scores is None else request.take_new_scores(last=one is not None)
        return TokenEvent(request.group, request.choice, one, now, request.cached, request.timing, None, None, scores)

    def _take_hidden(
        self, request: Request, item: PlanItem, states: HiddenStates, now: int, events: list[TokenEvent]
    ) -> None:
        """Take hidden states of a prompt; end the request with the last of them."""
        if request.hidden is not None:
            request.hidden.append(states.states_PD)
        self._scheduler.commit(request, item)
        if item.segment.kv_len == request.known:
            event = self.finish(request, FinishReason.STOP, now)
            events.append(structs.replace(event, hidden=np.concatenate(request.hidden or [states.states_PD])))

    def _end_without_token(self, request: Request, failure: RowFailure, now: int) -> list[TokenEvent]:
        """End a request for which no token could be sampled. Its output stays valid if its grammar allowed none."""
        guide = request.constraint
        if guide is None:
            return self.give_up(request, failure.reason, now)
        held = request.stop_ids if request.output_length < request.spec.params.min_tokens else ()
        end = guide.dead_end(held)
        if end is None:
            return self.give_up(request, failure.reason, now)
        return self.give_up(request, end.reason, now, FinishReason.STOP if end.whole else FinishReason.LENGTH)


def _of_items(plan: StepPlan, outcomes: Sequence[Outcome]) -> Iterable[tuple[PlanItem, Outcome | None]]:
    """Return the items of a plan with their outcomes; None for an item with neither logits nor scored rows."""
    if len(outcomes) == len(plan.items):
        return zip(plan.items, outcomes, strict=True)
    given = iter(outcomes)
    return [(item, next(given) if item.logits or item.scored else None) for item in plan.items]
