"""The limit thinking_token_budget: after its last token the engine writes the marker that ends the reasoning."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from engine.folders import CHAT, THINKING_CHAT, write_model, write_tokenizer
from ridgeline.core.text import load_tokenizer, reasoning_format_named
from ridgeline.engine import LLM, EngineSettings, SamplingParams, StructuredOutputs
from ridgeline.engine.request import FinishReason
from ridgeline.engine.sampling import Outcome, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.config import Speculation
from ridgeline.engine.step_plan import StepPlan
from ridgeline.engine.structured_output import StructuredOutputManager
from text.tiny_tokenizers import byte_level

ASK = [{"role": "user", "content": "hi"}]
NUMBER = StructuredOutputs(regex="[0-9]{3}")


class Wishes:
    """Says its script where that is allowed, else the first token that is."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        return [self._choose(row) for row in rows]

    def _choose(self, row: SampleRow) -> Sampled:
        wish = self.script[min(row.generated, len(self.script) - 1)]
        if row.allowed is None or row.allowed[wish // 32] >> (wish % 32) & 1:
            return Sampled(wish)
        word = next(index for index, bits in enumerate(row.allowed) if bits)
        return Sampled(word * 32 + (int(row.allowed[word]) & -int(row.allowed[word])).bit_length() - 1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model whose template opens a section."""
    return write_model(tmp_path_factory.mktemp("thinks") / "model", template=THINKING_CHAT)


@pytest.fixture
def thinker(folder: Path) -> LLM:
    return LLM(str(folder))


def script(llm: LLM, text: str) -> None:
    """Let a model say this text, and then its end token."""
    llm.engine.executor = Wishes([*llm.tokenizer.encode(text, add_special=False), *llm.tokenizer.eos_ids])


@pytest.mark.parametrize("budget", [0, 1, 5])
def test_the_budget_closes_the_reasoning(thinker: LLM, budget: int) -> None:
    script(thinker, "x" * (budget + 1) + "yes")
    (choice,) = thinker.chat(ASK, SamplingParams(thinking_token_budget=budget)).choices
    assert (choice.reasoning, choice.text, choice.finish) == ("x" * budget, "yes", FinishReason.STOP)
    assert choice.token_ids[budget] == thinker.tokenizer.control["</think>"]
    assert choice.reasoning_tokens == budget + 1


def test_a_budget_that_is_not_spent_changes_nothing(thinker: LLM) -> None:
    script(thinker, "xx</think>yes STOP no")
    (choice,) = thinker.chat(ASK, SamplingParams(thinking_token_budget=3, stop=("STOP",))).choices
    assert (choice.reasoning, choice.text) == ("xx", "yes ")


def test_a_stream_shows_the_forced_end_of_the_reasoning(thinker: LLM) -> None:
    script(thinker, "xx.yes")
    events = list(thinker.stream(thinker.encode_chat(ASK), SamplingParams(thinking_token_budget=2)))
    assert "".join(event.reasoning for event in events) == "xx"
    assert "".join(event.text for event in events) == "yes"
    assert [event.text for event in events[:3]] == ["", "", ""]


def test_every_choice_and_request_has_its_own_budget(thinker: LLM) -> None:
    script(thinker, "xxxxxxyes")
    params = [SamplingParams(thinking_token_budget=2, n=2), SamplingParams(thinking_token_budget=5)]
    prompt = thinker.encode_chat(ASK)
    first, second = thinker.generate([prompt, prompt], params)
    assert [(choice.reasoning, choice.text) for choice in first.choices] == [("xx", "xxxyes")] * 2
    assert [(choice.reasoning, choice.text) for choice in second.choices] == [("xxxxx", "yes")]


def test_a_section_that_the_model_opens_counts_too(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path / "model", template=CHAT + "{# <think> #}")))
    script(llm, "<think>xxx.yes")
    (choice,) = llm.chat(ASK, SamplingParams(thinking_token_budget=3)).choices
    assert (choice.reasoning, choice.text) == ("xxx", "yes")


def test_a_structured_output_follows_the_budget(thinker: LLM) -> None:
    script(thinker, "xxx.246")
    (choice,) = thinker.chat(ASK, SamplingParams(thinking_token_budget=3, structured_outputs=NUMBER)).choices
    assert (choice.reasoning, choice.text, choice.finish) == ("xxx", "246", FinishReason.STOP)


def test_tags_of_several_tokens_are_forced_whole(tmp_path: Path) -> None:
    template = THINKING_CHAT.replace("<think>", "<seed:think>")
    llm = LLM(str(write_model(tmp_path / "model", template=template)))
    script(llm, "xxx" + "." * len("</seed:think>") + "246")
    for form in (None, NUMBER):
        (choice,) = llm.chat(ASK, SamplingParams(thinking_token_budget=3, structured_outputs=form)).choices
        assert (choice.reasoning, choice.text) == ("xxx", "246")


def test_in_harmony_the_final_channel_follows(tmp_path: Path) -> None:
    markers = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")
    write_tokenizer(tmp_path, byte_level(), None, specials=markers)
    tokenizer = load_tokenizer(tmp_path)
    guides = StructuredOutputManager(tokenizer, tokenizer.vocab_size, reasoning_format_named("openai_gptoss"))
    prompt = tokenizer.encode("<|start|>assistant", add_special=False)
    for form, answer in ((None, "yes"), (NUMBER, "246")):
        guide = guides.constraint_for(form, prompt, (), 2)
        forced = "<|end|><|start|>assistant<|channel|>final<|message|>"
        for token in tokenizer.encode(f"<|channel|>analysis<|message|>xx{forced}{answer}", add_special=False):
            assert guide.allowed()[token // 32] >> (token % 32) & 1
            guide.take(token)
        assert guide.complete == (form is not None)
        guide = guides.constraint_for(form, prompt, (), 2)
        for token in tokenizer.encode("<|channel|>analysis<|message|>xx", add_special=False):
            guide.take(token)
        for token in tokenizer.encode(forced, add_special=False):
            assert sum(int(word).bit_count() for word in guide.allowed()) == 1
            guide.take(token)


def test_guesses_and_preemptions_change_nothing(folder: Path, thinker: LLM) -> None:
    prompts = [thinker.encode_chat([{"role": "user", "content": text}]) for text in ("aaaa", "bababa", "hi")]
    params = SamplingParams(thinking_token_budget=7, temperature=0, max_tokens=100, ignore_eos=True)
    alone = [thinker.generate([prompt], params)[0].choices[0].token_ids for prompt in prompts]
    assert all(thinker.tokenizer.control["</think>"] in ids[:8] for ids in alone)
    guessing = LLM(str(folder), EngineSettings(speculation=Speculation("ngram", 4, shortest=1)))
    assert [each.choices[0].token_ids for each in guessing.generate(prompts, params)] == alone
    small = LLM(str(folder), EngineSettings(kv_bytes=10 * 8192, limits=Limits(tokens=32, requests=8)))
    assert [each.choices[0].token_ids for each in small.generate(prompts, params)] == alone
    assert small.engine.stats.preemptions


def test_a_model_without_markers_refuses_a_budget(tmp_path: Path) -> None:
    llm = LLM(str(write_model(tmp_path / "model", template=CHAT)))
    with pytest.raises(ValueError, match="thinking_token_budget needs markers of reasoning"):
        llm.chat(ASK, SamplingParams(thinking_token_budget=3))


@pytest.mark.parametrize("budget", [-1, 1.5, "3"])
def test_a_budget_that_is_no_count_is_refused(budget: object) -> None:
    with pytest.raises(ValueError, match="thinking_token_budget"):
        SamplingParams(thinking_token_budget=budget)  # type: ignore[arg-type]
