"""The engine: add requests, take steps. Tokens in, tokens and safe text out; the caller's thread does the work."""

import operator
import random
import time
from collections.abc import Callable, Collection, Sequence

from ridgeline.engine.events import Event, StepRecord
from ridgeline.engine.kv.ledger import KVLedger
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.plan import StepPlan
from ridgeline.engine.request import Finish, Request, Timing
from ridgeline.engine.runner import Executor
from ridgeline.engine.sampling import History, RowFailure, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits, Scheduler
from ridgeline.text import Delta, OutputStream

OpenStream = Callable[[SamplingParams, Sequence[int]], OutputStream]


class Engine:
    """Requests, a scheduler, and an executor that runs its plans."""

    def __init__(
        self,
        executor: Executor,
        ledger: KVLedger,
        limits: Limits,
        *,
        context: int,
        vocabulary: int,
        eos_ids: Collection[int] = (),
        open_stream: OpenStream | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        """context: positions a sequence may have. vocabulary: how many token ids there are. open_stream: makes the way
        from a request's tokens to its text; None for tokens alone. on_step: told of each step that ran."""
        self.executor, self.ledger, self.on_step = executor, ledger, on_step
        self.open_stream = open_stream
        self.scheduler = Scheduler(ledger, limits)
        self.context, self.vocabulary, self.eos_ids = context, vocabulary, frozenset(eos_ids)
        self.reaches = frozenset(group.spec.reach for group in ledger.groups)
        self.requests: dict[int, Request] = {}
        self._streams: dict[int, OutputStream] = {}
        self._group_of: dict[int, int] = {}  # a choice's own id -> the id that add() returned
        self._next_id = 1
        self._suspects: dict[Request, int] = {}  # of a step that failed, and how far each has to get by itself

    @property
    def has_work(self) -> bool:
        """Whether a step would have something to do."""
        return bool(self.requests)

    # -- coming and going ---------------------------------------------------------------------------------------------

    def add(self, prompt: Sequence[int], params: SamplingParams | None = None) -> int:
        """Queue a request of token ids; returns its id. Raises ValueError for what cannot run, and queues nothing."""
        params = params or SamplingParams()
        try:
            prompt = [operator.index(token) for token in prompt]
        except TypeError:
            raise ValueError("the prompt is not a list of token ids; give whole numbers") from None
        limit = self._check(prompt, params)
        seed = params.seed if params.seed is not None else random.getrandbits(63)
        stop_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else self.eos_ids)
        choices: list[Request] = []
        arrived = time.perf_counter()
        group = self._next_id
        for choice in range(params.n):
            request = Request(
                self._next_id, list(prompt), len(prompt), params, seed, choice, limit, stop_ids, Timing(arrived)
            )
            if params.uses_history:
                request.history = History(prompt)
            if self.open_stream is not None:
                self._streams[request.id] = self.open_stream(params, prompt)
            choices.append(request)
            self.requests[request.id] = request
            self._group_of[request.id] = group
            self._next_id += 1
        choices[0].children = choices[1:]  # they start from its pages, once its prompt is computed
        self.scheduler.add(choices[0])
        return group

    def _check(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """How many tokens may be sampled. Raises ValueError."""
        if not prompt:
            raise ValueError("the prompt is empty; give at least one token")
        bad = next((token for token in prompt if not 0 <= token < self.vocabulary), None)
        if bad is not None:
            raise ValueError(f"token id {bad} is out of range; the model has ids 0 to {self.vocabulary - 1}")
        if params.stop and self.open_stream is None:
            raise ValueError("stop strings need a tokenizer; give stop_token_ids instead")
        params.check_vocab(self.vocabulary)
        length = len(prompt)
        if length >= self.context:
            raise ValueError(f"the prompt has {length} tokens, the model's context is {self.context}; shorten it")
        if length >= self.ledger.capacity:
            raise ValueError(
                f"the prompt has {length} tokens, KV memory holds {self.ledger.capacity}; "
                "shorten it or raise the KV budget"
            )
        room = min(self.context, self.ledger.capacity) - length
        return room if params.max_tokens is None else min(params.max_tokens, room)

    def abort(self, group: int) -> list[Event]:
        """End every choice of a request, wherever it stands. Unknown and finished ids are no error."""
        choices = [r for r in self.requests.values() if self._group_of[r.id] == group]
        return [self._finish(request, Finish.ABORT) for request in choices]

    def _finish(self, request: Request, finish: Finish, error: str | None = None) -> Event:
        """The only end of a request: its memory is released, its last text comes out."""
        request.finish, request.error = finish, error
        request.timing.finished = time.perf_counter()
        self.scheduler.release(request)
        self._suspects.pop(request, None)
        del self.requests[request.id]
        group = self._group_of.pop(request.id)
        stream = self._streams.pop(request.id, None)
        rest = stream.finish() if stream is not None else Delta()
        if rest.stop is not None and finish is Finish.LENGTH:
            finish = request.finish = Finish.STOP  # a stop string that could still have grown longer
        thoughts = stream.reasoning.reasoning_tokens if stream is not None and stream.reasoning is not None else 0
        return Event(group, request.choice, None, rest.text, rest.reasoning, finish, error, thoughts)

    # -- one step -----------------------------------------------------------------------------------------------------

    def step(self) -> list[Event]:
        """Run one step. A request that fails fails alone: its event says why, the others go on."""
        plan = self._plan()
        if plan is None:
            return []
        started = time.perf_counter()
        rows = [self._row(item.request) for item in plan.items for _ in item.logits]
        try:
            sampled = self.executor.execute(plan, rows)
        except Exception as error:
            return self._fail(plan, error)
        finished = time.perf_counter()
        self.scheduler.settle(plan, self.requests)
        self._suspects = {r: end for r, end in self._suspects.items() if r.computed < end}
        if self.on_step is not None:
            self.on_step(StepRecord(plan.work(self.reaches), finished - started))
        owners = [self.requests[item.request] for item in plan.items for _ in item.logits]
        for item in plan.items:
            timing = self.requests[item.request].timing
            timing.scheduled = timing.scheduled or started
        return [event for pair in zip(owners, sampled, strict=True) for event in self._accept(*pair)]

    def _plan(self) -> StepPlan | None:
        """The next plan. After a step failed, those that were in it run one at a time, to find the one to blame."""
        if self._suspects:
            plan = self.scheduler.schedule(only=[next(iter(self._suspects))])
            if plan is not None:
                return plan
            others = [r for r in self.requests.values() if r not in self._suspects]
            return self.scheduler.schedule(only=others)
        return self.scheduler.schedule()

    def _fail(self, plan: StepPlan, error: Exception) -> list[Event]:
        self.scheduler.undo(plan)
        ends = {self.requests[item.request]: item.segment.kv_len for item in plan.items}
        if len(ends) == 1:
            return self._give_up(next(iter(ends)), " ".join(f"{type(error).__name__}: {error}".split()))
        self._suspects = ends
        return []

    def _give_up(self, request: Request, reason: str) -> list[Event]:
        """End a request that failed, and the choices that were to start from its prompt, which is what failed."""
        return [self._finish(choice, Finish.ERROR, error=reason) for choice in (request, *request.children)]

    def _row(self, request_id: int) -> SampleRow:
        request = self.requests[request_id]
        return SampleRow(
            request.params,
            request.seed,
            request.known,
            request.choice,
            request.output_length,
            tuple(request.stop_ids),
            request.history,
        )

    def _accept(self, request: Request, sampled: Sampled | RowFailure) -> list[Event]:
        """Take a sampled token into a request."""
        if isinstance(sampled, RowFailure):
            return self._give_up(request, sampled.reason)
        for child in request.children:
            self.scheduler.fork(request, child)
        request.children = []
        request.tokens.append(sampled.token)
        if request.history is not None:
            request.history.append(sampled.token)
        if request.timing.first_token is None:
            request.timing.first_token = time.perf_counter()
        stops = sampled.token in request.stop_ids
        stream = self._streams.get(request.id)
        # A token that ends the text is not part of it, unless asked for.
        silent = stream is None or (stops and not request.params.include_stop)
        delta = Delta() if silent or stream is None else stream.push(sampled.token)
        event = Event(self._group_of[request.id], request.choice, sampled, delta.text, delta.reasoning)
        if stops or delta.stop is not None:
            return [event, self._finish(request, Finish.STOP)]
        if request.output_length >= request.limit:
            return [event, self._finish(request, Finish.LENGTH)]
        return [event]
