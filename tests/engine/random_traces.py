"""Random traces of requests over the null model, with whatever a request can ask for, and all that an engine does."""

import dataclasses
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from engine.null_model import GREEDY, VOCABULARY, VerifyingExecutor, expected_tokens, null_engine
from ridgeline.engine.decode_fast_path import DecodeFastPath, PlanOne
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.request import Request
from ridgeline.engine.sampling import Outcome, PromptLogprob, RowFailure, Sampled, SampleRow, Scored
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.speculator import Speculator
from ridgeline.engine.step_plan import PlanItem, StepPlan
from ridgeline.engine.structured_output_params import GuideStats, StructuredOutputs
from ridgeline.engine.token_rules import TokenRules
from support.drafters import ReplayDrafter

KINDS = ("plain", "stop ids", "log-probabilities", "scored", "form", "rules", "penalties", "min tokens", "adapter")
LONGEST = 25


class ObservedFastPath(DecodeFastPath):
    """A fast path that counts the items it planned; or one that no request enters."""

    entered = True
    planned = 0

    def items(
        self, grants: Mapping[Request, int], guesses: Mapping[Request, Sequence[int]], general: PlanOne
    ) -> list[PlanItem]:
        self.planned += sum(request.computed < request.decode_fast_until for request in grants)
        return super().items(grants, guesses, general)

    def _entering(self, request: Request, count: int, item: PlanItem) -> PlanItem:
        return super()._entering(request, count, item) if self.entered else item


class CountingGuide:
    """A form that is complete after so many tokens, and that cannot go on after others."""

    timestamps = None

    def __init__(self, length: int) -> None:
        self.length, self.said = length, 0

    def copy(self) -> "CountingGuide":
        return CountingGuide(self.length)

    def ahead(self) -> "CountingGuide":
        guide = CountingGuide(self.length)
        guide.said = self.said
        return guide

    def take(self, token: int) -> None:
        self.said += 1

    @property
    def complete(self) -> bool:
        return self.said >= self.length

    def allowed(self) -> None:
        return None

    def dead_end(self, held: Collection[int]) -> None:
        return None


class CountingGuides:
    """Makes a guide whose length the regular expression is."""

    stats = GuideStats()

    def constraint_for(
        self, form: StructuredOutputs, prompt: Sequence[int], ends: Collection[int], budget: int | None = None
    ) -> CountingGuide:
        assert budget is None
        assert form.regex is not None
        return CountingGuide(int(form.regex))


class TraceExecutor(VerifyingExecutor):
    """A null model that scores prompts, says log-probabilities, gives rows that fail, and fails in some steps."""

    def __init__(self, trace: "Trace") -> None:
        super().__init__(trace.windows, trace.pages, trace.page_size)
        self.trace = trace
        self.plans: list[StepPlan] = []
        self.rows: list[Any] = []

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        self.plans.append(plan)
        told = [
            (row.params, row.seed, row.position, row.choice, row.generated, sorted(row.end_ids))
            + (() if row.history is None else (row.history.ids.tolist(), row.history.counts.tolist()))
            for row in rows
        ]
        self.rows.append(told)
        ends = dict(self.ends)
        given = iter(super().execute(plan, rows))
        if plan.step in self.trace.failing_steps:
            self.ends = ends
            raise RuntimeError("it broke")
        params = iter(rows)
        outcomes: list[Outcome] = []
        for item in plan.items:
            own: Any = next(given) if item.logits else None
            own_rows = [next(params) for _ in item.logits]
            if own_rows:
                own = self._altered(item, own, own_rows[0].params)
            if item.scored is not None:
                own = Scored(tuple(PromptLogprob(token, -0.5) for token in item.scored.tokens), own)
            outcomes += [] if own is None else [own]
        return outcomes

    def _altered(self, item: PlanItem, outcome: Any, params: SamplingParams) -> Outcome:
        if (item.request, item.start) in self.trace.failing_rows:
            return RowFailure("raw logits contain NaN")
        if params.logprobs is None:
            return outcome
        if isinstance(outcome, Sampled):
            return Sampled(outcome.token, -1.0, -float(item.start))
        return [Sampled(one.token, -1.0, -float(item.start)) for one in outcome]


@dataclass
class Log:
    """All that an engine planned, told the executor and the caller, and held, step by step."""

    plans: list[StepPlan]
    rows: list[Any]
    events: list[TokenEvent] = field(default_factory=list)
    tables: list[Any] = field(default_factory=list)
    stats: list[Any] = field(default_factory=list)


