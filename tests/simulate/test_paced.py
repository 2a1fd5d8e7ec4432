"""The paced executor: steps end when their price says, by a clock of our own that only waiting moves."""

import pytest

from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine.engine import Engine
from ridgeline.engine.engine_builder import build_engine
from ridgeline.engine.engine_settings import EngineSettings
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from ridgeline.insight.simulate.paced_executor import BEHIND, PacedExecutor
from ridgeline.insight.simulate.priced_engine import served_machine
from ridgeline.insight.simulate.replica import StepPricer
from ridgeline.insight.simulate.simulation import run
from ridgeline.insight.traffic.offered import OpenLoop
from ridgeline.insight.traffic.workload_trace import TraceRequest
from ridgeline.price.devices import load_device
from simulate.machines import machine

FILLER = (7, 8, 9)


class Time:
    """Nanoseconds that pass where somebody waits, and where a test says so."""

    def __init__(self) -> None:
        self.now = 10**9

    def __call__(self) -> int:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += round(seconds * 1e9)


def paced(time: Time, nanoseconds: int | None = None) -> Engine:
    """An engine of the small machine whose steps take so long; by default what they are priced at."""
    on = machine()
    pricer = StepPricer(on.case.price, on.case.device)
    executor = PacedExecutor((lambda plan: nanoseconds) if nanoseconds else pricer, FILLER, time, time.wait)
    return build_engine(
        on.case.model, on.layout, on.limits, context=on.context, executor=executor, clock=time, prefix_cache=False
    )


def asked(tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=tokens)


def test_it_takes_the_time_that_is_simulated() -> None:
    """Requests at moments of their own: first and last tokens come when the simulation says, to the nanosecond."""
    requests = [TraceRequest(at * 150_000, 40 + 97 * at % 300, 3 + at % 17) for at in range(40)]
    log = run(machine(prefix_cache=False), OpenLoop(requests))
    time = Time()
    start, engine, waiting = time.now, paced(time), list(requests)
    first, last = dict[int, int](), dict[int, int]()
    while waiting or engine.has_work:
        while waiting and start + waiting[0].at <= time.now:
            request = waiting.pop(0)
            engine.add(GenerationRequest([1] * request.input, asked(request.output)))
        if not engine.has_work:
            time.now = start + waiting[0].at
            continue
        for event in engine.step():
            first.setdefault(event.request, event.at - start)
            last[event.request] = event.at - start
    assert list(first.values()) == [log.requests.first[number - 1] for number in first]
    assert [last[number] for number in sorted(last)] == list(log.requests.last)


def test_what_the_program_takes_is_not_added() -> None:
    """Between two steps of a request the program may take as long as a step: it waits the less."""
    time = Time()
    engine, start = paced(time, 10_000), time.now
    engine.add(GenerationRequest([1, 2, 3], asked(5)))
    ends = []
    while engine.has_work:
        ends.append(engine.step()[-1].at - start)
        time.now += 9_000
    assert ends == [10_000, 20_000, 30_000, 40_000, 50_000]


def test_a_step_after_a_pause_begins_when_it_is_asked_for() -> None:
    time = Time()
    engine = paced(time, 10_000)
    for _ in range(2):
        begun = time.now
        engine.add(GenerationRequest([1, 2, 3], asked(1)))
        assert engine.step()[-1].at - begun == 10_000
        time.now += 5_000


def test_only_so_much_is_made_up_for() -> None:
    """Who stood still for a minute does not run a minute's steps at once."""
    time = Time()
    engine = paced(time, 10_000)
    engine.add(GenerationRequest([1, 2, 3], asked(100)))
    engine.step()
    time.now += 60 * 10**9
    steps, begun = 0, time.now
    while engine.has_work and time.now == begun:
        engine.step()
        steps += 1
    assert steps <= BEHIND // 10_000 + 1


def test_filler_goes_round_and_is_certain() -> None:
    time = Time()
    engine = paced(time, 10_000)
    engine.add(
        GenerationRequest([1] * 20, SamplingParams(temperature=0.0, max_tokens=5, logprobs=1, prompt_logprobs=0))
    )
    events = []
    while engine.has_work:
        events += engine.step()
    tokens = [event.token for event in events if event.token is not None]
    assert [token.token for token in tokens] == [7, 8, 9, 7, 8]
    assert {(token.logprob, token.logprob_raw, len(token.top)) for token in tokens} == {(0.0, 0.0, 1)}
    scores = [score for event in events for score in event.prompt_logprobs or ()]
    assert [score.logprob for score in scores if score is not None] == [0.0] * 19


@pytest.fixture(scope="module")
def settings() -> EngineSettings:
    return EngineSettings(limits=Limits(tokens=1024, requests=8), page_size=32, context=2048, kv_bytes=1e9, kv="fp8")


def test_the_machine_is_what_the_settings_say(settings: EngineSettings) -> None:
    """On two cards each has half the heads, so that its pages hold twice as many positions a byte."""
    source, card = open_source("llama-3-8b"), load_device("h100-sxm")
    one, two = (served_machine(source, settings, card, devices) for devices in (1, 2))
    assert (one.limits, one.context, one.layout.page_size, one.case.kv) == (settings.limits, 2048, 32, "fp8")
    assert one.layout.pages == int(1e9 // one.layout.page_bytes)
    assert two.layout.page_bytes == one.layout.page_bytes / 2


@pytest.mark.parametrize(
    ("model", "more", "says"),
    [
        ("llama-3-70b", {}, "do not fit on NVIDIA H100"),
        ("llama-3-8b", {"kv_bytes": 1e8}, "give --max-model-len 7"),
        ("llama-3-8b", {"weights": "int3"}, "--weights is 'int3'"),
        ("whisper-tiny", {}, "continue a text"),
    ],
)
def test_what_there_is_no_room_for(model: str, more: dict[str, object], says: str) -> None:
    with pytest.raises(ValueError, match=says) as error:
        served_machine(open_source(model), EngineSettings(**more), load_device("h100-sxm"), 1)
    assert "\n" not in str(error.value)
