"""The two ways in, LLM and AsyncLLM, over folders: text, stops, reasoning, limits, and many callers at a time."""

import asyncio
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path

import pytest

from engine.collecting import finish_all
from engine.folders import CHAT, THINKING_CHAT, write_model
from engine.small_models import LLAMA, assert_nothing_held
from ridgeline.engine import LLM, AsyncLLM, Choice, EngineSettings, SamplingParams
from ridgeline.engine.engine import Engine
from ridgeline.engine.events import Event
from ridgeline.engine.request import Finish
from ridgeline.engine.sampling import RowFailure, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SETTINGS = EngineSettings(kv_bytes=4e6, limits=Limits(tokens=64, requests=8))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("bytes"), template=CHAT)


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    """A model of random weights; whatever a test did, nothing may be held after it."""
    llm = LLM(str(folder), SETTINGS)
    yield llm
    assert_nothing_held(llm.engine)


class Scripted:
    """An executor that says what it was told to, whatever the model would: a list of tokens for each choice."""

    def __init__(self, *scripts: Sequence[int]) -> None:
        self.scripts = scripts

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
        return [Sampled(self.scripts[row.choice % len(self.scripts)][row.generated]) for row in rows]


def say(llm: LLM, *texts: str) -> None:
    """Make the model say these texts, one for each choice, token by token, and then end."""
    ids = [llm.tokenizer.encode(text, add_special=False) for text in texts]
    llm.engine.executor = Scripted(*([*i, *llm.tokenizer.eos_ids] for i in ids))


def text_of(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events)


# -- LLM --------------------------------------------------------------------------------------------------------------


def test_prompts_as_text_as_ids_one_and_many(llm: LLM) -> None:
    (alone,) = llm.generate("abc", GREEDY)
    assert alone.prompt_ids == llm.encode("abc")
    assert alone.done
    assert len(alone.choices[0].tokens) == 12
    assert alone.text == llm.tokenizer.decode(alone.choices[0].token_ids)
    both = llm.generate(["abc", llm.encode("abc"), "x"], GREEDY)
    assert [completion.choices for completion in both[:2]] == [alone.choices] * 2
    assert both[2].choices != alone.choices
    assert llm.generate(llm.encode("abc"), GREEDY) == [alone]
    assert llm.generate([], GREEDY) == []


def test_each_prompt_with_its_own_parameters(llm: LLM) -> None:
    params = [dataclasses.replace(GREEDY, max_tokens=count) for count in (1, 5)]
    assert [len(c.choices[0].tokens) for c in llm.generate(["ab", "ab"], params)] == [1, 5]
    with pytest.raises(ValueError, match="2 prompts but 1 sampling parameters; give one each, or one for all"):
        llm.generate(["a", "b"], params[:1])


def test_a_prompt_that_cannot_run_stops_all_before_anything_runs(llm: LLM) -> None:
    for bad, says in (("", "the prompt is empty"), ([999], "token id 999 is out of range"), ([1] * 300, "context")):
        with pytest.raises(ValueError, match=says):
            llm.generate(["abc", bad], GREEDY)
        assert not llm.engine.has_work
    assert llm.engine.scheduler.steps == 0


def test_a_stream_is_the_same_text_in_pieces(llm: LLM) -> None:
    events = list(llm.stream("abc", GREEDY))
    (completion,) = llm.generate("abc", GREEDY)
    assert text_of(events) == completion.text
    assert [event.token.token for event in events if event.token] == completion.choices[0].token_ids
    assert [event.finish for event in events if event.finish] == [Finish.LENGTH]


def test_to_leave_a_stream_early_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("abc", GREEDY)
    next(stream)
    assert llm.engine.has_work
    stream.close()
    assert not llm.engine.has_work


def test_one_caller_at_a_time(llm: LLM) -> None:
    stream = llm.stream("abc", GREEDY)
    next(stream)
    with pytest.raises(ValueError, match="in the middle of another stream"):
        llm.generate("abc", GREEDY)
    with pytest.raises(ValueError, match="in the middle of another stream"):
        next(llm.stream("abc", GREEDY))
    rest = list(stream)
    assert len([event for event in rest if event.token]) == 11, "the stream goes on"
    assert rest[-1].finish is Finish.LENGTH


