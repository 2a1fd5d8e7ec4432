"""Chapters: what each must have, what none may say, and how blocks are run and compared."""

import re
from inspect import signature
from pathlib import Path

import pytest
from docs.guide.machinery.blocks import differs, run_chapter
from docs.guide.machinery.chapters import ROOT, SOURCE, prose_of, read_chapters, reading_order
from docs.guide.machinery.content import source_of
from docs.guide.machinery.words import glossary_of, in_order, term_faults, typed_figures, unexplained

from ridgeline.cli.lab import phases
from ridgeline.learn.guide.guide_numbers import read_lock, read_questions
from ridgeline.learn.guide.quizzes import FOLDER
from ridgeline.learn.lab.cost_calculator import TEXTS_A100
from ridgeline.learn.lab.exercise import EXERCISES
from ridgeline.price.devices import load_device
from ridgeline.util.document.humanize import say

TEXTS = read_chapters()
LESSONS = {name: text for name, text in TEXTS.items() if "```{quiz}" in text}


def test_there_is_a_chapter_for_each_file_of_questions() -> None:
    assert {f"{path.stem}.md" for path in FOLDER.glob("*.toml")} == set(LESSONS)


@pytest.mark.parametrize("name", LESSONS)
def test_a_chapter_has_all_its_parts(name: str) -> None:
    """A picture, an exercise that is checked and one for a pencil, where its concept lives in the code, six
    questions."""
    text = LESSONS[name]
    assert "```{picture} " in text
    assert re.search(r"^```\{source\} \S+ \S+$", text, re.MULTILINE)
    assert "**For a pencil.**" in text
    assert "```{answer}" in text
    (exercise,) = set(re.findall(r"ridgeline lab exercise ([\w-]+)", text))
    assert exercise in EXERCISES
    assert 650 < len(text.split()) < 2600  # some ten minutes with its experiment
    assert f"```{{quiz}} {Path(name).stem}\n" in text
    assert Path(name).stem in reading_order(TEXTS["index.md"])


def test_each_solution_stands_in_a_chapter_after_its_exercise() -> None:
    order = reading_order(TEXTS["index.md"])
    asked = {
        exercise: n
        for n, name in enumerate(order)
        for exercise in re.findall(r"exercise ([\w-]+) --check", TEXTS.get(f"{name}.md", ""))
    }
    solved = {
        exercise: n
        for n, name in enumerate(order)
        for exercise in re.findall(r"\{solution\} ([\w-]+)", TEXTS.get(f"{name}.md", ""))
    }
    assert asked.keys() == set(EXERCISES)
    assert solved.keys() == asked.keys()
    assert all(solved[exercise] > asked[exercise] for exercise in solved)


def test_no_figure_is_typed_and_each_number_is_used() -> None:
    typed = [f"{name}:{line}: {said}" for name, text in TEXTS.items() for line, said in typed_figures(text)]
    assert typed == []
    used = set(re.findall(r"\{n\}`([^`]+)`", "".join(TEXTS.values())))
    assert used <= read_lock().keys()


def _cards_drawn(text: str) -> set[str]:
    """Return the cards whose roofs a chapter's pictures show."""
    drawn = set(re.findall(r"^```\{calculator\} card=([\w.-]+)", text, re.MULTILINE))
    usual = signature(phases).parameters["device"].default
    for options in re.findall(r"^```\{picture\} lab phases(.*)$", text, re.MULTILINE):
        named = re.search(r"--device (\S+)", options)
        drawn.add(named[1] if named else usual)
    return drawn


def test_a_bandwidth_that_a_picture_shows_stands_in_the_text() -> None:
    """A chapter that speaks of a card's bandwidth has that of its pictures too, from the same catalogue."""
    lock = read_lock()
    compared = 0
    for name, text in TEXTS.items():
        said = {lock[n].text for n in re.findall(r"\{n\}`([^`]+)`", text) if lock[n].text.endswith("B/s")}
        for card in _cards_drawn(text) if said else ():
            assert say(load_device(card).bandwidth, "B/s") in said, f"{name}: {card}"
            compared += 1
    assert compared


def test_a_number_of_a_card_is_that_of_the_catalogue() -> None:
    """But for the rounded A100 of the texts, which is one number with the ridge that follows from it."""
    asked = read_questions()
    cards = {
        name: re.fullmatch(r"gpu\('([\w.-]+)'\)\.(bandwidth|peak\('bf16'\)|memory)", expression)
        for name, (expression, _) in asked.items()
    }
    found = {name: match for name, match in cards.items() if match}
    assert len(found) >= 14
    for name, match in found.items():
        card = load_device("a100-sxm-80gb" if match[1] == TEXTS_A100 else match[1])
        true = {"bandwidth": card.bandwidth, "memory": card.memory}.get(match[2], card.peaks["bf16"])
        wanted = 2e12 if (match[1], match[2]) == (TEXTS_A100, "bandwidth") else true
        assert read_lock()[name].value == pytest.approx(wanted, rel=1e-5), name


def test_terms_are_defined_and_used() -> None:
    assert term_faults(TEXTS, glossary_of(TEXTS["glossary.md"])) == []


def test_terms_are_explained_before_they_are_used() -> None:
    assert len(in_order(TEXTS)) > len(LESSONS)
    assert unexplained(in_order(TEXTS), glossary_of(TEXTS["glossary.md"])) == []


