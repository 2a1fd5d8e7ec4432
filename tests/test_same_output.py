"""benchmarks/same_output.py: its list of commands is whole, and its masks hide what they name and nothing else."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
NESTED = {"a": [1, -2.5e-7, {"b": 'x, y: "z" {', "": None}], "c": {}, "d": [[True], []], "e\n": {"f": 0}}


@pytest.fixture(autouse=True)
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's modules lie beside the package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each scalar with its path, as json reads them."""
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from flat(each, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")])
def test_values_of_json_are_found_with_their_paths(separators: tuple[str, str]) -> None:
    from same_output_masks import _values

    text = json.dumps(NESTED, separators=separators)
    found = [(path, json.loads(text[first:last])) for path, first, last in _values(text, 0)]
    assert found == [(path.lstrip("."), value) for path, value in flat(NESTED)]


def test_a_mask_hides_the_value_and_no_other_character() -> None:
    from same_output_masks import Mask, Masks

    masks = Masks("/here/src", {"s": Mask("", ((r"took [\d.]+ s", "took <s>"),), ("*.seconds",))})
    line = '{"steps": [{"seconds": 1.25, "predicted": 1.250}], "at": "/here/src/x"}'
    hidden = masks.hidden(f"took 2.5 s of 2.5 s\n{line}\n", ("s",))
    assert hidden.replace("\n", "") == "took <s> of 2.5 s" + line.replace("1.25,", "<*.seconds>,").replace(
        "/here/src", "<source>"
    )
    assert masks.hidden(line, ()).replace("\n", "") == line.replace("/here/src", "<source>")


def test_every_command_has_a_case_and_every_mask_a_user() -> None:
    from same_output_cases import listed, read_cases

    cases = read_cases()
    assert len(cases) >= 100
    assert sum(case.name.startswith("refused-") for case in cases) >= 20
    run = [shlex.split(line) for case in cases for line in (*case.run, *case.asks) if "--help" not in line]
    commands = re.findall(r"^[a-z][a-z -]*[a-z]", (ROOT / "tests/cli/commands.txt").read_text(), re.MULTILINE)
    assert len(commands) > 50
    ran = {" ".join(words[:2]) for words in run} | {words[0] for words in run if words}
    assert [command for command in commands if command not in ran] == ["lab roofline-at-home"], "measured throughout"
    used = {name for case in cases for name in case.masks}
    assert used == set(listed()["mask"])
    for mask in listed()["mask"].values():
        assert mask["why"]
        for pattern, by in mask.get("text", ()):
            re.sub(pattern, by, "nothing")
