"""A replica: the engine on a simulated clock, and how each of its steps is priced."""

from dataclasses import dataclass

from ridgeline.core.ops.kv_layout import KVLayout
from ridgeline.core.ops.work import Work
from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.events import TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.prompt_tokens import NamedPrompt
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan
from ridgeline.insight.simulate.priced_executor import END_ID, PricedExecutor
from ridgeline.insight.simulate.serving_overhead import HostOverhead
from ridgeline.insight.simulate.simulated_clock import SimulatedClock
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.device import Device
from ridgeline.price.plan.scenario import Scenario
from ridgeline.price.price import Price

NOTHING = HostOverhead()
"""Passes between two steps, where nobody has measured what does."""

_ASKED = SamplingParams(temperature=0.0, max_tokens=None)


@dataclass(frozen=True, slots=True)
class Machine:
    """A model on cards, and how its engine is set up. context: positions that a request may have. between: what passes
    from one step to the next beside what the price knows.
    """

    case: Scenario
    layout: KVLayout
    limits: Limits
    context: int
    prefix_cache: bool = True
    between: HostOverhead = NOTHING


class StepPricer:
    """What steps take: what the price expects, times a factor, and what passes between two."""

    def __init__(self, price: Price, device: Device, factor: float = 1.0, between: HostOverhead = NOTHING) -> None:
        """between: as of a Machine. Of the last step, work: what it asks for; compute_bound: whether that
        is more arithmetic than memory traffic. waited: whether nothing ran before the next one.
        """
        self._price, self._device, self._factor, self._between = price, device, factor, between
        self.work, self.compute_bound = Work({}, 0), False
        self._new = 0  # requests that were in the last step for the first time
        self.waited = False

    def __call__(self, plan: StepPlan) -> int:
        """Nanoseconds of a plan's step."""
        self.work = plan.work(self._price.reaches)
        found = self._price.on(self._device, self.work)
        memory = found.cost.memory_bytes / self._device.bandwidth_of(found.working_set)
        self.compute_bound = found.floor > memory
        between, before = self._between, self._new
        self._new = sum([item.first for item in plan.items]) if between.counts else 0
        passes = between.of(self.work.sequences, self._new, before=before, waited=self.waited)
        return round(found.expected * self._factor * 1e9) + passes


class PromptBuilder:
    """Prompts of offered requests, and what is known of their answers. Blocks of one name are the same; what has no
    name is nobody else's.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._own = 0  # names that nothing else has; they are odd, those of blocks even

    def of(self, request: TraceRequest) -> tuple[NamedPrompt, NamedPrompt]:
        """The prompt of one, and its answer as far as the names of the blocks reach into it."""
        block = request.block or request.input
        names = [2 * self._numbers.setdefault(name, len(self._numbers)) for name in request.blocks]
        known = min(request.input + request.output, len(names) * block)
        for _ in range(-(-request.input // block) - len(names)):
            self._own += 1
            names.append(2 * self._own + 1)
        length = max(known, request.input)
        whole = NamedPrompt(length, names[: -(-length // block)], block)
        return whole[: request.input], whole[request.input :]


class SimulatedReplica:
    """One engine, whose steps begin and end when its owner says so: in between, requests may come."""

    def __init__(self, machine: Machine, clock: SimulatedClock, pricer: StepPricer, prompts: PromptBuilder) -> None:
        self.pricer, self._prompts = pricer, prompts
        self.executor = PricedExecutor(pricer)
        self.engine = build_engine(
            machine.case.model,
            machine.layout,
            machine.limits,
            context=machine.context,
            executor=self.executor,
            prefix_cache=machine.prefix_cache,
            eos_ids=(END_ID,),
            clock=clock,
        )
        self.plan: StepPlan | None = None
        self._over: int | None = None  # when the last step was
        self._made: dict[int, int] = {}  # tokens that requests are given until they end

    def add(self, request: TraceRequest, received: int = 0) -> int:
        """Queue a request; its number. received: as Engine.add. Raises ValueError for one that cannot run, as the
        engine does.
        """
        prompt, answer = self._prompts.of(request)
        number = self.engine.add(GenerationRequest(prompt, _ASKED), received=received)
        self.executor.expect(number, len(prompt), request.output, answer)
        self._made[number] = min(request.output, self.engine.requests[number].limit)
        return number

    def room(self, number: int) -> int:
        """Tokens for which there is place behind the prompt of a request that has just come."""
        return self.engine.requests[number].limit

    def forget(self, number: int) -> int:
        """A request has ended; how many tokens it was given."""
        self.executor.forget(number)
        return self._made.pop(number)

    def abort(self, number: int) -> None:
        """End a request before its answer does."""
        self.engine.abort(number)
        self.forget(number)

    def begin(self) -> int | None:
        """Plan a step; the nanoseconds that it takes, None where there is nothing to do."""
        assert self.plan is None, "a step has not ended"
        plan = self.engine.plan()
        if plan is None:
            return None
        self.pricer.waited = self.engine.clock() != self._over
        self.plan, self._outcomes = plan, self.engine.execute(plan)
        return self.executor.took

    def end(self) -> list[TokenEvent]:
        """The step that began is over: its tokens."""
        assert self.plan is not None, "no step has begun"
        plan, self.plan = self.plan, None
        self._over = self.engine.clock()
        return self.engine.accept(plan, self._outcomes)
