"""Reasoning sections: tags as tokens and as text, whole or split, open in the prompt or not."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import byte_level

from ridgeline.core.text import Detokenizer, ReasoningSplitter, Tokenizer, load_tokenizer, reasoning_format_of
from ridgeline.core.text.byte_tokenizer import ByteTokenizer
from ridgeline.core.text.reasoning_format import REASONING_NAMES, THINK, ReasoningFormat, reasoning_format_named

SPELLED = ByteTokenizer()


@pytest.fixture(scope="module", params=["visible", "special"])
def tagged(request: pytest.FixtureRequest, make_folder: Callable[..., Path]) -> Tokenizer:
    """Tags are single tokens, written in the output (Qwen3, DeepSeek) or special."""
    tags = ["<think>", "</think>"]
    visible = request.param == "visible"
    return load_tokenizer(make_folder(byte_level(), [] if visible else tags, tags if visible else []))


def split(
    tokenizer: Tokenizer, text: str, prompt: str = "", form: ReasoningFormat = THINK, *, shows: bool = False
) -> tuple[str, str, ReasoningSplitter]:
    """(reasoning, answer) of a generated text, after checking that no half tag was shown."""
    ids = tokenizer.encode(text, add_special=False)
    return split_ids(tokenizer, ids, tokenizer.encode(prompt, add_special=False), form, shows=shows)


def split_ids(
    tokenizer: Tokenizer, ids: list[int], prompt: list[int], form: ReasoningFormat = THINK, *, shows: bool = False
) -> tuple[str, str, ReasoningSplitter]:
    reasoning = ReasoningSplitter(tokenizer, prompt, form)
    detokenizer = Detokenizer(tokenizer, skip_special=not shows)
    parts = [reasoning.push(i, detokenizer.push(i)) for i in ids]
    parts.append(reasoning.finish(detokenizer.flush()))
    assert reasoning.reasoning_tokens + reasoning.response_tokens == len(ids)
    return "".join(part.reasoning for part in parts), "".join(part.response for part in parts), reasoning


CASES = [
    ("<think>\nhm, tea\n</think>\n\nMilk.\n", "", "hm, tea", "Milk.\n"),
    ("hm\n\nstill</think>\n\nMilk.", "user<think>\n", "hm\n\nstill", "Milk."),
    ("Milk.", "<think>\n\n</think>\n\n", "", "Milk."),
    ("Milk without thought", "", "", "Milk without thought"),
    ("\n\n<think>hm", "", "hm", ""),
    ("<think></think>", "", "", ""),
    ("", "<think>", "", ""),
    ("hm <thi", "<think>", "hm <thi", ""),
    ("<thi", "", "", "<thi"),
    ("one\n\n\n", "<think>", "one", ""),
]


@pytest.mark.parametrize(("text", "prompt", "reasoning", "answer"), CASES)
def test_sections(tagged: Tokenizer, text: str, prompt: str, reasoning: str, answer: str) -> None:
    for tokenizer in (tagged, SPELLED):
        thought, said, _ = split(tokenizer, text, prompt)
        assert thought == reasoning
        assert said == answer


def test_half_a_closing_tag_at_the_end_is_dropped_where_tags_are_text(tagged: Tokenizer) -> None:
    # The response was cut inside the tag. Where the tag is a token, these characters are ordinary text.
    assert split(tagged, "hm </thi", "<think>")[0] == "hm </thi"
    assert split(SPELLED, "hm </thi", "<think>")[0] == "hm "


def test_token_counts(tagged: Tokenizer) -> None:
    _, _, by_id = split(tagged, "<think>ab</think>cde")
    assert (by_id.reasoning_tokens, by_id.response_tokens) == (4, 3)
    _, _, by_text = split(SPELLED, "<think>ab</think>cde")
    assert (by_text.reasoning_tokens, by_text.response_tokens) == (len("<think>ab</think>"), 3)
    assert not by_text.inside


def test_a_spelled_tag_is_text_where_the_tag_is_a_token(tagged: Tokenizer) -> None:
    ids = tagged.encode("<think>a</think>b", add_special=False, parse_special=False)
    assert split_ids(tagged, ids, [])[:2] == ("", "<think>a</think>b")


def test_sections_may_reopen_by_token(tagged: Tokenizer) -> None:
    thought, said, reasoning = split(tagged, "<think>a</think>b<think>c</think>d")
    assert (thought, said) == ("ac", "bd")
    assert not reasoning.inside


def test_text_tag_counts_only_at_the_start() -> None:
    """An answer about the tag is no thought; nor is a tag typed somewhere in the prompt."""
    assert split(SPELLED, "The tag <think> opens.")[:2] == ("", "The tag <think> opens.")
    assert split(SPELLED, "b</think>", "what is <think> for?")[:2] == ("", "b</think>")


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "<thi", "nk>", "</", "a", "\n", " ", "é"]), max_size=8),
    st.booleans(),
)
def test_text_tags_equal_a_split_of_the_whole(parts: list[str], opened: bool) -> None:
    """Streamed byte by byte, the sections are those of splitting the finished text once."""
    text = "".join(parts)
    thought, said, _ = split(SPELLED, text, "<think>" if opened else "")
    begun = text.lstrip()
    if not opened and not begun.startswith("<think>"):
        assert (thought, said) == ("", text)
        return
    body, close, rest = (text if opened else begun.removeprefix("<think>")).partition("</think>")
    half = max(size for size in range(len("</think>")) if body.endswith("</think>"[:size]))
    assert thought == (body if close else body[: len(body) - half]).strip("\n")
    assert said == (rest.lstrip("\n") if close else "")


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("{{ '<think>\\n' }}", "deepseek_r1"),
        ("{%- set t = '<seed:think>' %}", "seed_oss"),
        ("{%- set t = '<think{}>'.format(kind) %}", "hy_v3"),
        ("{{ '<|think|>\\n' }}{{ '<|channel>thought\\n<channel|>' }}", "gemma4"),
        ("{{ messages }}", None),
    ],
)
def test_a_template_shows_its_format(source: str, name: str | None) -> None:
    found = reasoning_format_of(source)
    assert (found.name if found else None) == name


FORMATS = [
    ("apertus", "<|inner_prefix|>hm<|inner_suffix|>Milk.", "", "hm", "Milk."),
    (
        "cohere_command3",
        "<|START_THINKING|>hm<|END_THINKING|><|START_RESPONSE|>Milk.<|END_RESPONSE|>",
        "",
        "hm",
        "Milk.",
    ),
    ("cohere_command3", "<|START_RESPONSE|>Milk.<|END_RESPONSE|>", "", "", "Milk."),
    ("cohere_command4", "hm<|END_THINKING|><|START_TEXT|>Milk.<|END_TEXT|>", "<|START_THINKING|>", "hm", "Milk."),
    ("deepseek_v3", "hm</think>Milk.", "<think>", "hm", "Milk."),
    ("ernie45", "hm\n</think>\n\n<response>\nMilk.</response>", "<think>", "hm", "Milk."),
    ("gemma4", "<|channel>thought\nhm\n<channel|>Milk.", "", "hm", "Milk."),
    ("gemma4", "<|channel>thought\n<channel|>Milk.", "", "", "Milk."),
    ("gemma4", "<|channel>thorough<channel|>Milk.", "", "thorough", "Milk."),
    ("gemma4", "<|channel>thou", "", "", ""),
    ("gemma4", "Milk.", "<|channel>thought\n<channel|>", "", "Milk."),
    ("granite", "Here is my thought process: hm. Here is my response: Milk.", "", " hm. ", " Milk."),
    ("hunyuan_a13b", "<think>\nhm\n</think>\n<answer>\nMilk.</answer>", "", "hm", "Milk."),
    ("hy_v3", "<think:opensource>hm</think:opensource>Milk.", "", "hm", "Milk."),
    ("hy_v3", "Milk.", "<think:opensource></think:opensource>", "", "Milk."),
    ("minimax_m2", "hm\n</think>\n\nMilk.", "<think>\n", "hm", "Milk."),
    ("mistral", "[THINK]hm[/THINK]Milk.", "", "hm", "Milk."),
    (
        "openai_gptoss",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Milk.",
        "<|start|>assistant",
        "hm",
        "Milk.",
    ),
    ("openai_gptoss", "<|channel|>commentary<|message|>Milk.<|end|>", "<|start|>assistant", "", "Milk."),
    (
        "openai_gptoss",
        " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
        "<|start|>assistant",
        "",
        " to=functions.f<|message|>{}",
    ),
    (
        "openai_gptoss",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f "
        "<|constrain|>json<|message|>{}<|call|>",
        "<|start|>assistant",
        "hm",
        " to=functions.f<|message|>{}",
    ),
    (
        "openai_gptoss",
        "<|channel|>commentary to=browser.search<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Milk.",
        "<|start|>assistant",
        "hm",
        "Milk.",
    ),
    ("openai_gptoss", "Milk.", "<|start|>assistant", "", "Milk."),
    ("openai_gptoss", " to=functions.f", "<|start|>assistant", "", ""),
    ("openai_gptoss", "<|channel|>ana", "<|start|>assistant", "", ""),
    ("seed_oss", "<seed:think>hm</seed:think>Milk.", "", "hm", "Milk."),
    ("solar_open", "<|think|>hm<|end|><|begin|>assistant<|content|>Milk.<|end|>", "<|begin|>assistant", "hm", "Milk."),
    ("solar_open", "<|content|>Milk.", "<|begin|>assistant<|think|><|end|><|begin|>assistant", "", "Milk."),
    ("solar_open", "<|tool_calls|>{}", "<|begin|>assistant", "", "<|tool_calls|>{}"),
    (
        "solar_open",
        "<|think|>hm<|end|><|begin|>assistant<|tool_calls|>{}",
        "<|begin|>assistant",
        "hm",
        "<|tool_calls|>{}",
    ),
    ("solar_open", "Milk.", "<|begin|>assistant", "", "Milk."),
    ("solar_open2", "hm<|think:end|>Milk.", "<|think:start|>", "hm", "Milk."),
]


def form_named(name: str) -> ReasoningFormat:
    """Return a format of reasoning by its name."""
    found = reasoning_format_named(name)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def with_markers(make_folder: Callable[..., Path]) -> Callable[[ReasoningFormat], Tokenizer]:
    """Return tokenizers whose vocabulary has the markers of a format as single tokens."""
    return lambda form: load_tokenizer(make_folder(byte_level(), list(form.section_of)))


@pytest.mark.parametrize(("name", "text", "prompt", "reasoning", "answer"), FORMATS)
def test_sections_of_every_format(
    with_markers: Callable[[ReasoningFormat], Tokenizer], name: str, text: str, prompt: str, reasoning: str, answer: str
) -> None:
    form = form_named(name)
    for tokenizer in (with_markers(form), SPELLED):
        assert split(tokenizer, text, prompt, form, shows=True)[:2] == (reasoning, answer)


@pytest.mark.parametrize(("name", "text", "prompt", "reasoning", "answer"), FORMATS)
def test_without_tools_the_text_has_no_markers(
    with_markers: Callable[[ReasoningFormat], Tokenizer], name: str, text: str, prompt: str, reasoning: str, answer: str
) -> None:
    form = form_named(name)
    for marker in form.section_of:
        answer = answer.replace(marker, "")
    assert split(with_markers(form), text, prompt, form)[:2] == (reasoning, answer)


@pytest.mark.parametrize(("name", "text", "prompt", "reasoning", "answer"), FORMATS)
def test_a_cut_response_shows_the_beginning_of_the_whole(
    with_markers: Callable[[ReasoningFormat], Tokenizer], name: str, text: str, prompt: str, reasoning: str, answer: str
) -> None:
    form = form_named(name)
    tokenizer = with_markers(form)
    ids, before = (tokenizer.encode(each, add_special=False) for each in (text, prompt))
    for size in range(len(ids)):
        thought, said, _ = split_ids(tokenizer, ids[:size], before, form, shows=True)
        assert reasoning.startswith(thought)
        assert answer.startswith(said)


@pytest.mark.parametrize("name", sorted(set(REASONING_NAMES) - {"none", "granite"}))
def test_the_token_of_a_tool_call_ends_the_reasoning(
    with_markers: Callable[[ReasoningFormat], Tokenizer], name: str
) -> None:
    # Models call functions in the middle of their reasoning, without closing it.
    form = form_named(name)
    tokenizer = with_markers(form)
    for marker in form.call_markers:
        thought, said, state = split(tokenizer, f"hm\n{marker}[]", form.opening, form, shows=True)
        assert (thought, said) == ("hm", f"{marker}[]")
        assert state.response_tokens == 3
        spelled = tokenizer.encode(f"hm{marker}[]", add_special=False, parse_special=False)
        prompt = tokenizer.encode(form.opening, add_special=False)
        assert split_ids(tokenizer, spelled, prompt, form, shows=True)[:2] == (f"hm{marker}[]", "")


def test_the_token_of_a_tool_call_ends_reasoning_between_spelled_tags(make_folder: Callable[..., Path]) -> None:
    tokenizer = load_tokenizer(make_folder(byte_level(), ["<tool_call>"]))
    thought, said, _ = split(tokenizer, "<think>hm <\n<tool_call>{}", shows=True)
    assert (thought, said) == ("hm <", "<tool_call>{}")


def test_no_text_is_held_back_for_long() -> None:
    splitter = ReasoningSplitter(SPELLED, SPELLED.encode("<think>"))
    shown = "".join(splitter.push(token, chr(token)).reasoning for token in b"a < b </c")
    assert shown == "a < b </c"


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown reasoning format 'deep'; use one of apertus, "):
        reasoning_format_named("deep")
    assert reasoning_format_named("none") is None