def test_what_is_interrupted_leaves_nothing_behind(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step

    def interrupted() -> list[Event]:
        if llm.engine.scheduler.steps == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["abc", "de"], GREEDY)
    assert not llm.engine.has_work


def test_a_conversation(llm: LLM, folder: Path) -> None:
    messages = [{"role": "user", "content": "hi <eos>"}]
    ids = llm.encode_chat(messages)
    assert llm.tokenizer.decode(ids, skip_special=False) == "<bos>user: hi <eos>\nassistant:"
    assert llm.tokenizer.eos_ids[0] not in ids, "what is typed is no control token"
    assert llm.chat(messages, GREEDY) == llm.generate(ids, GREEDY)[0]


def test_conversations_together(llm: LLM) -> None:
    """A list of them is a batch: an answer each, with parameters for all or for each, as if asked one by one."""
    first, second = [{"role": "user", "content": "hi"}], [{"role": "system", "content": "be brief"}]
    short = dataclasses.replace(GREEDY, max_tokens=3)
    assert llm.chat([first, second, first], GREEDY) == [llm.chat(each, GREEDY) for each in (first, second, first)]
    assert llm.chat([first, second], [GREEDY, short]) == [llm.chat(first, GREEDY), llm.chat(second, short)]
    assert llm.chat((first,), GREEDY) == [llm.chat(tuple(first), GREEDY)]


@pytest.mark.parametrize(
    "bad", ["hi", ["hi"], 3, [3], [[3]], [[{"role": "user", "content": "hi"}], "hi"], [["hi"]], None]
)
def test_what_is_no_conversation(llm: LLM, bad: object) -> None:
    with pytest.raises(ValueError, match=r"a conversation is a list of messages like .*; give that$"):
        llm.chat(bad, GREEDY)
    assert not llm.engine.has_work


def test_without_a_chat_template_a_conversation_is_refused(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path)), SETTINGS)
    with pytest.raises(ValueError, match="the model has no chat template; use generate"):
        llm.chat([{"role": "user", "content": "hi"}])


def test_sampling_defaults_and_ends_are_the_folders(tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 0.7, "top_k": 5, "eos_token_id": [65, 66]}
    llm = LLM(str(write_model(tmp_path, generation=generation)), SETTINGS)
    assert llm.loaded.defaults == SamplingParams(temperature=0.7, top_k=5)
    assert llm.engine.eos_ids == {65, 66, *llm.tokenizer.eos_ids}
    (completion,) = llm.generate([1, 2], SamplingParams(logit_bias={66: 100.0}))
    assert (completion.choices[0].token_ids, completion.choices[0].finish) == ([66], Finish.STOP)


def test_without_a_limit_an_answer_ends_with_the_context(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path, config={**LLAMA, "max_position_embeddings": 48})), SETTINGS)
    for count in (None, 400):
        (completion,) = llm.generate("abc", dataclasses.replace(GREEDY, max_tokens=count))
        assert len(completion.choices[0].tokens) == 48 - len(completion.prompt_ids)
        assert completion.choices[0].finish is Finish.LENGTH


def test_prompts_seen_before_are_not_computed_again(llm: LLM) -> None:
    prompt = [*range(40)]
    cached = []
    for own in (prompt, prompt, [*prompt[:33], 7], prompt[:32], [9, *prompt]):
        request = llm.engine.add(own, GREEDY)
        record = llm.engine.requests[request]
        finish_all(llm.engine)
        cached.append(record.cached)
    assert cached == [0, 32, 32, 16, 0]


def test_preemption_does_not_count_as_cached(folder: Path) -> None:
    """A request that comes back finds pages of its own; they were not there when it began."""
    llm = LLM(str(folder), dataclasses.replace(SETTINGS, kv_bytes=40 * 256.0, page_size=1))
    assert llm.loaded.layout.pages == 40
    requests = [llm.engine.add([i] * 4, dataclasses.replace(GREEDY, max_tokens=30)) for i in (1, 2, 3)]
    records = [llm.engine.requests[request] for request in requests]
    finish_all(llm.engine)
    assert sum(record.preemptions for record in records) > 0
    assert [record.cached for record in records] == [0, 0, 0]


