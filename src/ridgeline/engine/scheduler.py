"""The scheduler, which decides which positions of which requests run next.

Its one rule is that `computed`, a request's positions in KV memory, has to catch up with `known`, its tokens with ids.
There are no phases. A request that needs one position ("decode") and one that needs a thousand ("prefill") are
candidates for the same token budget; the order of candidates is the policy.
"""

from bisect import insort
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from types import MappingProxyType

from msgspec import structs

from ridgeline.engine.decode_fast_path import DecodeFastPath
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.request import Request
from ridgeline.engine.step_plan import PlanItem, PromptScoring, StepPlan

MAX_LIMIT = 1 << 20  # buffers have the size of a full step
MAX_SCORED_WITH_DECODES = 64
"""The maximum number of prompt positions that a step scores while other requests decode in it.

Scoring 2,048 of them, with 20 alternatives each, would make those requests wait half as long again as computing the
positions does. With 256 their worst gap in `benchmarks/innocent_stream.py --only 18` was 233 ms on two cores of a Zen
4, with 64 it was 61 ms.
"""
_ARRIVAL = attrgetter("id")

Guesses = Mapping[Request, Sequence[int]]
"""The drafted tokens (guesses at the next tokens) of each decoding request."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one step of the engine: positions and requests."""

    tokens: int = 2048
    """The maximum number of positions in a step, of all requests together and including encoder positions.

    The input of an encoder is not split: a longer one runs in a step of its own.
    """
    requests: int = 256
    """The maximum number of requests that run at the same time."""
    chunk: int | None = None
    """The maximum number of positions of one request in a step; None for as many as the budget allows."""

    @property
    def max_request_tokens(self) -> int:
        """The maximum number of positions of one request that a step runs."""
        return self.tokens if self.chunk is None else min(self.tokens, self.chunk)

    def __post_init__(self) -> None:
        for name, value in (("tokens", self.tokens), ("requests", self.requests), ("chunk", self.chunk)):
            if value is not None and not 1 <= value <= MAX_LIMIT:
                raise ValueError(f"limit of {name} is {value}: give 1 to {MAX_LIMIT}")