def test_sources_that_chapters_show_are_there() -> None:
    for name, text in TEXTS.items():
        for file, what in re.findall(r"^```\{source\} (\S+) (\S+)$", text, re.MULTILINE):
            line, code = source_of(ROOT / "src" / "ridgeline" / file, what)
            assert line > 0, name
            assert what.rpartition(".")[2] in code


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("It takes 7.5 ms.", ["7.5 ms"]), ("16 GB, 3,350 GB/s and 40%", ["16 GB", "3,350 GB/s", "40%"]), ("$0.15 a "
        "million", ["$0.15"]),
        ("the 8B on 2 cards, 512 tokens", []), ("{says}`125 tok/s`, `x = 8 ms`, $d = 8 s$", []), ("```text\n9 "
        "ms\n```", []),
        ("7.5 billion", ["7.5 billion"]), ("[link](a-5ms.html) of 3 times", ["3 times"]), ("v2.5 s1", []),
    ],
)  # fmt: skip
def test_typed_figures(text: str, found: list[str]) -> None:
    assert [said for _, said in typed_figures(text)] == found


def test_lines_of_prose_keep_their_numbers() -> None:
    assert list(prose_of("a\n```text\nb\n```\nc {n}`x\ny`\nd\n")) == [(1, "a"), (5, "c "), (7, "d")]


def test_terms() -> None:
    glossary = "```{glossary}\nkey\n  What is found.\n\nhead\n  One of many.\n```\n"
    assert glossary_of(glossary) == {"key", "head"}
    found = term_faults({"a.md": "{term}`keys <key>` and {term}`Tail`"}, glossary_of(glossary))
    assert found == ["a.md: tail is not in the glossary", "the glossary defines head, which no chapter refers to"]


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["A {term}`key`.", "Two keys."], []),
        (["Two keys, then a {term}`key`."], []),
        (["A `key` of ours.\n\n```text\nkey\n```", "A {term}`key`."], []),
        (["Two keys.", "A {term}`key`."], ["0: key is not explained yet"]),
        (["Low-key, and keyed."], []),
        (["A {term}`kv cache key`."], []),
        (["A {term}`kv cache key`, a key."], ["0: key is not explained yet"]),
        (["A kv cache key.", "A {term}`key` and {term}`kv cache key`."], ["0: kv cache key is not explained yet"]),
        (["An RTX has KV.", "An MHA."], ["1: MHA is not in the glossary"]),
        (["A SLOs of MHAs."], ["0: MHAs is not in the glossary", "0: SLOs is not in the glossary"]),
    ],
)
def test_a_term_is_explained_where_it_is_used_first(texts: list[str], found: list[str]) -> None:
    glossary = ["key", "kv cache", "kv cache key"]
    assert unexplained([(str(n), text) for n, text in enumerate(texts)], glossary) == found


# -- blocks -----------------------------------------------------------------------------------------------------------

CHAPTER = """# Made

```python
x = {}
print("is", x)
```

```text
is 2.0
```

```python
print(x == 2.001)
```

```text
True
```

```console skip: this one is for people
$ ridgeline fly
```
"""


def test_blocks_share_a_namespace_and_numbers_a_tolerance() -> None:
    outcome = run_chapter(CHAPTER.format(2.001), "made.md")
    assert (outcome.faults, outcome.ran, outcome.skipped) == ([], 2, 1)
    assert outcome.text == CHAPTER.format(2.001)


def test_an_output_that_differs_is_named_and_written_anew() -> None:
    outcome = run_chapter(CHAPTER.format(3), "made.md")
    assert len(outcome.faults) == 2
    assert "made.md:3: prints 'is 3' where the chapter has 'is 2.0'" in outcome.faults
    assert "is 3\n" in outcome.text
    again = run_chapter(outcome.text, "made.md")
    assert (again.faults, again.text) == ([], outcome.text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("```python\n1 / 0\n```\n", "ZeroDivisionError"), ("```python\nprint(7)\n```\n", "no block `text` follows"),
        ("```python skip\nx\n```\n", "says not why"), ("```console\n$ rm -rf nothing\n```\n", "no command of "
        "ridgeline"),
        ("```console\n$ ridgeline lab nothing\n```\n", "exit code 2"),
    ],
)  # fmt: skip
def test_a_block_that_fails_is_named(text: str, says: str) -> None:
    (fault,) = run_chapter(text, "made.md").faults
    assert fault.startswith("made.md:1")
    assert says in fault


def test_a_command_is_run_and_lines_may_be_left_out() -> None:
    text = "```console\n$ ridgeline --version\n9.9.9\n```\n"
    outcome = run_chapter(text, "made.md")
    assert len(outcome.faults) == 1
    assert run_chapter(outcome.text, "made.md").faults == []


@pytest.mark.parametrize(
    ("wanted", "printed", "within", "same"),
    [
        ("a 1.000 b", "a 1.004 b", 0.005, True), ("a 1.000", "a 1.02", 0.005, False), ("a 1.0", "b 1.0", 0.005, False),
        ("1,000 x", "1,003   x", 0.005, True), ("a\n...\nd", "a\nb\nc\nd", 0.005, True),
        ("a\n...\nd", "a\nb\nc", 0.005, False),
        ("5", "6", 0.2, True), ("v2", "v3", 0.9, False), ("a", "a\nb", 0.005, False), ("0", "0.0", 0.005, True),
    ],
)  # fmt: skip
def test_what_is_the_same(wanted: str, printed: str, within: float, same: bool) -> None:
    assert (differs(wanted, printed, within) == "") is same


def test_the_guide_is_where_the_machinery_looks() -> None:
    assert (SOURCE / "conf.py").exists()
    assert len(LESSONS) >= 21