# -- where an answer ends ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_string_across_tokens(llm: LLM, include: bool) -> None:
    """Each token is a byte: no half of a stop string may ever be shown."""
    say(llm, "Hello ENormous END. More.")
    params = SamplingParams(stop=("END", "nothing"), include_stop=include)
    events = list(llm.stream("x", params))
    assert text_of(events) == "Hello ENormous " + "END" * include
    shown = ""
    for event in events:
        shown += event.text
        assert "Hello ENormous END".startswith(shown)
        assert include or not shown.endswith("EN")
    assert events[-1].finish is Finish.STOP
    assert len([event for event in events if event.token]) == len("Hello ENormous END")


def test_a_stop_string_that_was_only_begun_is_text(llm: LLM) -> None:
    say(llm, "to be EN")
    (completion,) = llm.generate("x", SamplingParams(stop=("END",)))
    assert (completion.text, completion.choices[0].finish) == ("to be EN", Finish.STOP)
    (completion,) = llm.generate("x", SamplingParams(stop=("END",), max_tokens=8))
    assert (completion.text, completion.choices[0].finish) == ("to be EN", Finish.LENGTH)


def test_the_last_token_may_complete_a_stop_string(llm: LLM) -> None:
    say(llm, "to END")
    (completion,) = llm.generate("x", SamplingParams(stop=("END",), max_tokens=6))
    assert (completion.text, completion.choices[0].finish) == ("to ", Finish.STOP)


def test_characters_of_several_tokens_are_shown_whole(llm: LLM) -> None:
    say(llm, "aé🙂b")
    events = list(llm.stream("x", SamplingParams()))
    assert [event.text for event in events if event.text] == ["a", "é", "🙂", "b"]
    (completion,) = llm.generate("x", SamplingParams(max_tokens=2))
    assert completion.text == "a\ufffd", "cut in the middle of a character"


def test_choices_have_texts_and_ends_of_their_own(llm: LLM) -> None:
    say(llm, "one END", "two, longer", "three")
    (completion,) = llm.generate("x", SamplingParams(n=3, stop=("END",), max_tokens=8))
    assert [choice.text for choice in completion.choices] == ["one ", "two, lon", "three"]
    assert [choice.finish for choice in completion.choices] == [Finish.STOP, Finish.LENGTH, Finish.STOP]
    assert [choice.index for choice in completion.choices] == [0, 1, 2]


EOS, LETTER = 257, 40


@pytest.mark.parametrize(
    ("params", "tokens", "finish"),
    [
        ({}, [EOS], Finish.STOP),
        ({"min_tokens": 5}, None, Finish.STOP),
        ({"ignore_eos": True, "max_tokens": 4}, [EOS] * 4, Finish.LENGTH),
        ({"ignore_eos": True, "max_tokens": 4, "stop_token_ids": (EOS,)}, [EOS], Finish.STOP),
        ({"ignore_eos": True, "max_tokens": 4, "min_tokens": 4}, [EOS] * 4, Finish.LENGTH),
        ({"max_tokens": 4, "min_tokens": 4}, None, Finish.LENGTH),
    ],
)
def test_end_tokens(llm: LLM, params: dict[str, object], tokens: list[int] | None, finish: Finish) -> None:
    """A bias makes the model say nothing but its end token."""
    (completion,) = llm.generate("x", SamplingParams(temperature=0.0, logit_bias={EOS: 100.0}, **params))
    choice = completion.choices[0]
    assert EOS in llm.engine.eos_ids
    assert choice.finish is finish
    if tokens is not None:
        assert choice.token_ids == tokens
        assert choice.text == ""
    else:
        assert EOS not in choice.token_ids[: params["min_tokens"]]
        assert len(choice.tokens) == int(str(params["min_tokens"])) + (finish is Finish.STOP)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_is_text_only_where_it_is_asked_for(llm: LLM, include: bool) -> None:
    params = SamplingParams(temperature=0.0, logit_bias={LETTER: 100.0}, stop_token_ids=(LETTER,), include_stop=include)
    (completion,) = llm.generate("x", params)
    assert completion.choices[0].token_ids == [LETTER]
    assert completion.text == (llm.tokenizer.decode([LETTER]) if include else "")
    assert completion.choices[0].finish is Finish.STOP


