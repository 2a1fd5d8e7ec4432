"""Workloads: whose prompts are those that others draw from the same file, and what of a file is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.insight.bench.engine.workload import EngineWorkload, choose, read_workloads

ROOT = Path(__file__).parents[2]
VOCABULARY = 2048
DRAWN = {"requests": 4, "prompt": [2, 5], "output": [1, 9], "seed": 0}
ALIKE = {"sequences": 3, "prompt": 4, "output": 2}


def read(folder: Path, **workloads: Any) -> dict[str, EngineWorkload]:
    path = folder / "w.json"
    path.write_text(json.dumps(workloads))
    return read_workloads(path)


# -- prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "asks"),
    [
        (ALIKE, [([280, 1170, 1740, 1648], 2), ([1569, 134, 527, 246], 2), ([1019, 1563, 925, 972], 2)]),
        ({"sequences": 2, "prompt": 3, "output": 1, "seed": 7}, [([668, 1946, 313], 1), ([813, 1338, 103], 1)]),
        (
            DRAWN,
            [
                ([1557, 1828, 866, 87, 535], 9),
                ([834, 1885, 1610, 1704, 626], 8),
                ([1199, 1831, 1864, 452], 9),
                ([582, 291, 1552], 2),
            ],
        ),
        (
            {"requests": 3, "prompt": [2, 2], "output": [3, 3]},
            [([1170, 1740], 3), ([246, 1019], 3), ([1339, 782], 3)],
        ),
    ],
    ids=["alike", "with a seed", "drawn", "drawn from one length"],
)
def test_prompts_are_those_that_other_engines_are_given(
    tmp_path: Path, fields: dict[str, Any], asks: list[tuple[list[int], int]]
) -> None:
    """As the scripts with which peers are timed draw them from such a file: what is here was printed by those. A length
    that is drawn from one takes a draw too."""
    workload = read(tmp_path, w=fields)["w"]
    assert [(ask.prompt, ask.output) for ask in workload.asks(VOCABULARY)] == asks


def test_long_prompts_are_those_too(tmp_path: Path) -> None:
    """Sums of the ids, each times the number of its request, over 64 requests as the peers are given them."""
    fields = {"requests": 64, "prompt": [32, 512], "output": [16, 128], "seed": 0}
    asks = read(tmp_path, mixed=fields)["mixed"].asks(VOCABULARY)
    assert [len(ask.prompt) for ask in asks[:6]] == [464, 91, 244, 456, 259, 344]
    assert [ask.output for ask in asks[:6]] == [117, 54, 109, 23, 52, 110]
    assert sum(number * sum(ask.prompt) for number, ask in enumerate(asks, 1)) == 587989038


def test_a_small_vocabulary_is_not_left(tmp_path: Path) -> None:
    workload = read(tmp_path, w={"sequences": 1, "prompt": 500, "output": 1})["w"]
    (ask,) = workload.asks(9)
    assert set(ask.prompt) == {5, 6, 7, 8}
    with pytest.raises(ValueError, match="the model has only 5 token ids, but prompts are drawn from ids from 5 on"):
        workload.asks(5)


def test_answers_have_the_length_that_was_asked_for(tmp_path: Path) -> None:
    workload = read(tmp_path, w=ALIKE | {"temperature": 0.8, "top_p": 0.95})["w"]
    params = workload.params(7)
    assert (params.temperature, params.top_p, params.max_tokens, params.ignore_eos) == (0.8, 0.95, 7, True)
    assert read(tmp_path, w=ALIKE)["w"].params(7).greedy


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_workload_in_words(tmp_path: Path) -> None:
    both = read(tmp_path, a=ALIKE | {"temperature": 0.8, "top_p": 0.95}, b=DRAWN)
    assert [str(workload) for workload in both.values()] == [
        "3 x 4 in, 2 out, temperature 0.8, top-p 0.95", "4 x 2-5 in, 1-9 out",
    ]  # fmt: skip
    assert [workload.longest for workload in both.values()] == [6, 14]


def test_workloads_are_chosen_by_name(tmp_path: Path) -> None:
    both = read(tmp_path, first=ALIKE, second=DRAWN)
    assert [workload.name for workload in choose(both, ())] == ["first", "second"]
    assert [workload.name for workload in choose(both, ("second", "first", "second"))] == ["second", "first"]
    with pytest.raises(ValueError, match=r"there is no workload 'secnd'; did you mean second\?"):
        choose(both, ("secnd",))
    with pytest.raises(ValueError, match="there is no workload 'x'; the file has first, second"):
        choose(both, ("x",))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ([], "is not an object; write it like {"),
        ({}, "has neither sequences nor requests; write it like"),
        (ALIKE | {"requests": 3}, r"has both sequences \(of equal length\) and requests"),
        ({"sequences": 3, "prompt": 4}, "has no output"),
        ({"requests": 3, "output": [1, 2]}, "has no prompt"),
        (ALIKE | {"temprature": 1}, "has the unknown key 'temprature'; known keys are sequences, prompt"),
        (ALIKE | {"sequences": 0}, "sequences is 0; give a whole number from 1 to 1,048,576"),
        (ALIKE | {"sequences": True}, "sequences is True; give a whole number"),
        (ALIKE | {"prompt": 1.5}, "prompt is 1.5; give a whole number"),
        (ALIKE | {"output": 1 << 21}, "output is 2097152; give a whole number"),
        (ALIKE | {"prompt": [1, 2]}, "sequences have equal lengths: give one number"),
        (DRAWN | {"prompt": 5}, r"prompt is 5; give a minimum and a maximum, like \[32, 512\]"),
        (DRAWN | {"prompt": "ab"}, "prompt is 'ab'; give a minimum and a maximum"),
        (DRAWN | {"output": [1, 2, 3]}, r"output is \[1, 2, 3\]; give a minimum and a maximum"),
        (DRAWN | {"output": [0, 2]}, "output is 0; give a whole number from 1"),
        (DRAWN | {"output": [9, 2]}, r"the minimum comes first: give \[2, 9\]"),
        (DRAWN | {"seed": "x"}, "seed is 'x'; give a whole number"),
        (ALIKE | {"temperature": -1}, "temperature is -1"),
        (ALIKE | {"temperature": "hot"}, "temperature is 'hot'"),
        (ALIKE | {"top_p": 0}, "top_p is 0"),
        (
            {"sequences": 1 << 20, "prompt": 17, "output": 1},
            "has up to 17,825,792 prompt tokens in total; give at most 16,777,216",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, fields: Any, says: str) -> None:
    """With the file and the workload."""
    with pytest.raises(ValueError, match=says) as error:
        read(tmp_path, good=ALIKE, bad=fields)
    assert str(error.value).startswith(f"{tmp_path / 'w.json'}: workload 'bad'")
    assert "\n" not in str(error.value)


def test_a_file_without_workloads_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"w\.json defines no workload; write one like"):
        read(tmp_path)
    (tmp_path / "twice.json").write_text('{"a": {}, "a": {}}')
    with pytest.raises(ValueError, match=r"twice\.json is not valid JSON: a name occurs twice"):
        read_workloads(tmp_path / "twice.json")


def test_the_workloads_of_make_bench_fit_the_built_in_model() -> None:
    workloads = read_workloads(ROOT / "benchmarks" / "workloads.json")
    assert {workload.mixed for workload in workloads.values()} == {True, False}
    assert max(workload.longest for workload in workloads.values()) <= 512
    assert any(workload.temperature for workload in workloads.values())
