"""The engine: add requests, take steps. Token ids in, token events out; the caller's thread does the work.

A step is `plan`, `execute`, `accept`; `step` is the three in one. Text is a transcript's (output_processor.py).
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from ridgeline.core.ops.work import TOKENS, AttentionPattern
from ridgeline.engine.bounds import Bounds
from ridgeline.engine.encoder_features import PlacedImages
from ridgeline.engine.events import Stats, StepRecord, TokenEvent, describe_error
from ridgeline.engine.failure_isolation import FailureIsolation
from ridgeline.engine.generation_request import DEFAULT_PARAMS, GenerationRequest
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.kv.prefix import namespace_of
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.prompt_tokens import Tokens
from ridgeline.engine.request import NANOSECONDS, FinishReason, Request, Timing
from ridgeline.engine.request_updater import RequestUpdater
from ridgeline.engine.sampling.plan_rows import SampleRows
from ridgeline.engine.sampling.sample_row import History, Outcome, SampleRow
from ridgeline.engine.scheduler import Limits, Scheduler
from ridgeline.engine.step_plan import StepPlan
from ridgeline.engine.structured_output_params import GuideStats
from ridgeline.engine.token_rules import TokenRuleProcessor
from ridgeline.util.host import out_of_memory

if TYPE_CHECKING:
    from ridgeline.core.models.common.model import PlacedRows
    from ridgeline.engine.speculation.speculator import Speculator
    from ridgeline.engine.structured_output import OutputConstraint, StructuredOutputManager

Observer = Callable[[StepRecord], None]
WALL_CLOCK: Callable[[], int] = time.perf_counter_ns
"""The clock of an engine that is told no other."""


class EngineLost(ValueError):
    """The executor has lost what it computes with, and no step will run again; why, in one line."""


class Executor(Protocol):
    """What the engine asks of whoever runs its plans: a model, a price, or in tests something that only pretends."""

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        """Run a plan. Returns what each item with logit or scored rows gives to its request, in order; `rows`: one a
        logit row, made as they are read.
        """
        ...


class Engine:
    """Requests, a scheduler, and an executor that runs its plans."""

    def __init__(
        self,
        executor: Executor,
        ledger: KVCacheManager,
        limits: Limits,
        *,
        context: int,
        vocabulary: int,
        eos_ids: Collection[int] = (),
        reaches: Collection[AttentionPattern] = (),
        has_head: bool = True,
        whole: bool | None = None,
        pooled: bool = False,
        encoder_width: int = 0,
        encoder_context: int = 0,
        outputs: int | None = None,
        images: "PlacedRows | None" = None,
        guides: "StructuredOutputManager | None" = None,
        adapters: Mapping[str, bytes] | None = None,
        speculator: "Speculator | None" = None,
        on_step: Observer | None = None,
        seed: int | None = None,
        clock: Callable[[], int] = WALL_CLOCK,
    ) -> None:
        """context: positions a sequence may have. vocabulary: how many token ids there are. reaches: those of the
        model's layers that keep nothing, of which the ledger does not know. has_head: whether it gives logits; else a
        request ends when its prompt has run, with the hidden states; where it is pooled, with what its last position
        gives. whole: whether prompts run in one step; by default where their positions see later ones. encoder_width:
        numbers of a position that an encoder reads, which then reads `encoder_context` of them, no more and no fewer; 0
        where it reads ids. outputs: how many ids are sampled from, the first of the vocabulary, where those are not
        all. images: how images stand in a prompt, where they may. guides: hold answers to a form, where they are asked
        to be. adapters: by their names what stands for the contents of each; their order is that of their numbers.
        speculator: guesses at next tokens, which steps verify. on_step: told of each step that ran. seed: where the
        seeds of requests that state none come from. clock: the time in integer nanoseconds; the engine knows no other,
        and orders nothing by it.
        """
        self.executor, self.kv_cache_manager, self.on_step, self.clock = executor, ledger, on_step, clock
        self.on_begin: Callable[[Sequence[int]], None] | None = None
        """A callback that gets the ids of requests just before their first step runs."""
        self._seeds = random.Random(seed)
        self.context, self.vocabulary, self.eos_ids = context, vocabulary, frozenset(eos_ids)
        self.reaches = frozenset(reaches) | ledger.layout.reaches
        self.has_head = has_head
        self.encoder_width, self.encoder_context = encoder_width, encoder_context
        self.structured_output_manager = guides
        self.pooled = pooled
        self.adapters = dict(adapters or {})
        both_ways = any(reach.both_ways and reach.space == TOKENS for reach in self.reaches)
        whole = both_ways if whole is None else whole
        assert not (whole and has_head), "positions that see later ones cannot be computed one after the other"
        self.scheduler = Scheduler(ledger, limits, whole=whole)
        self.outputs, self.images = vocabulary if outputs is None else outputs, images
        self._bounds = Bounds(
            ledger, self.scheduler, context, vocabulary, has_head, encoder_width, encoder_context, self.outputs, images
        )
        self.requests: dict[int, Request] = {}
        self.parked: dict[int, Request] = {}
        """Of requests that were added and wait to be begun the first choice, by their ids."""
        self._next_id = 1
        self._isolation = FailureIsolation(self.scheduler)
        self._outcomes = RequestUpdater(self.requests, self.parked, self.scheduler, speculator)
        self._guiding = 0  # nanoseconds

    @property
    def has_work(self) -> bool:
        """Whether a step would have something to do."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    @property
    def speculator(self) -> "Speculator | None":
        """The source of guesses at next tokens; None if nothing is guessed. It may change between two steps."""
        return self._outcomes.speculator

    @speculator.setter
    def speculator(self, speculator: "Speculator | None") -> None:
        self._outcomes.speculator = speculator

    @property
    def stats(self) -> Stats:
        """What was done so far, and what is held now."""
        scheduler, pool, guesses = self.scheduler, self.kv_cache_manager.pool, self.speculator
        guidance = GuideStats() if self.structured_output_manager is None else self.structured_output_manager.stats
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self.parked),
            steps=scheduler.steps,
            computed_tokens=scheduler.computed_tokens,
            reused_tokens=scheduler.reused_tokens,
            output_tokens=self._outcomes.output_tokens,
            dropped_tokens=self._outcomes.dropped_tokens,
            preemptions=scheduler.preemptions,
            wasted_tokens=scheduler.wasted_tokens,
            held_pages=pool.size - pool.available,
            cached_pages=pool.cached,
            grammars=guidance.compiled,
            grammar_seconds=self._guiding * NANOSECONDS,
            grammar_bytes=guidance.nbytes,
            drafts=0 if guesses is None else guesses.drafts,
            draft_tokens=0 if guesses is None else guesses.draft_tokens,
            accepted_tokens=0 if guesses is None else guesses.accepted_tokens,
            accepted_at=() if guesses is None else guesses.accepted_at,
        )

    # -- coming and going ---------------------------------------------------------------------------------------------

    def number_from(self, first: int) -> None:
        """The next request's id, for engines whose requests one server tells apart by theirs."""
        assert not self.requests, "the numbers of those under way may not come again"
        self._next_id = first

    def add(self, spec: GenerationRequest, *, received: int = 0, parked: bool = False) -> int:
        """Queue a request and return its id. Raises ValueError for what cannot run, and queues nothing.

        received: positions of the prompt, not all, that another engine has computed and whose keys and values the
        executor finds there. parked: not to be queued until `begin` says so.
        """
        if spec.params != DEFAULT_PARAMS and not self.has_head:
            raise ValueError("the model has no head to sample with; leave the sampling parameters out")
        limit = self._bounds.room(spec)
        placed = None
        if spec.images is not None:
            placed = PlacedImages(spec.images, self._bounds.places(spec.prompt, spec.images))
        number = self.number_of(spec.adapter)
        read = spec.encoder if spec.images is None else spec.images
        namespace = namespace_of(spec.cache_salt, read, self.adapters[spec.adapter] if number else b"")
        first, *others = self._choices(spec, limit, number, namespace, placed)
        self._next_id += spec.params.n
        self.requests |= {request.id: request for request in (first, *others)}
        assert 0 <= received < len(spec.prompt), "the last position of a prompt gives its first token"
        first.received = received
        first.children = others  # they start from its pages, once its prompt is computed
        if parked:
            self.parked[first.group] = first
        else:
            self.scheduler.add(first)
        return first.group

    def begin(self, group: int) -> None:
        """Queue a request that was parked; one that has ended since is no error."""
        request = self.parked.pop(group, None)
        if request is not None:
            self.scheduler.add(request)

    def _choices(
        self, spec: GenerationRequest, limit: int, adapter: int, cache_namespace: bytes, images: PlacedImages | None
    ) -> list[Request]:
        """A request for each choice. What is said of the prompt itself, the first one says."""
        prompt, params = spec.prompt, spec.params
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_ids)
        group, timing = self._next_id, Timing(self.clock())
        guide = self._guide(prompt, params, stop_ids)
        return [
            Request(
                group + choice,
                group,
                spec,
                Tokens(prompt),
                seed,
                choice,
                limit,
                stop_ids,
                timing,
                adapter,
                cache_namespace,
                placed_images=images,
                history=self._history(prompt) if params.uses_history else None,
                constraint=guide.copy() if guide is not None else None,
                scores=[] if params.prompt_logprobs is not None and choice == 0 else None,
                hidden=None if self.has_head or self.pooled else [],
            )
            for choice in range(params.n)
        ]

    def _history(self, prompt: Sequence[int]) -> History:
        """What penalties count of a prompt: the ids that may be sampled too."""
        known = prompt if self.outputs == self.vocabulary else [token for token in prompt if token < self.outputs]
        return History(known)

    def number_of(self, name: str) -> int:
        """The number of an adapter, 0 for none. Raises ValueError for one that is not loaded."""
        if name and name not in self.adapters:
            loaded = ", ".join(self.adapters) or "none"
            raise ValueError(f"no adapter {name!r} is loaded; there is {loaded}")
        return list(self.adapters).index(name) + 1 if name else 0

    def _guide(
        self, prompt: Sequence[int], params: SamplingParams, ends: Collection[int]
    ) -> "OutputConstraint | TokenRuleProcessor | None":
        """What holds the answers to the form, or the rules, that were asked for. Raises ValueError for one that cannot
        be followed.
        """
        if params.rules is not None:
            return TokenRuleProcessor(params.rules, self.outputs)
        if params.structured_outputs is None:
            return None
        if self.structured_output_manager is None:
            raise ValueError("structured_outputs needs a tokenizer, which this engine does not have; leave it out")
        started = self.clock()
        try:
            return self.structured_output_manager.constraint_for(params.structured_outputs, prompt, ends)
        finally:
            self._guiding += self.clock() - started

    def abort(self, group: int) -> list[TokenEvent]:
        """End every choice of a request, wherever it stands. Unknown and finished ids are no error."""
        now = self.clock()
        choices = [r for r in self.requests.values() if r.group == group]
        return [self._outcomes.finish(request, FinishReason.ABORT, now) for request in choices]

    def stop(self, group: int, choice: int, kept: int) -> list[TokenEvent]:
        """End one choice, whose text says that only its first `kept` tokens count. One that has ended is no error.

        Those past them are counted as dropped, as long as no further step was accepted since a choice ended by itself.
        """
        self._outcomes.drop(group, choice, kept)
        request = self.requests.get(group + choice)
        return [] if request is None else [self._outcomes.finish(request, FinishReason.STOP, self.clock())]

    # -- one step -----------------------------------------------------------------------------------------------------

    def step(self) -> list[TokenEvent]:
        """Run one step. A request that fails fails alone: its event says why, the others go on. Raises EngineLost where
        none can go on.
        """
        plan = self.plan()
        if plan is None:
            return []
        if self.scheduler.begun and self.on_begin is not None:
            self.on_begin(self.scheduler.begun)
        started = self.clock()
        try:
            outcomes = self.execute(plan)
        except EngineLost:
            raise
        except Exception as error:
            return self.fail(plan, error)
        if self.on_step is not None:
            work = plan.work(self.reaches)
            self.on_step(StepRecord(plan, work, self.rows(plan), outcomes, started, self.clock()))
        return self.accept(plan, outcomes)

    def plan(self) -> StepPlan | None:
        """Decide what runs next; None if there is nothing to do. It is to be accepted, or to fail, before the next."""
        now = self.clock()
        if self._isolation.active:
            return self._isolation.schedule(now)
        if (speculator := self.speculator) is None:
            return self.scheduler.schedule(now)
        return self.scheduler.schedule(now, guesses=speculator.guesses(self.scheduler))

    def rows(self, plan: StepPlan) -> Sequence[SampleRow]:
        """What the sampler has to know about the plan's logit rows; where there is no head, nothing is sampled."""
        return SampleRows(plan, self.requests) if self.has_head else ()

    def execute(self, plan: StepPlan) -> Sequence[Outcome]:
        """Have the plan run; what it gives to each item with logit or scored rows. Raises what the executor raises."""
        return self.executor.execute(plan, self.rows(plan))

    def accept(self, plan: StepPlan, outcomes: Sequence[Outcome]) -> list[TokenEvent]:
        """Take what a plan gave into its requests: counters move, full pages are published, requests end. What it gave
        to requests that have ended since it was made is dropped.
        """
        now = self.clock()
        self.kv_cache_manager.copied([copy for copy in plan.copies if copy in self.kv_cache_manager.copies])
        events = self._outcomes.take(plan, outcomes, now)
        self._isolation.clear()
        return events

    def fail(self, plan: StepPlan, error: Exception) -> list[TokenEvent]:
        """Undo a plan that failed. The request that was alone in it has failed; of several, the one to blame is found
        by running them one at a time.
        """
        blamed = self._isolation.isolate(plan, self.requests, error)
        if blamed is None:
            return []
        refused = out_of_memory(error)
        given_up = self._outcomes.give_up(blamed, refused or describe_error(error), self.clock())
        return [structs.replace(event, out_of_memory=refused is not None) for event in given_up]