@pytest.mark.parametrize("count", [0, 3])
def test_log_probabilities(llm: LLM, count: int) -> None:
    params = dataclasses.replace(GREEDY, logprobs=count, temperature=0.7, top_k=2, seed=1)
    (completion,) = llm.generate("abc", params)
    assert len(completion.choices[0].tokens) == 12
    for sampled in completion.choices[0].tokens:
        assert sampled.logprob is not None
        assert sampled.logprob_raw is not None
        assert sampled.logprob_raw <= sampled.logprob <= 0
        assert len(sampled.top_raw) == count
        assert len(sampled.top) == min(count, 2)
        if count:
            assert sum(math.exp(value) for _, value in sampled.top) == pytest.approx(1, abs=1e-5)
            assert sampled.token in dict(sampled.top)
    (without,) = llm.generate("abc", dataclasses.replace(params, logprobs=None))
    assert without.choices[0].token_ids == completion.choices[0].token_ids
    assert all(sampled.logprob is None and sampled.top == () for sampled in without.choices[0].tokens)


# -- reasoning --------------------------------------------------------------------------------------------------------


def thoughts(llm: LLM, messages: str, ids: Sequence[int]) -> Choice:
    llm.engine.executor = Scripted([*ids, *llm.tokenizer.eos_ids])
    return llm.chat([{"role": "user", "content": messages}], SamplingParams(stop=("STOP",))).choices[0]


def test_reasoning_that_the_template_opens(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path, template=THINKING_CHAT)), SETTINGS)
    encode, close = llm.tokenizer.encode, llm.tokenizer.control["</think>"]
    ids = [*encode("\nso STOP it\n", add_special=False), close, *encode("\n\nyes STOP", add_special=False)]
    choice = thoughts(llm, "hi", ids)
    assert (choice.reasoning, choice.text) == ("so STOP it", "yes "), "stop strings are about the answer"
    assert choice.reasoning_tokens == len("\nso STOP it\n") + 1
    assert choice.finish is Finish.STOP
    cut = thoughts(llm, "hi", encode("only thoughts", add_special=False))
    assert (cut.reasoning, cut.text) == ("only thoughts", "")


def test_reasoning_that_the_model_opens(tmp_path: Path) -> None:
    template = CHAT + "{# <think> #}"
    llm = LLM(str(write_model(tmp_path, template=template)), SETTINGS)
    encode, control = llm.tokenizer.encode, llm.tokenizer.control
    ids = [control["<think>"], *encode("hm", add_special=False), control["</think>"], *encode("yes", add_special=False)]
    choice = thoughts(llm, "<think>", ids)
    assert (choice.reasoning, choice.text, choice.reasoning_tokens) == ("hm", "yes", 4)


def test_a_model_whose_template_knows_no_reasoning_has_none(llm: LLM) -> None:
    say(llm, "<think>a</think>b")
    choice = llm.generate("x", SamplingParams())[0].choices[0]
    assert (choice.text, choice.reasoning, choice.reasoning_tokens) == ("ab", "", 0)


# -- the words that a continuation begins with ------------------------------------------------------------------------


def test_a_continuation_keeps_its_leading_space(tmp_path: Path) -> None:
    """SentencePiece's decoder drops the first space of a text; a continuation is not the beginning of one."""
    llm = LLM(str(write_model(tmp_path, pieces="words")), SETTINGS)
    word = llm.tokenizer.encode("the the", add_special=False)[1:]
    llm.engine.executor = Scripted([*word, *llm.tokenizer.eos_ids])
    assert llm.generate("see", SamplingParams())[0].text == " the"


def test_a_text_from_its_very_beginning_has_no_leading_space(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path, pieces="words")), SETTINGS)
    llm.engine.executor = Scripted([*llm.tokenizer.encode("the", add_special=False), *llm.tokenizer.eos_ids])
    assert llm.generate([llm.tokenizer.bos_id or 0], SamplingParams())[0].text == "the"


