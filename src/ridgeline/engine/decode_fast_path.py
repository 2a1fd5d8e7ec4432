"""The fast path of decode: steps of a request that change nothing but its newest token and two counters."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ridgeline.engine.events import TokenEvent
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.request import FinishReason, Request
from ridgeline.engine.sampling.sample_row import Outcome, Sampled
from ridgeline.engine.step_plan import PlanItem

_LAST = (0,)
"""The logit row of a plan item that runs a single position: row 0."""

PlanOne = Callable[[Request, int, Sequence[int]], PlanItem]
"""A function that plans any request, given its number of positions in this step and guesses at its next tokens."""
TakeOne = Callable[[Request, PlanItem, Outcome | None, int, list[TokenEvent]], None]
"""A function that applies a step's outcome to any request at a given time, and appends the request's events."""
End = Callable[[Request, FinishReason, Sampled, int, list[TokenEvent]], None]
"""A function that ends a request with its last token, at a given time, and appends the request's events."""


class DecodeFastPath:
    """The planning and accepting of decode steps without calls to the KV cache manager, as long as that has no work.

    In general, a step makes three calls to the KV cache manager for each request. They allocate pages (`grow`), return
    the entries that the runner lacks (`unsent`), and publish or release pages (`commit`). If a request decodes, the
    results are known in advance until its newest page is full. `Request.decode_fast_until` is that limit. While fewer
    positions are computed, the request is on the path, and its next step runs its newest token and no other position.

    A request enters the path when one of its decode steps was planned in the general way (`items`), unless its plan
    items carry more than a token, such as an adapter or the input of an encoder. It leaves the path

    - at the position at which the KV cache manager has work; `accept` calls it when the request gets there,
    - if it loses its pages, because it is preempted, its step fails, or it ends (`leave`).

    Guesses at a request's next tokens take the general way for one step, and so does an outcome that is not a single
    token, such as a failure. Both leave the request on the path.
    """

    def __init__(self, ledger: KVCacheManager) -> None:
        self._ledger = ledger

    def items(
        self, grants: Mapping[Request, int], guesses: Mapping[Request, Sequence[int]], general: PlanOne
    ) -> list[PlanItem]:
        """Return a plan item for each request that was granted positions, in their order.

        Args:
            grants: Number of positions of each request that run. A request on the path has one.
            guesses: Guesses at next tokens that run, too.
            general: Plans the requests that are not on the path, or have guesses.
        """
        nothing = self._ledger.nothing
        return [
            PlanItem(request.id, request.computed, (request.tokens.output[-1],), nothing, False, _LAST)
            if request.computed < request.decode_fast_until and not (guesses and request in guesses)
            else self._entering(request, count, general(request, count, guesses.get(request, ())))
            for request, count in grants.items()
        ]

    def _entering(self, request: Request, count: int, item: PlanItem) -> PlanItem:
        """Put a request on the fast path if it decodes without adapter, encoder or images; return its plan item."""
        if (
            count == 1
            and request.tokens.output
            and request.known - request.computed == 1
            and not (request.adapter or request.spec.encoder or request.placed_images is not None)
        ):
            request.decode_fast_until = self._ledger.unchanged_until(request.id)
        return item

    def accept(
        self,
        outcomes: Iterable[tuple[PlanItem, Outcome | None]],
        requests: Mapping[int, Request],
        now: int,
        events: list[TokenEvent],
        *,
        general: TakeOne,
        end: End,
    ) -> int:
        """Take the outcomes of a step, in the order of its items; return how many were taken on the fast path.

        Each of these is one token and one computed position, which the caller counts.

        Args:
            outcomes: The items of the step, each with its outcome.
            requests: The requests that have not ended, by id. The outcomes of others are dropped.
            now: The time of the events, in nanoseconds of the engine's clock.
            events: The list to append the events to.
            general: Takes the outcomes that are not taken on the path.
            end: Ends a request whose token on the path is its last.
        """
        taken = 0
        for item, outcome in outcomes:
            request = requests.get(item.request)
            if request is None:
                continue
            if request.computed < request.decode_fast_until and isinstance(outcome, Sampled):
                taken += 1
                finish = request.append(outcome.token)
                request.computed += 1
                if request.computed == request.decode_fast_until:
                    self._ledger.commit(request.id, request.tokens, request.computed)
                if finish is None:
                    events.append(
                        TokenEvent(request.group, request.choice, outcome, now, request.cached, request.timing)
                    )
                else:
                    end(request, finish, outcome, now, events)
            else:
                general(request, item, outcome, now, events)
        return taken

    @staticmethod
    def leave(request: Request) -> None:
        """Take a request off the fast path of decode because it loses its KV pages."""
        request.decode_fast_until = 0
