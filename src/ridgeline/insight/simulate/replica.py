"""A simulated replica: the engine on a simulated clock, and the pricing of its steps."""

from collections.abc import Hashable
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
from ridgeline.price.bounded_cache import put
from ridgeline.price.device import Device
from ridgeline.price.error_interval import at_least_floor
from ridgeline.price.plan.scenario import Scenario
from ridgeline.price.price import Price

NO_OVERHEAD = HostOverhead()
"""The host overhead between two steps if none was measured: zero."""

_GREEDY = SamplingParams(temperature=0.0, max_tokens=None)


@dataclass(frozen=True, slots=True)
class Machine:
    """A simulated machine: a model on GPUs, and the setup of its engine."""

    case: Scenario
    layout: KVLayout
    limits: Limits
    context: int
    """The maximum number of positions per request."""
    prefix_cache: bool = True
    host_overhead: HostOverhead = NO_OVERHEAD
    """The host overhead between two steps, which the price of a step does not include."""


class StepPricer:
    """A function that returns the duration of a plan's step: its price times a factor, plus host overhead."""

    def __init__(self, price: Price, device: Device, factor: float = 1.0, between: HostOverhead = NO_OVERHEAD) -> None:
        """Create a pricer of engine steps for a device.

        After each call, `work` holds the work of the last step and `compute_bound` whether its arithmetic takes longer
        than its memory traffic. The caller sets `waited` if nothing ran before the next step.

        Args:
            price: The price model.
            device: The GPU.
            factor: Multiplies the predicted time of each step, which does not fall below the physical floor.
            between: The host overhead between two steps.
        """
        self._price, self._device, self._factor, self._between = price, device, factor, between
        self._found: dict[Hashable, tuple[float, float, bool]] = {}
        self.work, self.compute_bound = Work({}, 0), False
        self._new = 0  # the number of requests that started in the last step
        self.waited = False

    def __call__(self, plan: StepPlan) -> int:
        """Return the duration of a plan's step in nanoseconds."""
        self.work = plan.work(self._price.reaches)
        expected, floor, self.compute_bound = self._priced(self.work)
        between, before = self._between, self._new
        self._new = sum([item.first for item in plan.items]) if between.counts else 0
        passes = between.of(self.work.sequences, self._new, before=before, waited=self.waited)
        seconds = at_least_floor(expected * self._factor, expected, floor)
        return round(seconds * 1e9) + passes

    def _priced(self, work: Work) -> tuple[float, float, bool]:
        """Return a step's expected and least seconds, and whether its arithmetic takes longer than its memory traffic.

        A long run of few requests often repeats a step, because only the sum of the context lengths counts.
        """
        key = (work.shape, work.sequences, *work.attention.values())
        found = self._found.get(key)
        if found is None:
            price = self._price.price_step(self._device, work)
            memory = price.cost.memory_bytes / self._device.bandwidth_of(price.working_set)
            found = put(self._found, key, (price.expected, price.floor, price.floor > memory))
        return found


class PromptBuilder:
    """A builder of prompts from trace requests, in which blocks are identified by name.

    Blocks of equal name have equal content; unnamed blocks are unique. It also knows the named part of each response.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._own = 0  # the number of unique names; these are odd, names of shared blocks even

    def of(self, request: TraceRequest) -> tuple[NamedPrompt, NamedPrompt]:
        """Return the prompt of a request, and its response as far as the names of the blocks extend into it."""
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
    """One engine whose owner starts and ends each step; requests may be added in between."""

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
        self._over: int | None = None  # when the last step ended
        self._made: dict[int, int] = {}  # by request: the tokens it generates until it ends

    def add(self, request: TraceRequest, received: int = 0) -> int:
        """Add a request to the engine and return its number.

        Args:
            request: The request.
            received: Prompt positions whose KV cache another replica has computed.

        Raises:
            ValueError: If the engine rejects the request because it can never run.
        """
        prompt, answer = self._prompts.of(request)
        number = self.engine.add(GenerationRequest(prompt, _GREEDY), received=received)
        self.executor.expect(number, len(prompt), request.output, answer)
        self._made[number] = min(request.output, self.engine.requests[number].limit)
        return number

    def max_new_tokens(self, number: int) -> int:
        """Return the number of tokens that fit after the prompt of a newly added request."""
        return self.engine.requests[number].limit

    def forget(self, number: int) -> int:
        """Drop the state of a request that has ended and return how many tokens it generated."""
        self.executor.forget(number)
        return self._made.pop(number)

    def abort(self, number: int) -> None:
        """Abort a request before its response is complete."""
        self.engine.abort(number)
        self.forget(number)

    def begin(self) -> int | None:
        """Plan and start a step; return its duration in nanoseconds, or None if there is nothing to do."""
        assert self.plan is None, "a step has not ended"
        plan = self.engine.plan()
        if plan is None:
            return None
        self.pricer.waited = self.engine.clock() != self._over
        self.plan, self._outcomes = plan, self.engine.execute(plan)
        return self.executor.took

    def end(self) -> list[TokenEvent]:
        """End the step that was started and return its token events."""
        assert self.plan is not None, "no step has begun"
        plan, self.plan = self.plan, None
        self._over = self.engine.clock()
        return self.engine.accept(plan, self._outcomes)