@pytest.fixture(scope="module")
def stories(data_dir: Path) -> LLM:
    return LLM(str(data_dir / "models" / "stories260K"), EngineSettings(kv_bytes=16e6))


def test_a_story_goes_on(stories: LLM) -> None:
    (completion,) = stories.generate("Once upon a time", dataclasses.replace(GREEDY, max_tokens=10))
    assert completion.text.startswith(", there was a")


def test_a_story_goes_on_with_a_space(stories: LLM) -> None:
    (completion,) = stories.generate("Once upon a time,", dataclasses.replace(GREEDY, max_tokens=10))
    assert completion.text.startswith(" there was a")


GOLDEN_STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big, red ball. She wanted to play with it, but it was too high.\n"
    "Lily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn't know what to do. She said, \"I want to "
    "play with your ball, but I can't find it.\"\n"
    "Lily was sad and didn't know what to do. She said, \"I'm sorry, Lily. I didn't know what to do.\"\n"
    "Lily didn't want to help her mom, so she said, \"I'm sorry, mom. I didn't know what to do.\" Her mom said, "
    "\"Don't worry, Lily. We can help you."
)


def test_the_golden_story(stories: LLM) -> None:
    """What llama2.c's own program writes with these weights, from the start token, at temperature 0."""
    (completion,) = stories.generate([1], dataclasses.replace(GREEDY, max_tokens=256))
    assert completion.text.startswith(GOLDEN_STORY)


# -- AsyncLLM ---------------------------------------------------------------------------------------------------------


def run_async(llm: LLM, use: Callable[[AsyncLLM], object]) -> object:
    """Runs `use` over an AsyncLLM, with an end to patience."""

    async def run() -> object:
        async with AsyncLLM(llm.loaded) as server:
            return await asyncio.wait_for(use(server), timeout=60)  # type: ignore[arg-type]

    return asyncio.run(run())


async def until_idle(engine: Engine) -> None:
    """An abort takes effect between two steps of another thread."""
    for _ in range(2000):
        if not engine.has_work:
            return
        await asyncio.sleep(0.005)
    raise AssertionError("a request that nobody waits for is still there")


def test_many_callers_get_what_each_would_get_alone(llm: LLM) -> None:
    prompts = ["abc", "d", "abc", "a much longer prompt than the others, in several chunks" * 2, "zz"]
    params = [
        dataclasses.replace(GREEDY, n=n, max_tokens=count, temperature=0.8, seed=3)
        for n, count in ((1, 12), (3, 4), (1, 30), (2, 7), (1, 1))
    ]
    wanted = llm.generate(prompts, params)

    async def use(server: AsyncLLM) -> None:
        got = await asyncio.gather(*map(server.generate, prompts, params))
        assert got == wanted
        events = [event async for event in server.stream("abc", params[0])]
        assert text_of(events) == wanted[0].text

    run_async(llm, use)


def test_one_caller_leaves_and_the_others_do_not_notice(llm: LLM) -> None:
    params = dataclasses.replace(GREEDY, max_tokens=60)
    wanted = llm.generate(["abc", "de"], params)

    async def leave(server: AsyncLLM) -> None:
        async with aclosing(server.stream("leaving", dataclasses.replace(GREEDY, max_tokens=200))) as stream:
            seen = 0
            async for _ in stream:
                seen += 1
                if seen == 5:
                    return

    async def use(server: AsyncLLM) -> None:
        stays = [asyncio.create_task(server.generate(prompt, params)) for prompt in ("abc", "de")]
        cancelled = asyncio.create_task(server.generate("cancelled", dataclasses.replace(GREEDY, max_tokens=200)))
        await leave(server)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        assert await asyncio.gather(*stays) == wanted
        await until_idle(llm.engine)

    run_async(llm, use)


def test_a_caller_that_is_cancelled_at_once_leaves_no_request(llm: LLM) -> None:
    async def use(server: AsyncLLM) -> None:
        stays = asyncio.create_task(server.generate("abc", dataclasses.replace(GREEDY, max_tokens=200)))
        for delay in (0, 0, 0.001, 0.003, 0.01):
            task = asyncio.create_task(server.generate("gone", dataclasses.replace(GREEDY, max_tokens=240)))
            await asyncio.sleep(delay)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await stays
        assert not llm.engine.has_work, "the request of a caller who had gone went on"

    run_async(llm, use)


