"""The linter of tools/plain_english.py: each rule catches a bad example and passes a good one."""

import subprocess
import sys
from pathlib import Path

import pytest

import plain_english

PATH = Path("example.py")


def rules_of(source: str) -> list[str]:
    return [finding.rule for finding in plain_english.check_source(PATH, source)]


def function(docstring: str, decorator: str = "") -> str:
    return f'{decorator}\ndef example():\n    """{docstring}"""\n'


def field(docstring: str) -> str:
    return f'class Example:\n    """The example."""\n\n    field: int\n    """{docstring}"""\n'


@pytest.mark.parametrize(
    "word", ["The", "Pages", "How", "Returns", "Whether", "return", *sorted(plain_english.RELATIVE)]
)
def test_a_function_begins_with_a_verb(word: str) -> None:
    assert rules_of(function(f"{word} pages that are free.")) == ["first-word"]
    assert rules_of(function("Return the pages that are free.")) == []


@pytest.mark.parametrize("word", sorted(plain_english.RELATIVE))
def test_nothing_begins_with_a_relative_word_or_a_preposition(word: str) -> None:
    text = f"{word} pages that are free."
    assert rules_of(f'"""{text}"""\n') == ["first-word"]
    assert rules_of(f'class Example:\n    """{text}"""\n') == ["first-word"]
    assert rules_of(field(text)) == ["first-word"]
    assert rules_of(f'LIMIT = 3\n"""{text}"""\n') == ["first-word"]


@pytest.mark.parametrize("decorator", ["@property", "@cached_property", "@functools.cached_property"])
def test_a_property_reads_like_a_field(decorator: str) -> None:
    assert rules_of(function("The pages that are free.", decorator)) == []
    assert rules_of(function("Whether a page is free.", decorator)) == []
    assert rules_of(function("What is free.", decorator)) == ["first-word"]
    assert rules_of(field("The pages that are free.")) == []


@pytest.mark.parametrize("phrase", [*plain_english.PHRASES, "of " + "it,"])
def test_a_phrase_is_found_in_docstrings_and_messages(phrase: str) -> None:
    text = f"the pages {phrase} and more"
    assert rules_of(function(f"Return a page.\n\n    Mind {text}.\n    ")) == ["phrase"]
    assert rules_of(f'raise ValueError("{text}")\n') == ["phrase"]
    assert rules_of(f'raise ValueError(f"{{size}} {text}")\n') == ["phrase"]
    assert rules_of(f'option(help="{text}")\n') == ["phrase"]
    assert rules_of(f"size = 3  # {text}\n") == ["phrase"]


@pytest.mark.parametrize("comment", ["// a page\n// {} it", "/** A page\n * {} it. */", "f(); // {}"])
@pytest.mark.parametrize("name", ["page.js", "page.h", "page.cpp"])
def test_a_phrase_is_found_in_comments_of_other_languages(tmp_path: Path, name: str, comment: str) -> None:
    path = tmp_path / name
    phrase = next(iter(plain_english.PHRASES))
    text = f'const text = "{phrase} // {phrase}", address = "http://{phrase}";\n'
    path.write_text(text + comment.format(phrase) + "\n")
    assert [(finding.line, finding.rule) for finding in plain_english.check([tmp_path])] == [(2, "phrase")]


def test_a_phrase_is_found_across_lines_and_not_within_words() -> None:
    words = next(phrase for phrase in plain_english.PHRASES if " " in phrase).split()
    broken = "\n".join(words)
    assert rules_of(function(f"Return a page.\n\n    There are {broken} pages.\n    ")) == ["phrase"]
    assert rules_of("# There are {}\n# {} pages.\n".format(*words)) == ["phrase"]
    assert rules_of(function("Return what is besides in it, and the list of items.")) == []


def test_strings_of_data_may_have_any_phrase() -> None:
    (path,) = plain_english.DATA
    source = f'TEXT = "a part {"of"} it."\n# There are so\n# many.\n'
    assert path.is_file()
    assert [finding.rule for finding in plain_english.check_source(path, source)] == ["phrase"]


def test_entries_in_prose_are_found() -> None:
    prose = "Return a page.\n\n    size: in bytes. first: the first one. last: the last one.\n    "
    assert rules_of(function(prose)) == ["entries"]
    assert rules_of(function("Return a page.\n\n    size, first and last: in bytes. free: some.\n    ")) == []
    listed = (
        "Return a page.\n\n    Args:\n        size: In bytes.\n        first: The first.\n        last: The last.\n    "
    )
    assert rules_of(function(listed)) == []


def test_a_finding_names_its_line() -> None:
    found = plain_english.check_source(PATH, '"""The module."""\n\n\ndef example():\n    """What."""\n')
    assert [(finding.line, str(finding).partition(": ")[0]) for finding in found] == [(5, "example.py:5")]


def test_it_exits_with_1_if_it_finds_something(tmp_path: Path) -> None:
    tool, file = Path(plain_english.__file__), tmp_path / "example.py"
    for text, code in (("What.", 1), ("Return a page.", 0)):
        file.write_text(function(text), encoding="utf-8")
        done = subprocess.run([sys.executable, tool, tmp_path], capture_output=True, text=True, check=False)
        assert (done.returncode, "first-word" in done.stdout) == (code, bool(code)), done.stderr


def test_outside_src_only_new_lines_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.org")
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    (tmp_path / "tests").mkdir()
    (tmp_path / "src").mkdir()
    (tmp_path / "setup.py").touch()
    file = tmp_path / "tests" / "example.py"
    file.write_text(function("What is old."), encoding="utf-8")
    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "First")
    monkeypatch.setattr(plain_english, "ROOT", tmp_path)
    monkeypatch.setattr(plain_english, "SINCE", git("rev-parse", "HEAD"))
    assert plain_english.check_repository() == []
    old = file.read_text(encoding="utf-8")
    file.write_text(old + function("What is new."), encoding="utf-8")
    assert [finding.line for finding in plain_english.check_repository()] == [6]
    monkeypatch.setattr(plain_english, "SINCE", "0" * 40)
    assert plain_english.check_repository() == []
