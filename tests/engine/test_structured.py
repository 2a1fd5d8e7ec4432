"""Structured outputs: every answer has its form, whatever runs beside it, and the form is never dropped."""

import dataclasses
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

from engine.collecting import finish_all
from engine.folders import THINKING_CHAT, write_model, write_tokenizer
from engine.null_model import VOCABULARY, NullExecutor, null_engine
from engine.small_models import assert_nothing_held
from ridgeline.core.text import load_tokenizer, reasoning_format_named
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.engine import LLM, Choice, Completion, EngineSettings, SamplingParams, StructuredOutputs
from ridgeline.engine.generation_request import GenerationRequest
from ridgeline.engine.request import FinishReason
from ridgeline.engine.sampling import Outcome, RowFailure, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan
from ridgeline.engine.structured_output import StructuredOutputManager
from ridgeline.engine.structured_output.grammar import GrammarCache
from ridgeline.engine.structured_output.grammar_vocabulary import GrammarVocabulary
from ridgeline.engine.structured_output.output_constraint import OutputConstraint
from ridgeline.engine.structured_output.thinking import ThinkingMarkers
from ridgeline.engine.worker.engine_messages import AddRequest, ToEngine
from ridgeline.util.frames import MessageCodec
from support.samplers import CPU_SAMPLER
from text.tiny_tokenizers import byte_level

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b", "é"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
REGEX = r"(ab|[x-z]{2}){1,6}\d?"
PROMPT = [5, 6, 7]


_STRING = re.compile(r'"(\\.|[^"\\])*"')


def in_one_line(text: str) -> bool:
    """Blanks outside strings are those of json.dumps."""
    bare = _STRING.sub("s", text).replace(", ", "").replace(": ", "")
    return not re.search(r"[\s,:]", bare)


def valid_json(text: str) -> bool:
    jsonschema.validate(json.loads(text), PERSON)
    return in_one_line(text)


