"""Replay: a run of a real engine once more, on a simulated one, whose decisions have to be the same step by step.

What is handed over is what a simulation is ever told: how long a prompt is and by which names its blocks go (here each
token is one), when it comes, and, to the executor alone, by which names its answer goes on, and when it ends. That the
plans are equal, which items, positions, pages, copies, in which order, is not a measure of accuracy but either so or
not.
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
    """A step of the real run: the prompts that came before it with their numbers, the requests that were aborted before
    it, and its plan, as `plan_line`.
    """

    added: tuple[tuple[int, Sequence[int]], ...]
    aborted: tuple[int, ...]
    plan: str


@dataclass(slots=True)
class RecordedRun:
    """A real engine whose steps are written down. made: tokens that each request got; answers: those. aborted: requests
    that did not come to their ends. One choice a request.
    """

    engine: Engine
    steps: list[RecordedStep] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=dict)
    answers: dict[int, list[int]] = field(default_factory=dict)
    aborted: set[int] = field(default_factory=set)
    _added: list[tuple[int, Sequence[int]]] = field(default_factory=list)
    _aborted: list[int] = field(default_factory=list)

    def add(self, prompt: Sequence[int], params: SamplingParams) -> int:
        """As Engine.add."""
        number = self.engine.add(GenerationRequest(prompt, params))
        self.made[number], self.answers[number] = 0, []
        self._added.append((number, prompt))
        return number

    def abort(self, number: int) -> None:
        """As Engine.abort, of a request that is under way."""
        assert self.engine.abort(number), "it has ended"
        self.aborted.add(number)
        self._aborted.append(number)

    def step(self) -> list[TokenEvent]:
        """As Engine.step; a step that fails is no run to be replayed."""
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
        """What came after the last step, and no plan."""
        return RecordedStep(tuple(self._added), tuple(self._aborted), "")


def plan_line(plan: StepPlan) -> str:
    """A plan as JSON, with how many tokens each item runs in place of their ids, which a simulation does not know."""
    fields = json.loads(plan.to_json())
    for item in fields["items"]:
        item["tokens"] = len(item["tokens"])
    return json.dumps(fields)


def replay(machine: Machine, run: RecordedRun) -> Iterator[tuple[str, str]]:
    """The plan of each recorded step beside that of the simulated one, and what is left after the last: "" for none."""
    clock = SimulatedClock()
    replica = SimulatedReplica(machine, clock, StepPricer(machine.case.price, machine.case.device), PromptBuilder())
    for step in chain(run.steps, [run.rest]):
        for number, prompt in step.added:
            output = run.made[number] + (number in run.aborted)  # one that was aborted would have gone on
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
