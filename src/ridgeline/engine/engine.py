"""The engine: it takes requests of token ids and runs steps in the caller's thread, which return token events.

A step is `plan`, `execute` and `accept`; `step` does all three. An output processor (output_processor.py) turns tokens
into text.
"""

import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import structs

from ridgeline.engine.bounds import RequestValidator
from ridgeline.engine.encoder_features import PlacedImages
from ridgeline.engine.events import Stats, StepRecord, TokenEvent, describe_error
from ridgeline.engine.failure_isolation import FailureIsolation
from ridgeline.engine.generation_request import DEFAULT_PARAMS, GenerationRequest
from ridgeline.engine.kv.kv_cache_manager import KVCacheManager
from ridgeline.engine.kv.prefix import namespace_of
from ridgeline.engine.model_traits import ModelTraits
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
    from ridgeline.engine.speculation.speculator import Speculator
    from ridgeline.engine.structured_output import OutputConstraint, StructuredOutputManager

Observer = Callable[[StepRecord], None]
WALL_CLOCK: Callable[[], int] = time.perf_counter_ns
"""The default clock of an engine, in nanoseconds."""


class EngineLost(ValueError):
    """The error that the executor can run no further step; its message is the reason, in one line."""


class Executor(Protocol):
    """The interface of the object that runs an engine's plans: a model's runner, a cost model, or a fake in tests."""

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        """Run a plan and return the outcomes of its items.

        Args:
            plan: The plan to run.
            rows: The sampling inputs, one per logit row, which are made when they are read.

        Returns:
            The outcome of each item with logit rows or scored rows, in order.
        """


