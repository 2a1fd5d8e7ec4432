"""The scheduler: decides which positions of which requests run next. One law: `computed` catches up with `known`.

It keeps no phases. A request that needs one position (it "decodes") and one that needs a thousand (it "prefills") are
candidates for the same token budget; the order of candidates is the policy.
"""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from ridgeline.engine.kv.ledger import KVLedger
from ridgeline.engine.plan import PlanItem, StepPlan
from ridgeline.engine.request import Request

MOST = 1 << 20  # buffers are allocated for a full step


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step may hold.

    tokens: positions of all requests together. chunk: positions of one request; None for as many as the budget allows.
    requests: requests under way at a time.
    """

    tokens: int = 2048
    requests: int = 256
    chunk: int | None = None

    @property
    def most_of_one(self) -> int:
        """Most positions of one request that a step runs."""
        return self.tokens if self.chunk is None else min(self.tokens, self.chunk)

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("requests", self.requests), ("chunk", self.chunk)):
            if value is not None and not 1 <= value <= MOST:
                raise ValueError(f"limit of {name} is {value}; it must be from 1 to {MOST}")


class Scheduler:
    """Requests waiting and running, and the pages they hold."""

    def __init__(self, ledger: KVLedger, limits: Limits) -> None:
        self.ledger, self.limits = ledger, limits
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival, the oldest first
        self.steps = 0
        self.preemptions = 0
        self.wasted_tokens = 0  # positions computed, lost to preemption, to be computed again
        self._forget: list[int] = []
        self._known_to_runner: set[int] = set()

    def add(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)

    def fork(self, parent: Request, child: Request) -> None:
        """Start `child` from its parent's pages; its last prompt position is computed again, for logits of its own."""
        computed = child.known - 1
        if len(self.running) < self.limits.requests and self.ledger.fork(parent.id, child.id, computed):
            self._start(child, computed)
        else:
            self.waiting.appendleft(child)

    def release(self, request: Request) -> None:
        """The only way out: whatever a request holds is given back, wherever it stands."""
        if request in self.running:
            self.running.remove(request)
            self.ledger.release(request.id)
            self._drop(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _drop(self, request: Request) -> None:
        if request.id in self._known_to_runner:
            self._known_to_runner.discard(request.id)
            self._forget.append(request.id)

    # -- one step -----------------------------------------------------------------------------------------------------

    def schedule(self, only: Collection[Request] | None = None) -> StepPlan | None:
        """The next step, or None if there is nothing to run. `only`: consider no other requests than these."""
        preemptions = self.preemptions
        grants = self._continue_running(only)
        # A step that took pages from one request gives none to another: the two would change places for ever.
        if self.preemptions == preemptions:
            self._admit(grants, only)
        if not grants:
            return None
        plan = StepPlan(
            self.steps,
            tuple(self._item(request, count) for request, count in grants.items()),
            tuple(self.ledger.copies),
            tuple(self.ledger.blank),
            tuple(self._forget),
        )
        self.steps += 1
        self.ledger.blank.clear()
        self._forget.clear()
        return plan

    def settle(self, plan: StepPlan, requests: dict[int, Request]) -> None:
        """Account for a step that has run: counters move, full pages are published."""
        self.ledger.copied(plan.copies)
        for item in plan.items:
            request = requests[item.request]
            request.computed = item.start + len(item.tokens)
            self.ledger.settle(request.id, request.tokens, request.computed)

    def undo(self, plan: StepPlan) -> None:
        """Account for a step that failed: its requests start again, for what it wrote is not to be trusted, and what
        the runner may not have heard is said again."""
        self._forget += plan.forget
        planned = {item.request for item in plan.items}
        for request in [request for request in reversed(self.running) if request.id in planned]:
            self.preempt(request)

    def preempt(self, request: Request) -> None:
        """Take a request's pages and put it back at the head of the queue; it keeps what it knows."""
        self.wasted_tokens += request.computed - self.ledger.shared_positions(request.id)
        self.preemptions += 1
        request.preemptions += 1
        self.running.remove(request)
        self.ledger.release(request.id)
        self._drop(request)
        request.computed = 0
        self.waiting.appendleft(request)

    def _continue_running(self, only: Collection[Request] | None) -> dict[Request, int]:
        """Grant positions and pages to running requests: those nearest to their next token first, then by arrival."""
        grants: dict[Request, int] = {}
        budget = self.limits.tokens
        for request in sorted(self.running, key=lambda r: r.known - r.computed > 1):
            if request.id not in self.ledger.tables or (only is not None and request not in only):
                continue
            count = min(self._wanted(request), budget)
            if count == 0:
                break
            while not self.ledger.grow(request.id, request.computed + count):
                victim = self._victim()
                budget += grants.pop(victim, 0)
                self.preempt(victim)
                if victim is request:
                    break
            else:
                grants[request] = count
                budget -= count
        return grants

    def _admit(self, grants: dict[Request, int], only: Collection[Request] | None) -> None:
        """Start waiting requests in order of arrival, while all that each one knows fits beside what runs.

        A request is not begun in the hope that pages come free: those that the running ones are owed are not its to
        take.
        """
        if not self.waiting:
            return
        budget = self.limits.tokens - sum(grants.values())
        for request in list(self.waiting):
            if only is not None and request not in only:
                continue
            if budget == 0 or len(self.running) >= self.limits.requests:
                break
            hit = self.ledger.admit(request.id, request.tokens, reserve=self.ledger.reserve)
            if hit is None:
                break
            self.waiting.remove(request)
            self._start(request, hit)
            count = min(self._wanted(request), budget)
            granted = self.ledger.grow(request.id, request.computed + count)
            assert granted, "admission looked at the pages that growth takes"
            grants[request] = count
            budget -= count

    def _start(self, request: Request, computed: int) -> None:
        request.computed = computed
        if not request.preemptions:  # later it may find pages that it filled itself
            request.cached = computed
        self.running.append(request)
        self.running.sort(key=lambda r: r.timing.arrived)

    def _wanted(self, request: Request) -> int:
        missing = request.known - request.computed
        return missing if self.limits.chunk is None else min(missing, self.limits.chunk)

    def _victim(self) -> Request:
        """The running request that loses least by starting again. The oldest is spared, so that it always ends."""
        spared, *others = self.running
        assert others, f"request {spared.id} alone does not fit the pool that it was admitted to"
        return min(reversed(others), key=lambda r: r.computed - self.ledger.shared_positions(r.id))

    def _item(self, request: Request, count: int) -> PlanItem:
        first, pages = self.ledger.unsent(request.id)
        self._known_to_runner.add(request.id)
        end = request.computed + count
        return PlanItem(
            request.id,
            request.computed,
            tuple(request.tokens[request.computed : end]),
            pages,
            first,
            (count - 1,) if end == request.known else (),
        )
