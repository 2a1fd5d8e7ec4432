"""The transcript beside an engine that knows tokens only: where a text ends, what counts, and what was wasted."""

import asyncio
import dataclasses
import itertools
import pickle
from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from engine.null_model import GREEDY, NullExecutor, null_engine
from engine.small_models import assert_nothing_held
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.reasoning_format import THINK, ReasoningFormat
from ridgeline.engine import AsyncLLM, Completion, SamplingParams
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import Stop, TokenEvent
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.llm import TextEngine
from ridgeline.engine.output_processor import OutputProcessor
from ridgeline.engine.request import FinishReason
from ridgeline.engine.sampling import Outcome, Sampled, SampleRow
from ridgeline.engine.setup import LoadedEngine
from ridgeline.engine.step_plan import StepPlan
from ridgeline.engine.text_processor import TextProcessor

TOKENIZER = ByteTokenizer()
EOS = 256


class Speaker(NullExecutor):
    """Says scripts, one for each choice, several tokens a step; the plans it runs are checked as ever."""

    def __init__(self, scripts: Sequence[Sequence[int]], burst: int) -> None:
        super().__init__((None,), 64, 4)
        self.scripts, self.burst = scripts, burst

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        super().execute(plan, rows)
        said = []
        for row in rows:
            script = self.scripts[row.choice % len(self.scripts)]
            said.append([Sampled(token) for token in script[row.generated : row.generated + self.burst]])
        return said


class Silent(nn.Linear):
    """Weights that nothing runs."""

    storage = StorageConfig(torch.float32)


def speaking(*texts: str, burst: int = 1) -> LoadedEngine:
    """A loaded engine that says these texts, one for each choice, and then ends."""
    scripts = [[*TOKENIZER.encode(text), EOS] for text in texts]
    engine = null_engine(executor=Speaker(scripts, burst), eos_ids=[EOS])
    texts = TextProcessor(TOKENIZER, None, GREEDY)
    price = SimpleNamespace(devices=1)
    return LoadedEngine(engine, Silent(1, 1), price, engine.kv_cache_manager.layout, texts)  # type: ignore[arg-type]


def run(texts: TextEngine, params: SamplingParams, prompt: Sequence[int] = (1, 2, 3)) -> Completion:
    request = texts.add(GenerationRequest(prompt, params))
    completion = Completion.empty(prompt, params.n)
    while texts.engine.has_work:
        for event in texts.step():
            assert event.request == request
            assert completion.choices[event.choice].finish is None, f"{event} after the end"
            completion.take([event])
    assert_nothing_held(texts.engine)
    assert completion.done
    return completion


def say(
    text: str, *, burst: int = 1, reasoning: ReasoningFormat | None = None, **params: object
) -> tuple[Completion, Engine]:
    texts = TextEngine(speaking(text, burst=burst))
    texts.output_processor = OutputProcessor(TOKENIZER, reasoning)
    return run(texts, dataclasses.replace(GREEDY, **params)), texts.engine  # type: ignore[arg-type]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("burst", [1, 2, 3, 5, 20])
