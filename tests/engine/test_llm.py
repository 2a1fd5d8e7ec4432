"""LLM over folders: prompts, streams, conversations, settings, limits."""

import dataclasses
import json
import math
from pathlib import Path

import pytest

from engine.collecting import finish_all
from engine.folders import write_model
from engine.scripted import EOS, GREEDY, SETTINGS, say, text_of
from engine.small_models import LLAMA
from ridgeline.engine import LLM, Choice, EngineSettings, SamplingParams
from ridgeline.engine.events import Event
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.request import FinishReason
from ridgeline.engine.scheduler import Limits


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
    with pytest.raises(
        ValueError,
        match="2 prompts have 1 sampling parameters: give one SamplingParams for each prompt, or one for all",
    ):
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
    assert [event.finish for event in events if event.finish] == [FinishReason.LENGTH]


def test_to_leave_a_stream_early_ends_its_request(llm: LLM) -> None:
    stream = llm.stream("abc", GREEDY)
    next(stream)
    assert llm.engine.has_work
    stream.close()
    assert not llm.engine.has_work


def test_one_caller_at_a_time(llm: LLM) -> None:
    stream = llm.stream("abc", GREEDY)
    next(stream)
    with pytest.raises(ValueError, match="another stream of this LLM has not ended"):
        llm.generate("abc", GREEDY)
    with pytest.raises(ValueError, match="another stream of this LLM has not ended"):
        next(llm.stream("abc", GREEDY))
    rest = list(stream)
    assert len([event for event in rest if event.token]) == 11, "the stream goes on"
    assert rest[-1].finish is FinishReason.LENGTH


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
    with pytest.raises(ValueError, match=r"messages is not a list of messages: give a list such as \[\{.*\}\]$"):
        llm.chat(bad, GREEDY)
    assert not llm.engine.has_work


def test_without_a_chat_template_a_conversation_is_refused(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path)), SETTINGS)
    with pytest.raises(ValueError, match="the model has no chat template: use generate"):
        llm.chat([{"role": "user", "content": "hi"}])


def test_sampling_defaults_and_ends_are_the_folders(tmp_path: Path) -> None:
    generation = {"do_sample": True, "temperature": 0.7, "top_k": 5, "eos_token_id": [65, 66]}
    llm = LLM(str(write_model(tmp_path, generation=generation)), SETTINGS)
    assert llm.loaded.defaults == SamplingParams(temperature=0.7, top_k=5)
    assert llm.engine.eos_ids == {65, 66, *llm.tokenizer.eos_ids}
    (completion,) = llm.generate([1, 2], SamplingParams(logit_bias={66: 100.0}))
    assert (completion.choices[0].token_ids, completion.choices[0].finish) == ([66], FinishReason.STOP)


def test_without_a_limit_an_answer_ends_with_the_context(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path, config={**LLAMA, "max_position_embeddings": 48})), SETTINGS)
    for count in (None, 400):
        (completion,) = llm.generate("abc", dataclasses.replace(GREEDY, max_tokens=count))
        assert len(completion.choices[0].tokens) == 48 - len(completion.prompt_ids)
        assert completion.choices[0].finish is FinishReason.LENGTH


def test_prompts_seen_before_are_not_computed_again(llm: LLM) -> None:
    prompt = [*range(40)]
    cached = []
    for own in (prompt, prompt, [*prompt[:33], 7], prompt[:32], [9, *prompt]):
        request = llm.engine.add(GenerationRequest(own, GREEDY))
        record = llm.engine.requests[request]
        finish_all(llm.engine)
        cached.append(record.cached)
    assert cached == [0, 32, 32, 16, 0]


def test_preemption_does_not_count_as_cached(folder: Path) -> None:
    """A request that comes back finds pages of its own; they were not there when it began."""
    llm = LLM(str(folder), dataclasses.replace(SETTINGS, kv_bytes=40 * 256.0, page_size=1))
    assert llm.loaded.layout.pages == 40
    requests = [
        llm.engine.add(GenerationRequest([i] * 4, dataclasses.replace(GREEDY, max_tokens=30))) for i in (1, 2, 3)
    ]
    records = [llm.engine.requests[request] for request in requests]
    finish_all(llm.engine)
    assert sum(record.preemptions for record in records) > 0
    assert [record.cached for record in records] == [0, 0, 0]


# -- folders ----------------------------------------------------------------------------------------------------------


def test_a_budget_that_holds_no_page_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="does not hold a single page"):
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
    monkeypatch.setattr("ridgeline.util.host.cores", lambda: 3)
    assert LLM(str(folder), SETTINGS).threads == 1
    assert LLM(str(folder), SETTINGS, threads=3).threads == 3
    monkeypatch.setattr("ridgeline.util.host.SMALL_MODEL_BYTES", 0)
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
    assert completion.choices[0].finish is FinishReason.LENGTH
    (longer,) = whole.generate("abcdef", GREEDY)
    assert small.generate("abcdef", GREEDY) == [longer]
    with pytest.raises(ValueError, match="the model's context is 20: shorten the prompt"):
        small.generate("a" * 40, GREEDY)
    assert small.engine.kv_cache_manager.capacity() < whole.engine.kv_cache_manager.capacity()
    with pytest.raises(ValueError, match="--context is 4,096, but the model's context is 256: give at most that"):
        LLM(str(folder), dataclasses.replace(SETTINGS, context=4096))


def test_memory_as_a_share(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, a step, and keys and values together take that much of what is available."""
    monkeypatch.setattr("ridgeline.core.checkpoint.weight_loader.available_memory", lambda: 64e6)
    held = [
        LLM(str(folder), EngineSettings(memory_share=share, limits=Limits(64, requests=128))).loaded.layout.nbytes
        for share in (0.1, 0.12)
    ]
    page = LLM(str(folder), SETTINGS).loaded.layout.page_bytes
    assert held[1] - held[0] == pytest.approx(0.02 * 64e6, abs=page)
    with pytest.raises(
        ValueError, match=r"leaves nothing for the KV cache, because weights and a step need .* give a larger"
    ):
        LLM(str(folder), EngineSettings(memory_share=1e-6))
    for share in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match=r"memory_share is .*: give a number above 0 and at most 1"):
            EngineSettings(memory_share=share)
    with pytest.raises(ValueError, match="give only one of them"):
        EngineSettings(memory_share=0.5, kv_bytes=1e6)


# -- what a notebook shows ---------------------------------------------------------------------------------------------


def test_what_is_shown_is_short(llm: LLM) -> None:
    """A line that says what it is, whatever the length of the text; neither weights nor tokens."""
    assert repr(llm).startswith("LLM('")
    assert len(repr(llm)) < 300
    assert f"context 256, KV cache: {llm.loaded.layout.tokens:,} tokens, threads" in repr(llm)
    say(llm, "Hello.", "x" * 100)
    (completion,) = llm.generate("abc", dataclasses.replace(GREEDY, n=2, max_tokens=200, ignore_eos=False))
    one, two = completion.choices
    assert repr(one) == f"Choice(0, 'Hello.', {len(one.tokens)} tokens, stop)"
    assert repr(two) == f"Choice(1, '{'x' * 60}'..., {len(two.tokens)} tokens, stop)"
    assert repr(completion) == f"Completion({len(completion.prompt_ids)} tokens of prompt, {one!r}, {two!r})"
    assert repr(Choice(0, error="no\npage")) == "Choice(0, '', 0 tokens, under way, error='no\\npage')"