FORMS: list[tuple[StructuredOutputs, Callable[[str], bool]]] = [
    (StructuredOutputs(json=PERSON), valid_json),
    (StructuredOutputs(json_object=True), lambda text: isinstance(json.loads(text), dict) and in_one_line(text)),
    (StructuredOutputs(regex=REGEX), lambda text: re.fullmatch(REGEX, text) is not None),
    (StructuredOutputs(choice=("yes", "no", "naïve (x.)", "yes!")), {"yes", "no", "naïve (x.)", "yes!"}.__contains__),
    (
        StructuredOutputs(grammar='start: "(" start ")" | "x"'),
        lambda t: t == "(" * (len(t) // 2) + "x" + ")" * (len(t) // 2),
    ),
    (StructuredOutputs(grammar='root ::= "k" ("a" | "b")+ "."'), lambda t: re.fullmatch(r"k[ab]+\.", t) is not None),
]
IDS = ["json", "json_object", "regex", "choice", "lark", "gbnf"]


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module", params=["bytes", "words"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(str(write_model(tmp_path_factory.mktemp("guided") / "model", pieces=request.param)))


@pytest.fixture(scope="module")
def small_pool(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """So few pages that requests are preempted all the time."""
    folder = write_model(tmp_path_factory.mktemp("guided") / "model")
    return LLM(str(folder), EngineSettings(kv_bytes=10 * 8192, limits=Limits(tokens=32, requests=8)))


def params(form: StructuredOutputs, **others: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 200, **others}, structured_outputs=form)


def finished(completions: Sequence[Completion]) -> list[str]:
    """The texts of choices that ended by themselves, at least half of all; no choice has failed."""
    choices = [choice for completion in completions for choice in completion.choices]
    assert {choice.finish for choice in choices} <= {FinishReason.STOP, FinishReason.LENGTH}, [c.error for c in choices]
    ended = [choice.text for choice in choices if choice.finish is FinishReason.STOP]
    assert len(ended) >= len(choices) / 2
    return ended


# -- every answer has its form ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("form", "valid"), FORMS, ids=IDS)
def test_whatever_is_sampled_has_the_form(llm: LLM, form: StructuredOutputs, valid: Callable[[str], bool]) -> None:
    completions = llm.generate([PROMPT] * 12, [params(form, seed=seed, temperature=1.5) for seed in range(12)])
    texts = finished(completions)
    assert len(set(texts)) > 1
    for text in texts:
        assert valid(text), text
    assert_nothing_held(llm.engine)


@pytest.mark.parametrize("others", [{}, {"min_tokens": 9}, {"ignore_eos": True}, {"temperature": 0.0}])
@pytest.mark.parametrize("penalty", [{}, {"repetition_penalty": 1.3, "logprobs": 3}])
def test_forms_go_with_other_rules(llm: LLM, others: dict[str, Any], penalty: dict[str, Any]) -> None:
    form = StructuredOutputs(regex="[a-z]{3,12}")
    completions = llm.generate([PROMPT] * 4, [params(form, seed=seed, n=2, **others, **penalty) for seed in range(4)])
    for text in finished(completions):
        assert re.fullmatch("[a-z]{3,12}", text)
        assert len(text) >= others.get("min_tokens", 0) or llm.tokenizer.strips_space
        assert "ignore_eos" not in others or len(text) == 12, "without an end token a text is as long as it can be"


def test_min_tokens_gives_way_where_nothing_may_follow(llm: LLM) -> None:
    (completion,) = llm.generate([PROMPT], params(StructuredOutputs(choice=("yes", "no")), min_tokens=50))
    assert completion.text in ("yes", "no")
    assert completion.choices[0].finish is FinishReason.STOP


def test_a_first_space_is_part_of_the_form(llm: LLM) -> None:
    (completion,) = llm.generate([PROMPT], params(StructuredOutputs(regex=" [a-c]{2} ")))
    assert re.fullmatch(" [a-c]{2} ", completion.text)


def test_a_stop_string_cuts_a_text_that_has_the_form(llm: LLM) -> None:
    whole = [params(StructuredOutputs(regex="[a-e]{20}"), seed=seed) for seed in range(8)]
    cut = [dataclasses.replace(own, stop=("c",)) for own in whole]
    for one, other in zip(llm.generate([PROMPT] * 8, whole), llm.generate([PROMPT] * 8, cut), strict=True):
        assert other.text == one.text.split("c")[0]
    assert_nothing_held(llm.engine)


def test_log_probabilities_are_of_what_is_allowed(llm: LLM) -> None:
    form = StructuredOutputs(choice=("ab", "cd"))
    (completion,) = llm.generate([PROMPT], params(form, logprobs=5))
    for sampled in completion.choices[0].tokens:
        listed = [llm.tokenizer.token_bytes(token)[:1] for token, _ in sampled.top]
        assert set(listed) <= {b"a", b"c", b"b", b"d"}
        assert 0 < sum(2.718281828**share for _, share in sampled.top) <= 1 + 1e-5


# -- what runs beside it ----------------------------------------------------------------------------------------------


def test_neighbours_choices_and_preemptions_change_nothing(small_pool: LLM) -> None:
    forms = [FORMS[0][0], StructuredOutputs(regex="[a-z]{30,60}"), None, StructuredOutputs(json_object=True)]
    each = [
        SamplingParams(structured_outputs=forms[i % 4], seed=i, n=1 + i % 2, max_tokens=60, top_k=50) for i in range(12)
    ]
    alone = [small_pool.generate([[i, 1, 2]], own)[0] for i, own in enumerate(each)]
    before = small_pool.engine.stats.preemptions
    together = small_pool.generate([[i, 1, 2] for i in range(12)], each)
    assert small_pool.engine.stats.preemptions > before
    assert together == alone
    for own, completion in zip(each, together, strict=True):
        for choice in completion.choices:
            if own.structured_outputs is FORMS[0][0] and choice.finish is FinishReason.STOP:
                assert valid_json(choice.text)
    assert_nothing_held(small_pool.engine)


def test_a_step_that_fails_and_is_run_again_changes_no_answer(llm: LLM) -> None:
    each = [params(form, seed=i, n=2) for i, (form, _) in enumerate(FORMS)]
    expected = llm.generate([PROMPT] * len(each), each)
    execute, calls = llm.engine.executor.execute, 0

    def sometimes(plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        nonlocal calls
        calls += 1
        outcomes = execute(plan, rows)
        if calls % 7 == 3 and len(plan.items) > 1:
            raise RuntimeError("a cosmic ray")
        return outcomes

    llm.engine.executor.execute = sometimes  # type: ignore[method-assign]
    try:
        assert llm.generate([PROMPT] * len(each), each) == expected
    finally:
        llm.engine.executor.execute = execute  # type: ignore[method-assign]


# -- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ({"json": {"not": {"type": "string"}}}, 'Unimplemented keys: ["not"]'),
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems"),
        ({"json": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}, "give anyOf"),
        ({"json": {"properties": {"a": {"oneOf": [{"minimum": 2}, {"maximum": 5}]}}}}, "give anyOf"),
        ({"json": {"not": {}, "x-guidance": {"lenient": True}}}, '"not"'),
        ({"json": {"$ref": "http://169.254.169.254/x"}}, "does not fetch resources"),
        ({"json": '{"type": '}, "EOF while parsing"),
        ({"json": {"type": "nothing"}}, "Invalid type: nothing"),
        ({"regex": "(?<=a)b"}, "look-around"),
        ({"regex": "(a"}, "unclosed group"),
        ({"grammar": "start: a\na: a"}, "cannot be enforced"),
        ({"grammar": "root ::= " + "(" * 5_000}, "cannot be enforced"),
    ],
)
def test_a_form_that_cannot_be_followed_is_refused_in_one_line(llm: LLM, form: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match="structured_outputs") as caught:
        llm.generate([PROMPT], params(StructuredOutputs(**form)))
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "coerce" not in str(caught.value), "no option of the library's: nobody can set it"
    assert_nothing_held(llm.engine)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"json": "{}", "regex": "a"},
        {"json": {}, "json_object": True},
        {"choice": "abc"},
        {"choice": ()},
        {"choice": ("a", "")},
        {"regex": 3},
        {"json": {"a": {1, 2}}},
        {"json": {"a": float("nan")}},
        {"json_object": 1},
    ],
)
def test_what_makes_no_form_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="structured_outputs"):
        StructuredOutputs(**fields)