def test_a_new_caller_does_not_wait_for_those_who_came_before(llm: LLM) -> None:
    """Its first token comes while the others are still under way: nothing starves at the engine's door."""

    async def use(server: AsyncLLM) -> None:
        first = asyncio.create_task(server.generate("abc", dataclasses.replace(GREEDY, max_tokens=230)))
        while not llm.engine.requests:
            await asyncio.sleep(0.001)
        await server.generate("de", dataclasses.replace(GREEDY, max_tokens=2))
        assert not first.done()
        await first

    run_async(llm, use)


def test_what_cannot_run_is_told_to_who_asked(llm: LLM) -> None:
    async def use(server: AsyncLLM) -> None:
        for bad in ("", [999], [1] * 300, [1.5]):
            with pytest.raises(ValueError, match=r"prompt|token id"):
                await server.generate(bad, GREEDY)
        assert (await server.generate("abc", GREEDY)).done

    run_async(llm, use)


def test_to_close_ends_what_is_under_way_and_refuses_what_comes(llm: LLM) -> None:
    async def run() -> None:
        server = AsyncLLM(llm.loaded)
        task = asyncio.create_task(server.generate("abc", dataclasses.replace(GREEDY, max_tokens=230)))
        while not llm.engine.requests:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(server.close)
        with pytest.raises(RuntimeError, match="the engine stopped"):
            await task
        with pytest.raises(RuntimeError, match="the engine is closed"):
            await server.generate("abc", GREEDY)
        server.close()

    asyncio.run(run())
    for request in list(llm.engine.requests):
        llm.engine.abort(request)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_bug_in_the_engine_is_told_to_all_who_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Event]:
        if len(llm.engine.requests) == 2:  # both are there to be told; until then nothing moves
            raise AssertionError("a bug of ours")
        return []

    monkeypatch.setattr(llm.engine, "step", broken)

    async def use(server: AsyncLLM) -> None:
        results = await asyncio.gather(*(server.generate(p, GREEDY) for p in ("abc", "de")), return_exceptions=True)
        assert [str(result) for result in results] == ["the engine stopped: a bug of ours"] * 2
        with pytest.raises(RuntimeError, match="the engine is closed"):
            await server.generate("abc", GREEDY)

    run_async(llm, use)
    for request in list(llm.engine.requests):
        llm.engine.abort(request)


def test_an_event_loop_that_is_gone_takes_only_its_own_requests(llm: LLM) -> None:
    server = AsyncLLM(llm.loaded)
    loop = asyncio.new_event_loop()
    stream = server.stream("abc", dataclasses.replace(GREEDY, max_tokens=230))
    loop.run_until_complete(anext(stream))
    loop.close()
    completion = asyncio.run(server.generate("de", GREEDY))
    assert completion.done
    asyncio.run(until_idle(llm.engine))
    server.close()


# -- folders ----------------------------------------------------------------------------------------------------------


def test_a_budget_that_holds_no_page_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="holds not one page"):
        LLM(str(folder), EngineSettings(kv_bytes=100.0))


@pytest.mark.parametrize("content", ["[]", "{", '{"temperature": -1, "do_sample": true}'])
def test_a_broken_generation_config_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"generation_config|temperature") as refused:
        LLM(str(tmp_path), SETTINGS)
    assert "\n" not in str(refused.value)


def test_a_config_that_states_its_end_tokens_in_a_list(tmp_path: Path) -> None:
    write_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8")) | {"eos_token_id": [3, 4]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert LLM(str(tmp_path), SETTINGS).engine.eos_ids == {3, 4, EOS}