def test_usage_ends_at_the_token_of_the_stop_however_many_come_at_once(burst: int, include: bool) -> None:
    said = "Hello ENormous END and more"
    completion, engine = say(said, burst=burst, stop=("END", "never"), include_stop=include)
    choice, kept = completion.choices[0], len("Hello ENormous END")
    assert choice.text == "Hello ENormous " + "END" * include
    assert (choice.finish, len(choice.tokens)) == (FinishReason.STOP, kept)
    sampled = min(-(-kept // burst) * burst, len(said) + 1)
    assert engine.stats.output_tokens == sampled
    assert engine.stats.dropped_tokens == sampled - kept


@pytest.mark.parametrize("burst", [1, 4])
def test_a_stop_that_waited_for_a_longer_one_ends_where_it_was_complete(burst: int) -> None:
    """At "bc" the longer "abcd" may still come; at "x" it is known that "bc" was the end, four tokens earlier."""
    completion, engine = say("..abcx", burst=burst, stop=("abcdef", "bc"))
    assert (completion.text, completion.choices[0].finish) == ("..a", FinishReason.STOP)
    assert len(completion.choices[0].tokens) == len("..abc")
    assert engine.stats.dropped_tokens == engine.stats.output_tokens - len("..abc") > 0


@pytest.mark.parametrize("burst", [1, 3, 9])
@pytest.mark.parametrize(
    ("said", "params", "text", "tokens", "finish"),
    [
        ("to EN", {"stop": ("END",)}, "to EN", 6, FinishReason.STOP),  # the end token
        ("to EN", {"stop": ("END",), "max_tokens": 5}, "to EN", 5, FinishReason.LENGTH),
        ("to END", {"stop": ("END",), "max_tokens": 6}, "to ", 6, FinishReason.STOP),
        ("a bc", {"stop": ("bcd", "b"), "max_tokens": 3}, "a ", 3, FinishReason.STOP),  # it could have grown
        ("a b", {"stop": ("bcd", "b")}, "a ", 3, FinishReason.STOP),  # the end token comes after the stop
        ("to END", {"stop": ("END",), "stop_token_ids": (ord("t"),)}, "", 1, FinishReason.STOP),
        ("to END", {"stop_token_ids": (ord("o"),), "include_stop": True}, "to", 2, FinishReason.STOP),
        ("é🙂END", {"stop": ("END",)}, "é🙂", 9, FinishReason.STOP),
        ("é🙂", {"max_tokens": 4}, "é\ufffd", 4, FinishReason.LENGTH),
        (
            "a END b END c",
            {"stop": ("END",), "min_tokens": 5},
            "a END b ",
            11,
            FinishReason.STOP,
        ),  # the first is too early
        ("a END b END c", {"stop": ("END",), "min_tokens": 4}, "a ", 5, FinishReason.STOP),
        ("a END b", {"stop": ("END",), "min_tokens": 7}, "a END b", 8, FinishReason.STOP),
        ("aaab", {"stop": ("aa",), "min_tokens": 2, "include_stop": True}, "aaa", 3, FinishReason.STOP),
        ("a END", {"stop": ("END",), "min_tokens": 5, "max_tokens": 5}, "a END", 5, FinishReason.LENGTH),
    ],
)
def test_the_ends_of_a_text(
    said: str, params: dict[str, object], text: str, tokens: int, finish: FinishReason, burst: int
) -> None:
    completion, engine = say(said, burst=burst, **params)
    choice = completion.choices[0]
    assert (choice.text, len(choice.tokens), choice.finish) == (text, tokens, finish)
    stats = engine.stats
    assert stats.output_tokens - stats.dropped_tokens <= tokens <= stats.output_tokens


@pytest.mark.parametrize("burst", [1, 7, 50])
def test_stops_are_about_the_answer_and_thoughts_are_counted(burst: int) -> None:
    said = "<think>so STOP it</think>yes STOP no"
    completion, _ = say(said, burst=burst, reasoning=THINK, stop=("STOP",))
    choice = completion.choices[0]
    assert (choice.reasoning, choice.text, choice.finish) == ("so STOP it", "yes ", FinishReason.STOP)
    assert len(choice.tokens) == len("<think>so STOP it</think>yes STOP")
    assert choice.reasoning_tokens == len("<think>so STOP it</think>")


@pytest.mark.parametrize("burst", [1, 4])
def test_choices_end_one_by_one(burst: int) -> None:
    loaded = speaking("one END more", "two, longer", "three", burst=burst)
    completion = run(TextEngine(loaded), dataclasses.replace(GREEDY, n=3, stop=("END",), max_tokens=8))
    assert [choice.text for choice in completion.choices] == ["one ", "two, lon", "three"]
    assert [len(choice.tokens) for choice in completion.choices] == [7, 8, 6]
    assert [choice.finish for choice in completion.choices] == [
        FinishReason.STOP,
        FinishReason.LENGTH,
        FinishReason.STOP,
    ]


def test_an_abort_midway_gives_the_text_that_was_held_back() -> None:
    loaded = speaking("to be EN")
    texts = TextEngine(loaded)
    request = texts.add(GenerationRequest([1, 2], dataclasses.replace(GREEDY, stop=("END",))))
    told = [event for _ in range(8) for event in texts.step()]
    assert "".join(event.text for event in told) == "to be "
    (last,) = texts.abort(request)
    assert (last.text, last.finish, last.output_tokens) == ("EN", FinishReason.ABORT, 8)
    assert texts.abort(request) == []
    assert_nothing_held(loaded.engine)


@pytest.mark.parametrize("late", [1, 2, 5])
def test_an_engine_in_another_process_hears_of_a_stop_late(late: int) -> None:
    """The messages survive pickling; the stop arrives some steps later, and all that came meanwhile is dropped."""
    loaded = speaking("Hello END and much more", burst=2)
    engine, transcript = loaded.engine, loaded.text_processor.new_output_processor()
    params = dataclasses.replace(GREEDY, max_tokens=50)
    request = engine.add(GenerationRequest([1, 2, 3], params))
    transcript.open(request, [1, 2, 3], dataclasses.replace(params, stop=("END",)))
    completion = Completion.empty([1, 2, 3], 1)
    under_way: list[tuple[int, Stop]] = []
    for step in itertools.count():
        for due, stop in under_way:
            if due == step:
                engine.stop(*pickle.loads(pickle.dumps(stop)))
        if not engine.has_work:
            break
        sent: list[TokenEvent] = pickle.loads(pickle.dumps(engine.step()))
        events, stops = transcript.take(sent)
        completion.take(events)
        under_way += [(step + late, stop) for stop in stops]
    choice = completion.choices[0]
    assert (choice.text, len(choice.tokens), choice.finish) == ("Hello ", 9, FinishReason.STOP)
    assert engine.stats.output_tokens == 10 + 2 * (late - 1)
    assert engine.stats.dropped_tokens == engine.stats.output_tokens - 9
    assert choice.timing is not None
    assert choice.timing.finished is not None
    assert_nothing_held(engine)


def test_what_cannot_be_opened_leaves_no_request(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = speaking("x")
    texts = TextEngine(loaded)

    def broken(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(texts.output_processor, "open", broken)
    with pytest.raises(MemoryError):
        texts.add(GenerationRequest([1], GREEDY))
    assert_nothing_held(loaded.engine)


def test_many_callers_at_once_with_stops_of_their_own() -> None:
    whole = "alpha beta gamma delta"
    loaded = speaking(whole, burst=3)
    words = ("beta", "gamma", "delta", "ta", "never")

    async def use() -> list[Completion]:
        async with AsyncLLM(loaded) as llm:
            params = [dataclasses.replace(GREEDY, stop=(word,)) for word in words]
            return await asyncio.wait_for(asyncio.gather(*(llm.generate([1, 2, 3], own) for own in params)), timeout=60)

    completions = asyncio.run(use())
    assert [completion.text for completion in completions] == [whole.split(word)[0] for word in words]
    assert_nothing_held(loaded.engine)
