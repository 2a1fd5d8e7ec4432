"""A replay of a real engine's run on a simulated engine, which must make the same decisions step by step.

The simulated engine gets only what a simulation knows: the length of each prompt, the names of its blocks (here each
token is a block) and its arrival. Only the executor knows the names of the response's blocks and when it ends. Whether
the plans are equal (items, positions, pages, copies and their order) is a yes-or-no question, not a measure of
accuracy.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from ridgeline.engine.engine import Engine
from ridgeline.engine.events import TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.step_plan import StepPlan
from ridgeline.insight.simulate.replica import Machine, PromptBuilder, SimulatedReplica, StepPricer
from ridgeline.insight.simulate.simulated_clock import SimulatedClock
from ridgeline.insight.traffic.workload_trace import TraceRequest


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step of the real run, with the additions and aborts that preceded it."""

    added: tuple[tuple[int, Sequence[int]], ...]
    """The requests added before the step: their numbers and prompts."""
    aborted: tuple[int, ...]
    """The numbers of the requests aborted before the step."""
    plan: str
    """The step plan, as `plan_line` formats it."""


@dataclass(slots=True)
class RecordedRun:
    """A wrapper around a real engine that records its steps. Requests have one choice each."""

    engine: Engine
    steps: list[RecordedStep] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=dict)
    """The number of tokens generated for each request."""
    answers: dict[int, list[int]] = field(default_factory=dict)
    """The tokens generated for each request, by request number."""
    aborted: set[int] = field(default_factory=set)
    """The numbers of the requests that were aborted."""
    _added: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    _aborted: list[int] = field(default_factory=list)

    def add(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """Add a request to the engine, record it, and return its number."""
        number = self.engine.add(GenerationRequest(prompt, params))
        self.made[number], self.answers[number] = 0, []
        self._added.append((number, prompt))
        return number

    def abort(self, number: int) -> None:
        """Abort a running or waiting request and record that."""
        assert self.engine.abort(number), "the request has ended"
        self.aborted.add(number)
        self._aborted.append(number)

    def step(self) -> list[TokenEvent]:
        """Run one engine step, record its plan, and return its token events; a failing step cannot be replayed."""
        plan = self.engine.plan()
        if plan is None:
            return []
        self.steps.append(replace(self.rest, plan=plan_line(plan)))
        self._added, self._aborted = [], []
        events = self.engine.accept(plan, self.engine.execute(plan))
        for event in events:
            if event.token is not None:
                self.made[event.request] += 1
                self.answers[event.request].append(event.token.token)
        return events

    @property
    def rest(self) -> RecordedStep:
        """The requests added and aborted after the last recorded step, as a step with an empty plan."""
        return RecordedStep(tuple(self._added), tuple(self._aborted), "")


def plan_line(plan: StepPlan) -> str:
    """Return a plan as JSON, with token counts in place of token ids, which a simulation does not know."""
    fields = json.loads(plan.to_json())
    for item in fields["items"]:
        item["tokens"] = len(item["tokens"])
    return json.dumps(fields)


def replay(machine: Machine, run: RecordedRun) -> Iterator[tuple[str, str]]:
    """Yield the plan of each recorded step paired with the simulated engine's plan, "" if there is none.

    A final pair covers whatever follows the last recorded step.
    """
    clock = SimulatedClock()
    replica = SimulatedReplica(machine, clock, StepPricer(machine.case.price, machine.case.device), PromptBuilder())
    for step in chain(run.steps, [run.rest]):
        for number, prompt in step.added:
            output = run.made[number] + (number in run.aborted)  # without the abort it would have continued
            names = tuple(map(str, chain(prompt, run.answers[number])))
            again = replica.add(TraceRequest(clock.now, len(prompt), output, names, 1))
            assert again == number, "numbers follow from the order of arrival"
        for number in step.aborted:
            replica.abort(number)
        took = replica.begin()
        yield step.plan, "" if replica.plan is None else plan_line(replica.plan)
        if took is not None:
            clock.to(clock.now + took)
            for event in replica.end():
                if event.finish is not None:
                    replica.forget(event.request)