class FewLetters(ByteTokenizer):
    """A vocabulary that spells only some letters."""

    def token_bytes(self, token_id: int, skip_special: bool = True) -> bytes:
        return bytes([token_id]) if token_id < 256 and token_id in b"abcd" else b""


def test_a_form_outside_the_vocabulary_ends_that_request_alone() -> None:
    """One that cannot begin is refused; one that cannot go on is cut; the others never hear of it."""
    engine = null_engine(guides=StructuredOutputManager(FewLetters(), VOCABULARY), executor=Picks((None,), 64, 4))
    with pytest.raises(ValueError, match="no token of the vocabulary can begin a matching text"):
        engine.add(GenerationRequest([1], params(StructuredOutputs(regex="xyz"))))
    dead = engine.add(GenerationRequest([1], params(StructuredOutputs(regex="(ab|cd)q+"))))
    alive = engine.add(GenerationRequest([2], params(StructuredOutputs(regex="[a-d]{4}"))))
    choices = finish_all(engine)
    assert (choices[dead, 0].finish, choices[dead, 0].token_ids) == (FinishReason.LENGTH, [97, 98])
    assert "cannot continue" in (choices[dead, 0].error or "")
    assert choices[alive, 0].finish is FinishReason.STOP
    assert len(choices[alive, 0].tokens) == 4
    assert_nothing_held(engine)


LIMITED = "x(a?){300}a{300}"
"""A regular expression that compiles, and takes the library past its limits after the first character."""


@pytest.mark.parametrize("choices", [1, 3])
def test_a_form_past_the_librarys_limits_ends_by_length_with_what_it_has(choices: int) -> None:
    """It is cut as by max_tokens, and says why; the others never hear of it."""
    engine = null_engine(guides=StructuredOutputManager(ByteTokenizer(), VOCABULARY), executor=Picks((None,), 64, 4))
    asked = dataclasses.replace(params(StructuredOutputs(regex=LIMITED)), n=choices)
    cut, alive = (
        engine.add(GenerationRequest([1], asked)),
        engine.add(GenerationRequest([2], params(StructuredOutputs(regex="[a-d]{4}")))),
    )
    ended = finish_all(engine)
    for choice in range(choices):
        assert (ended[cut, choice].finish, ended[cut, choice].token_ids) == (FinishReason.LENGTH, [*b"x"])
        assert "cannot continue: lexer error" in (ended[cut, choice].error or "")
    assert (ended[alive, 0].finish, len(ended[alive, 0].tokens)) == (FinishReason.STOP, 4)
    assert_nothing_held(engine)


