"""Prompts: the same for everybody who asks for them, of the lengths that were asked for, sharing what they should."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from ridgeline.insight.bench.job import LoadTarget, PromptDataset, TokensPerWord
from ridgeline.insight.bench.prompt_sources import Session, Turn, body_of, open_prompts

CHAT, COMPLETIONS = LoadTarget("u", "m", "chat"), LoadTarget("u", "m")


def sessions(data: PromptDataset, count: int) -> list[Session]:
    source = open_prompts(data)
    return [source.session(index, item) for index, item in islice(enumerate(source.items()), count)]


def prompts(data: PromptDataset, count: int) -> list[Any]:
    return [session.turns[0].prompt for session in sessions(data, count)]


def test_a_session_depends_on_its_number_and_seed_alone() -> None:
    data = PromptDataset(input="uniform:5:50", output="uniform:1:9", seed=3)
    assert open_prompts(data).session(17, None) == sessions(data, 18)[17]
    assert prompts(data, 5) != prompts(PromptDataset(input="uniform:5:50", output="uniform:1:9", seed=4), 5)
    assert len(set(prompts(data, 200))) == 200


def test_words_are_as_many_as_make_the_tokens() -> None:
    """1.5 tokens a word and 12 that the template adds: 312 tokens are 200 words."""
    wording = TokensPerWord(12.0, 1.5, True)
    assert {len(prompt.split()) for prompt in prompts(PromptDataset(input="312", wording=wording), 3)} == {200}
    assert {len(prompt.split()) for prompt in prompts(PromptDataset(input="5", wording=wording), 3)} == {1}


def test_ids_are_exactly_as_many_and_below_the_bound() -> None:
    found = prompts(PromptDataset(input="300", vocabulary=50), 20)
    assert {len(ids) for ids in found} == {300}
    assert {token for ids in found for token in ids} == set(range(50))


def test_prefixes_are_shared_and_what_follows_is_not() -> None:
    found = [prompt.split() for prompt in prompts(PromptDataset(input="20", prefix=30, prefixes=3, seed=1), 60)]
    assert {len(words) for words in found} == {50}
    assert len({tuple(words[:30]) for words in found}) == 3
    assert len({tuple(words[30:]) for words in found}) == 60


def test_only_the_first_turn_has_the_prefix() -> None:
    (session,) = sessions(PromptDataset(input="10", prefix=30, turns=3), 1)
    assert [len(str(turn.prompt).split()) for turn in session.turns] == [40, 10, 10]


def test_blocks_of_a_trace_are_the_same_text_where_they_have_one_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [1, 2, 3]},
        {"timestamp": 9, "input_length": 1200, "output_length": 7, "hash_ids": [1, 2, 4]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    one, other = (prompt.split() for prompt in prompts(PromptDataset(kind="trace", path=str(path)), 2))
    assert (len(one), len(other)) == (1100, 1200)
    assert one[:1024] == other[:1024]
    assert one[1024:] != other[1024:1100]
    assert [session.turns[0].output for session in sessions(PromptDataset(kind="trace", path=str(path)), 2)] == [5, 7]


def test_an_answers_names_are_not_asked(tmp_path: Path) -> None:
    """A recording names the pages of the answer after those of the prompt; what is sent is the prompt."""
    path = tmp_path / "record.jsonl"
    rows = [
        {"kind": "ridgeline-record", "format": 1, "page_size": 16},
        {"kind": "request", "at": 0, "input": 40, "output": 30, "pages": ["a", "b", "c", "d"]},
        {"kind": "request", "at": 1, "input": 70, "output": 3, "pages": ["a", "b", "c", "d"]},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    one, other = (prompt.split() for prompt in prompts(PromptDataset(kind="trace", path=str(path)), 2))
    assert (len(one), len(other)) == (40, 70)
    assert one[:32] == other[:32]


def test_a_file_of_conversations(tmp_path: Path) -> None:
    """What the human says first; who begins otherwise is left out; after the last comes the first again."""
    path = tmp_path / "share.json"
    said = [
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        {"conversations": [{"from": "gpt", "value": "I begin"}]},
        {"conversations": []},
        {"id": "x", "conversations": [{"from": "user", "value": "Why?"}]},
    ]
    path.write_text(json.dumps(said))
    assert prompts(PromptDataset(kind="file", path=str(path), output=None), 3) == ["Hi", "Why?", "Hi"]
    (first,) = sessions(PromptDataset(kind="file", path=str(path), output="9"), 1)
    assert first.turns == (Turn("Hi", 9),)


def test_lines_of_prompts_messages_and_ids(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    messages = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    lines: list[dict[str, Any]] = [{"prompt": "a", "max_tokens": 5}, {"messages": messages}, {"prompt": [1, 2]}]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    first, second, third = (
        session.turns[0] for session in sessions(PromptDataset(kind="file", path=str(path), output=None), 3)
    )
    assert (first, third) == (Turn("a", 5), Turn([1, 2], None))
    body = json.loads(body_of(CHAT, [], second))
    assert body["messages"] == messages
    assert "max_tokens" not in body
    assert json.loads(body_of(COMPLETIONS, [], third))["prompt"] == [1, 2]
    with pytest.raises(ValueError, match="--endpoint chat"):
        open_prompts(PromptDataset(kind="file", path=str(path))).check(COMPLETIONS)
    with pytest.raises(ValueError, match="--endpoint completions"):
        open_prompts(PromptDataset(kind="file", path=str(path))).check(CHAT)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("x.json", "{}", "is not a list of conversations"),
        ("x.json", "[3]", "conversation 1"),
        ("x.json", "[]", "no prompt"),
        ("x.json", "[", "not valid JSON"),
        ("x.jsonl", "", "no prompt"),
        ("x.jsonl", '{"prompt": "a"}\n{"text": "b"}', "line 2: it has neither"),
        ("x.jsonl", '{"prompt": 3}', "line 1"),
        ("x.jsonl", "[" * 100_000, "line 1"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        open_prompts(PromptDataset(kind="file", path=str(tmp_path / name)))
    assert "\n" not in str(refused.value)
