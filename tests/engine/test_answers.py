"""Where an answer ends, what of it is reasoning, and which words it begins with."""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.folders import CHAT, THINKING_CHAT, write_model
from engine.scripted import EOS, GREEDY, LETTER, SETTINGS, Scripted, say, text_of
from ridgeline.engine import LLM, Choice, EngineSettings, SamplingParams
from ridgeline.engine.events import Event
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.llm import TextEngine
from ridgeline.engine.request import FinishReason

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
    assert events[-1].finish is FinishReason.STOP
    assert len([event for event in events if event.token]) == len("Hello ENormous END")


def test_a_stop_string_that_was_only_begun_is_text(llm: LLM) -> None:
    say(llm, "to be EN")
    (completion,) = llm.generate("x", SamplingParams(stop=("END",)))
    assert (completion.text, completion.choices[0].finish) == ("to be EN", FinishReason.STOP)
    (completion,) = llm.generate("x", SamplingParams(stop=("END",), max_tokens=8))
    assert (completion.text, completion.choices[0].finish) == ("to be EN", FinishReason.LENGTH)


def test_the_last_token_may_complete_a_stop_string(llm: LLM) -> None:
    say(llm, "to END")
    (completion,) = llm.generate("x", SamplingParams(stop=("END",), max_tokens=6))
    assert (completion.text, completion.choices[0].finish) == ("to ", FinishReason.STOP)


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
    assert [choice.finish for choice in completion.choices] == [
        FinishReason.STOP,
        FinishReason.LENGTH,
        FinishReason.STOP,
    ]
    assert [choice.index for choice in completion.choices] == [0, 1, 2]


@pytest.mark.parametrize(
    ("params", "tokens", "finish"),
    [
        ({}, [EOS], FinishReason.STOP),
        ({"min_tokens": 5}, None, FinishReason.STOP),
        ({"ignore_eos": True, "max_tokens": 4}, [EOS] * 4, FinishReason.LENGTH),
        ({"ignore_eos": True, "max_tokens": 4, "stop_token_ids": (EOS,)}, [EOS], FinishReason.STOP),
        ({"ignore_eos": True, "max_tokens": 4, "min_tokens": 4}, [EOS] * 4, FinishReason.LENGTH),
        ({"max_tokens": 4, "min_tokens": 4}, None, FinishReason.LENGTH),
    ],
)
def test_end_tokens(llm: LLM, params: dict[str, object], tokens: list[int] | None, finish: FinishReason) -> None:
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
        assert len(choice.tokens) == int(str(params["min_tokens"])) + (finish is FinishReason.STOP)


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_is_text_only_where_it_is_asked_for(llm: LLM, include: bool) -> None:
    params = SamplingParams(temperature=0.0, logit_bias={LETTER: 100.0}, stop_token_ids=(LETTER,), include_stop=include)
    (completion,) = llm.generate("x", params)
    assert completion.choices[0].token_ids == [LETTER]
    assert completion.text == (llm.tokenizer.decode([LETTER]) if include else "")
    assert completion.choices[0].finish is FinishReason.STOP


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
    assert choice.finish is FinishReason.STOP
    cut = thoughts(llm, "hi", encode("only thoughts", add_special=False))
    assert (cut.reasoning, cut.text) == ("only thoughts", "")


def test_reasoning_that_the_model_opens(tmp_path: Path) -> None:
    template = CHAT + "{# <think> #}"
    llm = LLM(str(write_model(tmp_path, template=template)), SETTINGS)
    encode, control = llm.tokenizer.encode, llm.tokenizer.control
    ids = [control["<think>"], *encode("hm", add_special=False), control["</think>"], *encode("yes", add_special=False)]
    choice = thoughts(llm, "<think>", ids)
    assert (choice.reasoning, choice.text, choice.reasoning_tokens) == ("hm", "yes", 4)


@pytest.mark.parametrize(("separate", "told"), [(True, ("hm", "yes")), (False, ("", "hmyes"))])
def test_reasoning_is_told_apart_if_the_request_says_so(tmp_path: Path, separate: bool, told: tuple[str, str]) -> None:
    llm = LLM(str(write_model(tmp_path, template=CHAT + "{# <think> #}")), SETTINGS)
    encode, control = llm.tokenizer.encode, llm.tokenizer.control
    ids = [control["<think>"], *encode("hm", add_special=False), control["</think>"], *encode("yes", add_special=False)]
    llm.engine.executor = Scripted([*ids, *llm.tokenizer.eos_ids])
    texts, events = TextEngine(llm.loaded), list[Event]()
    texts.add(GenerationRequest([1], SamplingParams(), separate_reasoning=separate))
    while llm.engine.has_work:
        events += texts.step()
    assert ("".join(event.reasoning for event in events), "".join(event.text for event in events)) == told


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