class Trace:
    """A trace that a seed determines, with the shape of the engine that runs it."""

    def __init__(self, seed: int, *, guesses: bool) -> None:
        self.seed, self.guesses = seed, guesses
        draw = random.Random(seed)
        self.windows: tuple[int | None, ...] = draw.choice(((None,), (None, 6), (9,), (3, None)))
        self.page_size = draw.choice((1, 2, 4, 8))
        self.pages = len(self.windows) * draw.choice((70, 110, 300)) // self.page_size
        chunk, tokens = draw.choice((None, 1, 5, 11)), draw.choice((3, 12, 40))
        self.limits = Limits(tokens=tokens, requests=draw.choice((3, 7)), chunk=chunk)
        self.prefix_cache = draw.random() < 0.6
        self.count = 24
        self.failing_steps = {*draw.sample(range(150), 3)}
        self.failing_rows = {(draw.randrange(1, 40), draw.randrange(25)) for _ in range(12)}

    def run(self, *, fast: bool) -> tuple[Log, Engine, int]:
        """Run the trace with the fast path or without; return what happened, the engine, and the items planned fast."""
        draw = random.Random(self.seed)
        stem = [draw.randrange(VOCABULARY) for _ in range(20)]
        prompts: dict[int, list[int]] = {}

        def answer(request: Request) -> Sequence[int]:
            return expected_tokens(prompts[request.group], LONGEST, self.windows)

        drafter = ReplayDrafter(answer, 0.7, VOCABULARY, self.seed)
        executor, ticks = TraceExecutor(self), iter(range(10**9))
        engine = null_engine(
            windows=self.windows,
            pages=self.pages,
            page_size=self.page_size,
            limits=self.limits,
            prefix_cache=self.prefix_cache,
            executor=executor,
            guides=CountingGuides(),
            adapters={"loud": b"1", "soft": b"2"},
            speculator=Speculator(drafter, 3, VOCABULARY) if self.guesses else None,
            seed=self.seed,
            clock=lambda: next(ticks),
        )
        path = ObservedFastPath(engine.kv_cache_manager)
        path.entered = fast
        engine.scheduler.fast_path = path
        log = Log(executor.plans, executor.rows)
        while len(prompts) < self.count or engine.has_work:
            if len(prompts) < self.count and draw.random() < 0.4:
                self._add(engine, draw, stem, prompts)
            if prompts and draw.random() < 0.03:
                log.events += engine.abort(draw.choice(list(prompts)))
            executor.poison(engine.kv_cache_manager)
            events = engine.step()
            log.events += events
            log.events += self._stops(engine, draw, events)
            engine.kv_cache_manager.check()
            log.tables.append(
                {r: ([*map(list, t.pages)], t.published) for r, t in engine.kv_cache_manager.tables.items()}
            )
            log.stats.append(engine.stats)
            assert engine.scheduler.steps < 5_000, "it does not end"
        return log, engine, path.planned

    def _add(self, engine: Engine, draw: random.Random, stem: list[int], prompts: dict[int, list[int]]) -> None:
        prompt = stem[: draw.choice((0, 0, 7, 16, 20))] + [
            draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 9))
        ]
        kind, adapter = draw.choice(KINDS), ""
        params = dataclasses.replace(GREEDY, max_tokens=draw.randint(0, LONGEST), n=draw.choice((1, 1, 1, 3)))
        if kind == "stop ids":
            params = dataclasses.replace(params, stop_token_ids=tuple(draw.sample(range(VOCABULARY), 60)))
        elif kind == "log-probabilities":
            params = dataclasses.replace(params, logprobs=2)
        elif kind == "scored":
            params = dataclasses.replace(params, prompt_logprobs=0)
        elif kind == "form":
            form = StructuredOutputs(regex=str(draw.randint(1, LONGEST)))
            params = dataclasses.replace(params, structured_outputs=form)
        elif kind == "rules":
            params = dataclasses.replace(params, rules=TokenRules(opening=((1, 2),)))
        elif kind == "penalties":
            params = dataclasses.replace(params, repetition_penalty=1.2, frequency_penalty=0.3)
        elif kind == "min tokens":
            stops = tuple(draw.sample(range(VOCABULARY), 60))
            params = dataclasses.replace(params, min_tokens=min(3, params.max_tokens or 0), stop_token_ids=stops)
        elif kind == "adapter":
            adapter = draw.choice(("loud", "soft"))
        group = engine.add(GenerationRequest(prompt, params, adapter=adapter))
        prompts[group] = prompt

    def _stops(self, engine: Engine, draw: random.Random, events: Sequence[TokenEvent]) -> list[TokenEvent]:
        """What the engine says where a stop string has ended a text, a token or two before its last one."""
        told: list[TokenEvent] = []
        for event in events:
            if event.token is not None and draw.random() < 0.02:
                request = engine.requests.get(event.request + event.choice)
                if request is not None:
                    told += engine.stop(event.request, event.choice, draw.randint(1, request.output_length))
        return told