def test_threads_are_those_of_the_command_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One for a small model, whatever torch had before; a number of one's own; more than there are cores are refused
    before anything is read."""
    used: list[int] = []
    monkeypatch.setattr("torch.set_num_threads", used.append)
    monkeypatch.setattr("ridgeline.host.cores", lambda: 3)
    assert LLM(str(folder), SETTINGS).threads == 1
    assert LLM(str(folder), SETTINGS, threads=3).threads == 3
    monkeypatch.setattr("ridgeline.host.SMALL_MODEL_BYTES", 0)
    assert LLM(str(folder), SETTINGS).threads == 3
    assert used == [1, 3, 3]
    with pytest.raises(ValueError, match="threads is 40000; it must be from 1 to 3, the cores"):
        LLM("no such folder", threads=40_000)


# -- settings ----------------------------------------------------------------------------------------------------------


def test_a_context_less_than_the_models(folder: Path) -> None:
    """A sequence ends where it is full, a prompt that fills it is refused, and KV memory is for no more positions."""
    whole = LLM(str(folder), dataclasses.replace(SETTINGS, kv_bytes=None))
    small = LLM(str(folder), dataclasses.replace(SETTINGS, kv_bytes=None, context=20))
    (completion,) = small.generate("abcdef", dataclasses.replace(GREEDY, max_tokens=500))
    assert len(completion.prompt_ids) + len(completion.choices[0].tokens) == 20
    assert completion.choices[0].finish is Finish.LENGTH
    (longer,) = whole.generate("abcdef", GREEDY)
    assert small.generate("abcdef", GREEDY) == [longer]
    with pytest.raises(ValueError, match="the model's context is 20; shorten it"):
        small.generate("a" * 40, GREEDY)
    assert small.engine.ledger.capacity() < whole.engine.ledger.capacity()
    with pytest.raises(ValueError, match="a context of 4,096 was asked for, the model's is 256; give that or less"):
        LLM(str(folder), dataclasses.replace(SETTINGS, context=4096))


def test_memory_as_a_share(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, a step, and keys and values together take that much of what is available."""
    monkeypatch.setattr("ridgeline.checkpoint.fill.available_memory", lambda: 64e6)
    held = [
        LLM(str(folder), EngineSettings(memory_share=share, limits=Limits(64, requests=128))).loaded.layout.nbytes
        for share in (0.1, 0.12)
    ]
    page = LLM(str(folder), SETTINGS).loaded.layout.page_bytes
    assert held[1] - held[0] == pytest.approx(0.02 * 64e6, abs=page)
    with pytest.raises(
        ValueError, match=r"leaves nothing for keys and values: weights and a step take .* give a larger"
    ):
        LLM(str(folder), EngineSettings(memory_share=1e-6))
    for share in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"memory_share is .*; give a number over 0 and at most 1"):
            EngineSettings(memory_share=share)
    with pytest.raises(ValueError, match="give one of them"):
        EngineSettings(memory_share=0.5, kv_bytes=1e6)


# -- what a notebook shows ---------------------------------------------------------------------------------------------


def test_what_is_shown_is_short(llm: LLM) -> None:
    """A line that says what it is, whatever the length of the text; neither weights nor tokens."""
    assert repr(llm).startswith("LLM('")
    assert len(repr(llm)) < 300
    assert "context 256, KV memory for" in repr(llm)
    say(llm, "Hello.", "x" * 100)
    (completion,) = llm.generate("abc", dataclasses.replace(GREEDY, n=2, max_tokens=200, ignore_eos=False))
    one, two = completion.choices
    assert repr(one) == f"Choice(0, 'Hello.', {len(one.tokens)} tokens, stop)"
    assert repr(two) == f"Choice(1, '{'x' * 60}'..., {len(two.tokens)} tokens, stop)"
    assert repr(completion) == f"Completion({len(completion.prompt_ids)} tokens of prompt, {one!r}, {two!r})"
    assert repr(Choice(0, error="no\npage")) == "Choice(0, '', 0 tokens, under way, error='no\\npage')"


def test_an_async_llm_is_shown_as_short(llm: LLM) -> None:
    async def use(server: AsyncLLM) -> None:
        info = server.info
        held = f"KV memory for {info.capacity:,} tokens"
        assert repr(server) == f"AsyncLLM(context 256, {held}, threads {info.threads})"
        await asyncio.to_thread(server.close)
        assert repr(server).endswith(", closed)")

    run_async(llm, use)