@pytest.mark.parametrize(
    ("regex", "fields", "said", "finish"),
    [
        ("ab(q+)?", {"ignore_eos": True}, b"ab", FinishReason.STOP),  # q is not in the vocabulary
        ("ab(q+)?", {"min_tokens": 9}, b"ab", FinishReason.STOP),
        ("ab(q+)?", {}, b"ab", FinishReason.STOP),
        ("a+b", {"min_tokens": 9, "stop_token_ids": (97, 98)}, b"", FinishReason.LENGTH),
        ("(cd|c)b", {"min_tokens": 2, "stop_token_ids": (98, 100)}, b"c", FinishReason.LENGTH),
    ],
)
def test_a_text_ends_where_no_token_may_follow(
    regex: str, fields: dict[str, Any], said: bytes, finish: FinishReason
) -> None:
    """A whole text has ended well; min_tokens holds back what would end it, and can leave nothing else."""
    guides = StructuredOutputManager(FewLetters(), VOCABULARY)
    engine = null_engine(guides=guides, executor=Samples((None,), 64, 4), eos_ids=[VOCABULARY - 1])
    asked = dataclasses.replace(params(StructuredOutputs(regex=regex)), **fields)
    number = engine.add(GenerationRequest([1], asked))
    choice = finish_all(engine)[number, 0]
    assert choice.finish is finish, choice.error
    assert bytes(token for token in choice.token_ids if token < 256) == said
    assert_nothing_held(engine)


class Samples(NullExecutor):
    """The first token that the sampler leaves, of logits that are all alike."""

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
        super().execute(plan, rows)
        return CPU_SAMPLER.sample(torch.zeros(len(rows), VOCABULARY), rows)


class Picks(NullExecutor):
    """The first token that is allowed, over pages that are checked as ever."""

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
        super().execute(plan, rows)
        return [Obedient([0])._choose(row) for row in rows]