class Scheduler:
    """The queue of waiting requests and the list of running ones, from which it plans each step."""

    def __init__(self, ledger: KVCacheManager, limits: Limits, *, whole: bool = False) -> None:
        """Make a scheduler without requests.

        Args:
            ledger: The KV cache manager that allocates pages.
            limits: The limits of a step.
            whole: Whether each prompt runs in one step, because all of its positions see each other.
        """
        self.kv_cache_manager, self.limits, self.whole = ledger, limits, whole
        self.fast_path = DecodeFastPath(ledger)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # in order of arrival, the oldest first
        self.steps = 0
        self.computed_tokens = 0  # positions run in steps that did not fail
        self.reused_tokens = 0  # prompt positions found in the prefix cache when their request first started
        self.preemptions = 0
        self.recomputed_tokens = 0  # positions computed again after a preemption
        self.begun: list[int] = []  # groups that the latest plan runs for the first time
        self._scorable = limits.tokens  # positions whose tokens this step may still score
        self._alone = False  # whether the last step ran one request alone because of its encoder input
        self._forget: list[int] = []
        self._known_to_runner: set[int] = set()

    def add(self, request: Request) -> None:
        """Add a request to the queue of waiting requests."""
        self.waiting.append(request)

    def fork(self, parent: Request, child: Request, now: int) -> None:
        """Start a child request from its parent's KV pages, or queue it if there is no room for it.

        The child computes its last prompt position again, to get logits of its own.
        """
        computed = child.known - 1
        if len(self.running) < self.limits.requests and self.kv_cache_manager.fork(parent.id, child.id, computed):
            child.encoded = True
            self._start(child, computed, now)
        else:
            self.waiting.appendleft(child)

    def release(self, request: Request) -> None:
        """Remove a request that has ended from the queue or the running ones, and free its pages; the only way out."""
        if request.running:
            self._stop_running(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    # -- one step -----------------------------------------------------------------------------------------------------

    def schedule(
        self, now: int, only: Collection[Request] | None = None, guesses: Guesses = MappingProxyType({})
    ) -> StepPlan | None:
        """Plan the next step, or return None if there is nothing to run.

        Args:
            now: The time, in nanoseconds of the engine's clock.
            only: The only requests to consider; None for all.
            guesses: The drafted next tokens of decoding requests, which run as far as budget and pages allow.
        """
        preemptions = self.preemptions
        self.begun = []
        self._scorable = self.limits.tokens
        # Running requests are part of at least every second step.
        grants = {} if self._alone or not self.waiting else self._admit_alone(only, now)
        self._alone = bool(grants)
        grants = grants or self._continue_running(only)
        # After a preemption this step admits no request: the two would preempt each other for ever.
        if self.waiting and not self._alone and self.preemptions == preemptions:
            self._admit(grants, only, now)
        if not grants:
            return None
        plan = StepPlan(
            self.steps,
            tuple(self.fast_path.items(grants, self._guessed(grants, guesses) if guesses else {}, self._item)),
            tuple(self.kv_cache_manager.copies),
            tuple(self.kv_cache_manager.pages_to_zero),
            tuple(self._forget),
        )
        self.steps += 1
        self.kv_cache_manager.pages_to_zero.clear()
        self._forget.clear()
        return plan

    def commit(self, request: Request, item: PlanItem) -> None:
        """Account for a plan item that has run and whose tokens the request has taken; publish full pages.

        Positions of wrong guesses count as not computed: they will be overwritten.
        """
        count = len(item.tokens)
        end = item.start + count
        self.computed_tokens += count
        if item.start < request.recompute_mark:
            self.recomputed_tokens += min(end, request.recompute_mark) - item.start
        request.computed = request.known - 1 if item.logits and request.known <= end else end
        self.kv_cache_manager.commit(request.id, request.tokens, request.computed)

    def undo(self, plan: StepPlan) -> None:
        """Account for a failed step: preempt its requests, and repeat its `forget` list in the next plan.

        What the step wrote to KV memory is not trustworthy, and the runner may not have received the plan's page
        tables.
        """
        self._forget += plan.forget
        planned = {item.request for item in plan.items}
        for request in [request for request in reversed(self.running) if request.id in planned]:
            self.preempt(request)

    def preempt(self, request: Request) -> None:
        """Free a request's pages and put it at the head of the queue; it keeps the tokens that it knows."""
        self.preemptions += 1
        request.preemptions += 1
        request.recompute_mark = max(request.recompute_mark, request.computed)
        self._stop_running(request)
        request.computed = 0
        self.waiting.appendleft(request)

    def _continue_running(self, only: Collection[Request] | None) -> dict[Request, int]:
        """Grant positions and pages to running requests: first those that need one position, then the others."""
        running = list(self.running) if only is None else [request for request in self.running if request in only]
        grants: dict[Request, int] = {}
        budget, far = self.limits.tokens, []
        for request in running:
            if request.computed < request.decode_fast_until and budget:
                grants[request] = 1
                budget -= 1
            elif request.known - request.computed == 1:
                budget = self._grant(request, grants, budget)
            else:
                far.append(request)
        if grants:
            self._scorable = MAX_SCORED_WITH_DECODES
        for request in far:
            budget = self._grant(request, grants, budget)
        return grants

    def _grant(self, request: Request, grants: dict[Request, int], budget: int) -> int:
        """Grant a running request positions of a step's budget, with pages; return the remaining budget."""
        count = min(self._wanted(request), budget)
        if count == 0 or not request.running:  # not running: it was preempted for another one
            return budget
        if not self.kv_cache_manager.grow(request.id, request.computed + count):
            budget += self._preempt_for(request, count, grants)
            if not request.running:
                return budget
        self._give(request, count, grants)
        return budget - count

    def _give(self, request: Request, count: int, grants: dict[Request, int]) -> None:
        """Record how many positions of a request run in this step."""
        grants[request] = count
        if request.scores is not None:
            self._scorable -= count

    def _preempt_for(self, request: Request, count: int, grants: dict[Request, int]) -> int:
        """Preempt requests until one request gets its pages or is preempted itself.

        Returns:
            The number of positions granted to preempted requests in this step, which return to the budget.
        """
        freed = 0
        while request.running and not self.kv_cache_manager.grow(request.id, request.computed + count):
            victim = self._victim()
            freed += grants.pop(victim, 0)
            self.preempt(victim)
        return freed

    def _guessed(self, grants: Mapping[Request, int], guesses: Guesses) -> dict[Request, Sequence[int]]:
        """Return the guessed tokens to verify in this step: those for which budget and pages remain."""
        budget = self.limits.tokens - sum(grants.values()) - sum(len(r.spec.encoder) for r in grants if not r.encoded)
        found: dict[Request, Sequence[int]] = {}
        for request, own in guesses.items():
            count = min(len(own), budget, self.limits.max_request_tokens - 1)
            if count <= 0 or grants.get(request) != 1 or request.known - request.computed != 1:
                continue
            if self.kv_cache_manager.try_grow_speculative(request.id, request.known + count):
                found[request] = own[:count]
                budget -= count
        return found

    def _admit_alone(self, only: Collection[Request] | None, now: int) -> dict[Request, int]:
        """Start the first waiting request alone if its encoder input leaves running requests no budget.

        An encoder input cannot be split into chunks as a prompt can.
        """
        grants: dict[Request, int] = {}
        first = next((request for request in self.waiting if only is None or request in only), None)
        encoder = 0 if first is None else len(first.spec.encoder)
        if first is not None and encoder and encoder + len(self.running) >= self.limits.tokens:
            self._admit(grants, [first], now)
        return grants

    def _admit(self, grants: dict[Request, int], only: Collection[Request] | None, now: int) -> None:
        """Start waiting requests in order of arrival, as long as the pages for all of their known tokens are available.

        A request never starts in the hope that pages become free: the pages reserved for running requests are not
        available to it.
        """
        budget, room = self.limits.tokens - sum(grants.values()), self.limits.requests - len(self.running)
        if budget == 0 or room <= 0:
            return
        waiting = self.waiting if only is None else [request for request in self.waiting if request in only]
        for request in list(islice(waiting, room)):
            if not self._wanted(request):  # this step may score no more positions; later requests may run
                continue
            encoder = len(request.spec.encoder)  # the encoder runs as a whole in the first step, within the budget
            if (budget <= encoder and grants) or (self.whole and request.known > budget):
                break
            hit = self.kv_cache_manager.admit(
                request.id,
                request.tokens,
                self.kv_cache_manager.reserve,
                encoded=encoder,
                root=request.cache_namespace,
                block=request.tokens.block,
                named=request.prompt_length if request.tokens.block > 1 else 0,
                find=request.uses_prefix_cache,
            )
            if hit is None:
                break
            self.waiting.remove(request)
            self._start(request, hit, now)
            request.computed, request.received = max(hit, request.received), 0
            count = min(self._wanted(request), budget - encoder if encoder < budget else budget)
            granted = self.kv_cache_manager.grow(request.id, request.computed + count)
            assert granted, "admission must have reserved the pages by which a request grows"
            self._give(request, count, grants)
            budget -= count + encoder

    def _start(self, request: Request, computed: int, now: int) -> None:
        request.computed, request.running = computed, True
        if request.timing.scheduled is None:
            request.timing = replace(request.timing, scheduled=now)
            if request.choice == 0:
                self.begun.append(request.group)
        if not request.preemptions:  # after a preemption it may find pages that it filled itself
            request.cached = computed
            self.reused_tokens += computed
        insort(self.running, request, key=_ARRIVAL)

    def _stop_running(self, request: Request) -> None:
        """Free a running request's pages and have the runner forget its page tables."""
        request.running = request.encoded = False
        self.fast_path.leave(request)
        self.running.remove(request)
        self.kv_cache_manager.release(request.id)
        if request.id in self._known_to_runner:
            self._known_to_runner.discard(request.id)
            self._forget.append(request.id)

    def _wanted(self, request: Request) -> int:
        missing = request.known - request.computed
        if request.scores is not None:
            missing = min(missing, self._scorable)
        return missing if self.whole or self.limits.chunk is None else min(missing, self.limits.chunk)

    def _victim(self) -> Request:
        """Return the running request that loses the least if it is preempted.

        The oldest request is never the victim, so that it always finishes.
        """
        spared, *others = self.running
        assert others, f"request {spared.id} was admitted, but does not fit into the KV pool even alone"
        return min(reversed(others), key=lambda r: r.computed - self.kv_cache_manager.shared_positions(r.id))

    def _item(self, request: Request, count: int, guesses: Sequence[int]) -> PlanItem:
        start, output = request.computed, request.tokens.output
        end = start + count
        last = end == request.known
        # A decoding request runs only its newest token.
        tokens = (output[-1],) if count == 1 and last and output else request.tokens[start:end]
        logits: tuple[int, ...] = (count - 1,) if last and request.limit else ()
        if request.hidden is not None:  # of each position once, even if it runs again after a preemption
            logits = tuple(range(max(0, sum(map(len, request.hidden)) - start), count))
        if guesses:
            tokens, logits = (*tokens, *guesses), tuple(range(1 + len(guesses)))
        first, pages = self.kv_cache_manager.unsent(request.id)
        if first:
            self._known_to_runner.add(request.id)
        item = PlanItem(request.id, start, tokens, pages, first, logits, (), 0, None, request.adapter)
        if read := request.spec.encoder:
            encoder = () if request.encoded else read
            request.encoded = True
            item = structs.replace(item, encoder=encoder, encoded=len(read))
        images = request.placed_images
        if images is not None and (placed := images.step_input(start, tokens)) is not None:
            tokens, encoder = placed
            item = structs.replace(item, tokens=tokens, encoder=encoder, encoded=len(encoder))
        if request.scores is not None:
            item = structs.replace(item, scored=self._scoring(request, start, end))
        return item

    @staticmethod
    def _scoring(request: Request, start: int, end: int) -> PromptScoring | None:
        """Return the prompt tokens that a step's positions score: each position scores the token after it.

        A preemption may run a position again; its score is not computed again.
        """
        assert request.scores is not None
        first, last = max(start, len(request.scores)), min(end, request.prompt_length - 1)
        if first >= last:
            return None
        alternatives = request.spec.params.prompt_logprobs or 0
        return PromptScoring(first - start, tuple(request.tokens[first + 1 : last + 1]), alternatives)
