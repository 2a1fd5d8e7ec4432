"""The two counters of a request: its known tokens and its computed positions.

A scheduler does nothing but let the second counter catch up with the first.
"""

from dataclasses import asdict, dataclass, field
from itertools import pairwise

from ridgeline.engine import SamplingParams
from ridgeline.engine.engine_builder import build_engine, build_minimal_engine
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.kv.page_count import kv_layout
from ridgeline.engine.scheduler import Limits
from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.learn.lab.instrumented_model import InstrumentedModel
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import DocumentTable, TableRow, columns

BUDGET, ROOM = 48, 304
"""The maximum positions per engine step, and those that KV memory holds: too few for all requests."""
REQUESTS = {"a long prompt": (0, 150, 40), "a short one": (0, 12, 60), "a late one": (3, 70, 40)}
"""The experiment's requests by name: the step before which each arrives, its prompt and output length."""


@dataclass(slots=True)
class Race:
    """The history of a request's counters after each engine step, and its generated tokens."""

    steps: list[int] = field(default_factory=list)
    """The engine steps after which a request's counters were recorded."""
    known: list[int] = field(default_factory=list)
    """The request's number of known tokens after each recorded step."""
    computed: list[int] = field(default_factory=list)
    """The request's number of computed positions after each recorded step."""
    tokens: list[int] = field(default_factory=list)
    """The tokens generated for the request."""

    @property
    def behind(self) -> list[int]:
        """The number of the request's positions that remained to be computed after each step."""
        return [known - computed for known, computed in zip(self.known, self.computed, strict=True)]


def generation_request(length: int, answer: int) -> GenerationRequest:
    """Return a request for `answer` tokens after an arbitrary prompt of a given length."""
    params = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=answer)
    return GenerationRequest([(7 * position + length) % 2048 for position in range(length)], params)


def race(tales: InstrumentedModel) -> tuple[list[Race], list[int], int]:
    """Run all requests in one engine and record the known tokens and computed positions of each.

    Returns:
        The counters of each request, the positions of each step, and the number of preemptions.
    """
    model, layout = tales.model, kv_layout(tales.model, 1e12, most_tokens=ROOM)
    engine = build_engine(model, layout, Limits(tokens=BUDGET), prefix_cache=False)
    races, ran = dict[int, Race](), list[int]()
    engine.on_step = lambda step: ran.append(step.plan.tokens)
    waiting = list(REQUESTS.values())
    while engine.has_work or waiting:
        while waiting and waiting[0][0] <= len(ran):
            _, length, answer = waiting.pop(0)
            races[engine.add(generation_request(length, answer))] = Race()
        for event in engine.step():
            assert event.token is not None
            races[event.request].tokens.append(event.token.token)
        for request in engine.requests.values():
            one = races[request.group]
            one.steps.append(len(ran))
            one.known.append(request.known)
            one.computed.append(request.computed)
    return list(races.values()), ran, engine.scheduler.preemptions


def alone(tales: InstrumentedModel, length: int, answer: int) -> list[int]:
    """Return the tokens of a request that runs alone in an engine, with its prompt in one step."""
    engine = build_minimal_engine(tales.model, length + answer + 16)
    engine.add(generation_request(length, answer))
    events = [event for _ in iter(lambda: engine.has_work, False) for event in engine.step()]
    return [event.token.token for event in events if event.token is not None]


def run() -> ExperimentOutcome:
    """Run the experiment: count known tokens and computed positions of requests together, and run each alone."""
    tales = InstrumentedModel()
    races, ran, preempted = race(tales)
    same = [alone(tales, length, answer) for _, length, answer in REQUESTS.values()]
    long, short, _ = races
    least = min(gap for one in races for gap in one.behind)
    lost = [a for a, b in pairwise(short.computed) if b < a]
    named = dict(zip(REQUESTS, races, strict=True))
    rows = [TableRow((name, str(len(one.steps)), str(one.behind.count(1)))) for name, one in named.items()]
    lines = list[Series]()
    for name, one in list(named.items())[:2]:
        known, computed = (tuple(zip(one.steps, values, strict=True)) for values in (one.known, one.computed))
        lines += [Series(f"{name}: known", known, "dashed"), Series(f"{name}: computed", computed, "steps")]
    return ExperimentOutcome(
        (
            (least == 1 and max(ran) <= BUDGET, f"at least {least} behind; {min(ran)} to {max(ran)} rows per step"),
            (
                long.behind[0] > BUDGET and long.behind == sorted(long.behind, reverse=True),
                f"the long prompt was {', '.join(map(str, long.behind[:5]))}, ... positions behind",
            ),
            (
                preempted == len(lost) > 0 and short.known == sorted(short.known),
                f"the short request lost {', '.join(map(str, lost))} positions and kept all its tokens",
            ),
            (same == [one.tokens for one in races], f"{sum(len(one.tokens) for one in races)} tokens, all equal"),
        ),
        (
            DocumentTable(columns("request", "steps", "steps with one position to compute"), tuple(rows)),
            Chart("Known tokens and computed positions of two requests", "steps", "positions", tuple(lines)),
        ),
        {"ran": ran, "preempted": preempted, "races": {name: asdict(one) for name, one in named.items()}},
    )  # fmt: skip


EXPERIMENT = Experiment(
    "counters",
    "What does a scheduler do in each step?",
    (
        "A request always has at least one known token that is not computed yet, and no step exceeds its token budget.",
        "A prompt catches up in chunks over several steps. Decoding does the same with one position per step.",
        "When KV memory runs out, the youngest request loses its computed positions but keeps all its tokens.",
        "Preemption does not change the output: each request generates the same tokens as when it runs alone.",
    ),
    run,
)