class Engine:
    """The requests of one model, a scheduler for them, and an executor that runs the scheduler's plans."""

    def __init__(
        self,
        executor: Executor,
        ledger: KVCacheManager,
        limits: Limits,
        traits: ModelTraits,
        *,
        eos_ids: Collection[int] = (),
        guides: "StructuredOutputManager | None" = None,
        adapters: Mapping[str, bytes] | None = None,
        speculator: "Speculator | None" = None,
        on_step: Observer | None = None,
        seed: int | None = None,
        clock: Callable[[], int] = WALL_CLOCK,
    ) -> None:
        """Make an engine without requests.

        Args:
            executor: Runs the plans.
            ledger: The KV cache manager.
            limits: The limits of a step.
            traits: The properties of the model that matter to its requests.
            eos_ids: Token ids that end a text.
            guides: Makes the constraints of structured outputs; None without a tokenizer.
            adapters: A digest of the contents of each LoRA adapter, by its name. Their order is that of their numbers.
            speculator: Guesses next tokens, which steps verify.
            on_step: Receives a record of each step that ran.
            seed: The seed from which the seeds of requests without one are drawn.
            clock: Returns the time in integer nanoseconds. The engine uses no other clock and orders nothing by it.
        """
        self.executor, self.kv_cache_manager, self.on_step, self.clock = executor, ledger, on_step, clock
        self.on_begin: Callable[[Sequence[int]], None] | None = None
        """A callback that receives the ids of requests just before their first step runs."""
        self._seeds = random.Random(seed)
        self.traits, self.eos_ids = traits, frozenset(eos_ids)
        self.attention_patterns = frozenset(traits.attention_patterns) | ledger.layout.reaches
        self.structured_output_manager, self.adapters = guides, dict(adapters or {})
        whole = traits.needs_whole_prompt
        assert not (whole and traits.has_head), "a model that attends to later positions cannot generate token by token"
        self.scheduler = Scheduler(ledger, limits, whole=whole)
        self._bounds = RequestValidator(ledger, self.scheduler, traits)
        self.requests: dict[int, Request] = {}
        self.parked: dict[int, Request] = {}
        """Requests added with `parked=True`, by group id, until `begin()` enqueues them."""
        self._next_id = 1
        self._isolation = FailureIsolation(self.scheduler)
        self._outcomes = RequestUpdater(self.requests, self.parked, self.scheduler, speculator)
        self._guiding = 0  # nanoseconds

    @property
    def has_work(self) -> bool:
        """Whether the next step has something to run."""
        return bool(self.scheduler.running or self.scheduler.waiting)

    @property
    def speculator(self) -> "Speculator | None":
        """The source of guesses at next tokens; None if there is none. It may be replaced between two steps."""
        return self._outcomes.speculator

    @speculator.setter
    def speculator(self, speculator: "Speculator | None") -> None:
        self._outcomes.speculator = speculator

    @property
    def stats(self) -> Stats:
        """The counters of the work done so far, and the numbers of requests and pages held now."""
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
            wasted_tokens=scheduler.recomputed_tokens,
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

    # -- adding and ending requests -----------------------------------------------------------------------------------

    def set_next_id(self, first: int) -> None:
        """Set the id of the next request, so that a server can tell the requests of several engines apart by id."""
        assert not self.requests, "ids of unfinished requests must not be assigned again"
        self._next_id = first

    def add(self, spec: GenerationRequest, *, received: int = 0, parked: bool = False) -> int:
        """Queue a request and return its id.

        Args:
            spec: The request.
            received: Number of prompt positions, not all, whose KV another engine has computed and the executor finds
                in place.
            parked: Whether to hold the request back until `begin` is called.

        Raises:
            ValueError: If the request cannot run; then nothing is queued.
        """
        if spec.params != DEFAULT_PARAMS and not self.traits.has_head:
            raise ValueError("the model has no head to sample with: leave the sampling parameters out")
        limit = self._bounds.max_new_tokens(spec)
        placed = None
        if spec.images is not None:
            placed = PlacedImages(spec.images, self._bounds.image_positions(spec.prompt, spec.images))
        number = self.adapter_number(spec.adapter)
        read = spec.encoder if spec.images is None else spec.images
        namespace = namespace_of(spec.cache_salt, read, self.adapters[spec.adapter] if number else b"")
        first, *others = self._choices(spec, limit, number, namespace, placed)
        self._next_id += spec.params.n
        self.requests |= {request.id: request for request in (first, *others)}
        assert 0 <= received < len(spec.prompt), (
            "the last position of a prompt must be computed here, because it gives the first token"
        )
        first.received = received
        first.children = others  # they start from its pages once its prompt is computed
        if parked:
            self.parked[first.group] = first
        else:
            self.scheduler.add(first)
        return first.group

    def begin(self, group: int) -> None:
        """Queue a request that was parked; do nothing if it has ended since."""
        request = self.parked.pop(group, None)
        if request is not None:
            self.scheduler.add(request)

    def _choices(
        self, spec: GenerationRequest, limit: int, adapter: int, cache_namespace: bytes, images: PlacedImages | None
    ) -> list[Request]:
        """Create one Request per choice (`n`). Only the first reports prompt log-probabilities."""
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
                hidden=None if self.traits.has_head or self.traits.pooled else [],
            )
            for choice in range(params.n)
        ]

    def _history(self, prompt: Sequence[int]) -> History:
        """Return the token counts for penalties over a prompt: only ids that can be sampled count."""
        size = self.traits.sampled_vocab_size
        return History(prompt if size == self.traits.vocabulary else [token for token in prompt if token < size])

    def adapter_number(self, name: str) -> int:
        """Return the number of a LoRA adapter, counted from 1; 0 for no name.

        Raises:
            ValueError: If no adapter of this name is loaded.
        """
        if name and name not in self.adapters:
            loaded = ", ".join(self.adapters) or "none"
            raise ValueError(
                f"no adapter {name!r} is loaded (loaded: {loaded}): name a loaded one, or load it at the start"
            )
        return list(self.adapters).index(name) + 1 if name else 0

    def _guide(
        self, prompt: Sequence[int], params: SamplingParams, ends: Collection[int]
    ) -> "OutputConstraint | TokenRuleProcessor | None":
        """Return the constraint on a response of a request's token rules, structured output or limit of reasoning.

        Returns None if the request has none of them.

        Raises:
            ValueError: If the structured output cannot be compiled, or the engine has no tokenizer for it.
        """
        if params.rules is not None:
            return TokenRuleProcessor(params.rules, self.traits.sampled_vocab_size)
        outputs, budget = params.structured_outputs, params.thinking_token_budget
        if outputs is None and budget is None:
            return None
        if self.structured_output_manager is None:
            name = "thinking_token_budget" if outputs is None else "structured_outputs"
            raise ValueError(f"{name} needs a tokenizer, and this engine has none: leave {name} out")
        started = self.clock()
        try:
            return self.structured_output_manager.constraint_for(outputs, prompt, ends, budget)
        finally:
            self._guiding += self.clock() - started

    def abort(self, group: int) -> list[TokenEvent]:
        """End every choice of a request, in whatever state it is; do nothing for an unknown or finished id."""
        now = self.clock()
        choices = [r for r in self.requests.values() if r.group == group]
        return [self._outcomes.finish(request, FinishReason.ABORT, now) for request in choices]

    def stop(self, group: int, choice: int, kept: int) -> list[TokenEvent]:
        """End one choice because its text is complete after its first `kept` tokens; do nothing if it has ended.

        The tokens after those count as dropped, unless a further step was accepted since the choice ended by itself.
        """
        self._outcomes.drop(group, choice, kept)
        request = self.requests.get(group + choice)
        return [] if request is None else [self._outcomes.finish(request, FinishReason.STOP, self.clock())]

    # -- one step -----------------------------------------------------------------------------------------------------

    def step(self) -> list[TokenEvent]:
        """Run one step and return its events.

        If a step of several requests fails, each of them runs alone until the failing one is found. The event of a
        failed request gives the reason, and the others continue.

        Raises:
            EngineLost: If no request can continue.
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
            work = plan.work(self.attention_patterns)
            self.on_step(StepRecord(plan, work, self.rows(plan), outcomes, started, self.clock()))
        return self.accept(plan, outcomes)

    def plan(self) -> StepPlan | None:
        """Plan the next step; None if there is nothing to do. Accept or fail the plan before the next one."""
        now = self.clock()
        if self._isolation.active:
            return self._isolation.schedule(now)
        if (speculator := self.speculator) is None:
            return self.scheduler.schedule(now)
        return self.scheduler.schedule(now, guesses=speculator.guesses(self.scheduler))

    def rows(self, plan: StepPlan) -> Sequence[SampleRow]:
        """Return the sampling inputs of the plan's logit rows; nothing if the model has no head."""
        return SampleRows(plan, self.requests) if self.traits.has_head else ()

    def execute(self, plan: StepPlan) -> Sequence[Outcome]:
        """Run the plan and return the outcome of each item with logit or scored rows.

        The executor's errors pass through.
        """
        return self.executor.execute(plan, self.rows(plan))

    def accept(self, plan: StepPlan, outcomes: Sequence[Outcome]) -> list[TokenEvent]:
        """Apply the outcomes of a plan to its requests: advance counters, publish full pages, end requests.

        Outcomes of requests that have ended since the plan was made are dropped.
        """
        now = self.clock()
        self.kv_cache_manager.copied([copy for copy in plan.copies if copy in self.kv_cache_manager.copies])
        events = self._outcomes.take(plan, outcomes, now)
        self._isolation.clear()
        return events

    def fail(self, plan: StepPlan, error: Exception) -> list[TokenEvent]:
        """Undo a plan that failed. A request that was alone in it ends with an error.

        If there were several, they run one at a time from now on, until the one to blame fails alone.
        """
        blamed = self._isolation.isolate(plan, self.requests, error)
        if blamed is None:
            return []
        refused = out_of_memory(error)
        given_up = self._outcomes.give_up(blamed, refused or describe_error(error), self.clock())
        return [structs.replace(event, out_of_memory=refused is not None) for event in given_up]