def test_padding_rows_are_never_allowed() -> None:
    tables = GrammarVocabulary(ByteTokenizer(), 300)
    matcher = GrammarCache(tables).matcher(StructuredOutputs(regex="(?s:.)*"))
    mask, complete = tables.next_of(matcher)
    bits = [token for token in range(tables.words * 32) if mask[token // 32] >> (token % 32) & 1]
    assert complete
    assert max(bits) < 256
    assert len(mask) == (300 + 31) // 32


# -- without text, over the wire, in memory ---------------------------------------------------------------------------


@pytest.mark.parametrize("form", [form for form, _ in FORMS], ids=IDS)
def test_forms_cross_a_process(form: StructuredOutputs) -> None:
    add = AddRequest(3, GenerationRequest([1, 2], params(form)))
    frames: MessageCodec[ToEngine] = MessageCodec(ToEngine)
    assert frames.feed(frames.encode(add)) == [add]


def test_an_engine_without_a_tokenizer_refuses_forms() -> None:
    with pytest.raises(ValueError, match="needs a tokenizer"):
        null_engine().add(GenerationRequest([1], params(StructuredOutputs(regex="a"))))


def test_grammars_are_kept_within_their_bytes_the_least_recently_used_dropped_first() -> None:
    cache = GrammarCache(GrammarVocabulary(ByteTokenizer(), 257), limit=1 << 20)
    forms = [StructuredOutputs(regex=f"a{{{i + 1}}}") for i in range(100)]
    for form in forms:
        cache.matcher(form)
        cache.matcher(forms[0])
        assert 0 < cache.nbytes <= 1 << 20
    assert cache.compiled == 100
    cache.matcher(forms[1])
    assert cache.compiled == 101


def test_what_grammars_cost_is_told(llm: LLM) -> None:
    before = llm.engine.stats
    llm.generate([PROMPT] * 3, params(StructuredOutputs(regex="[qrs]{3}t")))
    after = llm.engine.stats
    assert after.grammars == before.grammars + 1
    assert after.grammar_seconds > before.grammar_seconds
    assert after.grammar_bytes > before.grammar_bytes


# -- after reasoning --------------------------------------------------------------------------------------------------


class Obedient:
    """Says its script where that is allowed, else the first token that is; the model's own executor is left out."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Outcome]:
        return [self._choose(row) for row in rows]

    def _choose(self, row: SampleRow) -> Sampled | RowFailure:
        assert row.allowed is not None
        wish = self.script[min(row.generated, len(self.script) - 1)]
        if row.allowed[wish // 32] >> (wish % 32) & 1:
            return Sampled(wish)
        word = next((index for index, bits in enumerate(row.allowed) if bits), None)
        if word is None:
            return RowFailure("nothing is allowed")
        return Sampled(word * 32 + (int(row.allowed[word]) & -int(row.allowed[word])).bit_length() - 1)


def said(llm: LLM, script: Sequence[str | int], prompt: Sequence[int], form: StructuredOutputs) -> Choice:
    """What the model says that wants to say this, where a form lets it."""
    ids = [part if isinstance(part, int) else llm.tokenizer.encode(part, add_special=False) for part in script]
    flat = [token for part in ids for token in (part if isinstance(part, list) else [part])]
    executor, llm.engine.executor = llm.engine.executor, Obedient(flat)
    try:
        return llm.generate([list(prompt)], params(form, max_tokens=60))[0].choices[0]
    finally:
        llm.engine.executor = executor


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A model whose template opens a section with a tag that is a token."""
    return LLM(str(write_model(tmp_path_factory.mktemp("thinks") / "model", template=THINKING_CHAT)))


@pytest.fixture(scope="module")
def speller(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A model whose tags are spelled by several tokens."""
    template = THINKING_CHAT.replace("<think>", "<seed:think>")
    return LLM(str(write_model(tmp_path_factory.mktemp("spells") / "model", template=template)))


NUMBER = StructuredOutputs(regex="[0-9]{3}")
ASK = [{"role": "user", "content": "hi"}]


def test_the_form_begins_where_a_section_that_the_prompt_opened_ends(thinker: LLM) -> None:
    close, eos = thinker.tokenizer.control["</think>"], thinker.tokenizer.eos_ids[0]
    choice = said(thinker, ["so {", eos, "free ", close, "\n\n123"], thinker.encode_chat(ASK), NUMBER)
    assert choice.reasoning.startswith("so {")
    assert "free " in choice.reasoning, "an end token does not end a section"
    assert (choice.text, choice.finish) == ("123", FinishReason.STOP)


def test_a_section_that_never_ends_ends_by_length(thinker: LLM) -> None:
    choice = said(thinker, ["for ever "], thinker.encode_chat(ASK), NUMBER)
    assert (choice.text, choice.finish) == ("", FinishReason.LENGTH)


def test_an_answer_may_begin_with_a_section_of_its_own_but_not_go_on_with_one(thinker: LLM) -> None:
    opening, close = thinker.tokenizer.control["<think>"], thinker.tokenizer.control["</think>"]
    choice = said(thinker, [opening, "hm", close, "\n456"], [1, 2, 3], NUMBER)
    assert (choice.reasoning, choice.text, choice.finish) == ("hm", "456", FinishReason.STOP)
    choice = said(thinker, ["1", opening, "hm", close, "23"], [1, 2, 3], NUMBER)
    assert choice.reasoning == ""
    assert re.fullmatch("1[0-9]{2}", choice.text)


def test_a_prompt_that_has_closed_its_section_gets_no_other(thinker: LLM) -> None:
    opening, close = thinker.tokenizer.control["<think>"], thinker.tokenizer.control["</think>"]
    closed = [1, opening, close, *thinker.tokenizer.encode("\n\n", add_special=False)]
    choice = said(thinker, [opening, "789"], closed, NUMBER)
    assert choice.reasoning == ""
    assert re.fullmatch("[0-9]{3}", choice.text)


def test_all_of_a_text_has_the_form_where_reasoning_is_not_apart(thinker: LLM) -> None:
    opening, close = thinker.tokenizer.control["<think>"], thinker.tokenizer.control["</think>"]
    form = dataclasses.replace(NUMBER, after_reasoning=False)
    choice = said(thinker, [opening, "hm", close, "789"], [1, 2, 3], form)
    assert re.fullmatch("[0-9]{3}", thinker.tokenizer.decode(choice.token_ids))


HARMONY_TOKENS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")


def harmony_guide(tmp_path: Path, form: StructuredOutputs) -> Callable[[str], tuple[str, OutputConstraint]]:
    """Return a function that tells how much of a text a constraint takes, after the prompt of a gpt-oss turn."""
    write_tokenizer(tmp_path, byte_level(), None, specials=HARMONY_TOKENS)
    tokenizer = load_tokenizer(tmp_path)
    guides = StructuredOutputManager(tokenizer, tokenizer.vocab_size, reasoning_format_named("openai_gptoss"))
    prompt = tokenizer.encode("<|start|>assistant", add_special=False)
    ends = [tokenizer.control[each] for each in ("<|call|>", "<|return|>")]

    def taken(text: str) -> tuple[str, OutputConstraint]:
        guide = guides.constraint_for(form, prompt, ends)
        ids = tokenizer.encode(text, add_special=False)
        count = 0
        for token in ids:
            if not guide.allowed()[token // 32] >> (token % 32) & 1:
                break
            guide.take(token)
            count += 1
        return tokenizer.decode(ids[:count], skip_special=False), guide

    return taken


def test_in_harmony_the_form_begins_in_the_final_channel(tmp_path: Path) -> None:
    taken = harmony_guide(tmp_path, NUMBER)
    final = "<|channel|>final<|message|>123"
    for text in (final, f"<|channel|>analysis<|message|>so {{<|end|><|start|>assistant{final}"):
        assert taken(text)[0] == text
        assert taken(text)[1].complete
    assert taken("123")[0] == ""
    assert taken("<|channel|>commentary<|message|>1")[0] == "<|channel|>"
    thought = "<|channel|>analysis<|message|>so<|end|>"
    assert taken(f"{thought}123")[0] == thought
    again = f"{thought}<|start|>assistant<|channel|>"
    assert taken(f"{again}analysis<|message|>")[0] == again


def test_in_harmony_a_forced_call_has_its_own_header(tmp_path: Path) -> None:
    call = 'start: <[CHANNEL]> "commentary to=functions.f " <[CONSTRAIN]> "json" <[MESSAGE]> "{}" <[CALL]>'
    write_tokenizer(tmp_path, byte_level(), None, specials=HARMONY_TOKENS)
    control = load_tokenizer(tmp_path).control
    for name in ("channel", "constrain", "message", "call"):
        call = call.replace(f"<[{name.upper()}]>", f"<[{control[f'<|{name}|>']}]>")
    taken = harmony_guide(tmp_path, StructuredOutputs(grammar=call))
    text = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}<|call|>"
    for whole in (text, f"<|channel|>analysis<|message|>so<|end|><|start|>assistant{text}"):
        assert taken(whole)[0] == whole
        assert taken(whole)[1].complete
    assert taken("<|channel|>final<|message|>")[0] == "<|channel|>"


@pytest.mark.parametrize("after", ["", "\n", "\n\n"])
def test_tags_of_several_tokens_end_a_section_too(speller: LLM, after: str) -> None:
    prompt = speller.encode_chat(ASK)
    script = ["a </seed", ":thinks </", f"seed:think>{after}246"]
    choice = said(speller, script, prompt, NUMBER)
    assert choice.reasoning == "a </seed:thinks "
    assert choice.finish is FinishReason.STOP
    assert re.fullmatch("[0-9]{3}", choice.text)


def test_no_token_may_close_a_section_and_begin_the_answer(tmp_path: Path) -> None:
    """A vocabulary with the token `>{`: it would complete the tag, and say something that no form was asked about."""
    write_tokenizer(tmp_path, byte_level([(">", "{"), (">", "Ċ")]), None)
    tokenizer = load_tokenizer(tmp_path)
    tables = GrammarVocabulary(tokenizer, tokenizer.vocab_size)
    seed = reasoning_format_named("seed_oss")
    assert seed is not None
    thinking = ThinkingMarkers(tokenizer, seed, tables).begin(
        tokenizer.encode("<seed:think>", add_special=False), tables.mask(())
    )
    ids = {data: token for token, data in enumerate(tables.tokens)}

    def allowed(token: int) -> bool:
        return bool(thinking.mask(tables.mask(()))[token // 32] >> (token % 32) & 1)

    assert thinking.inside
    assert allowed(ids[b">{"])
    for token in tokenizer.encode("x </</seed:think", add_special=False):
        assert thinking.take(token) == ()
    assert not allowed(ids[b">{"])
    assert allowed(ids[b">"])
    assert allowed(ids[b">\n"])
    assert thinking.take(ids[b">\n"]) == ()
    assert not thinking.inside
    assert thinking.take(ids[b"{"]) == (ids[b"{"],), "this is the answer's"
