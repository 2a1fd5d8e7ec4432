"""Calls, text and reasoning that templates of releases write are read back, whole, streamed and cut anywhere."""

from pathlib import Path

import pytest

from text.round_trips import CASES, RELEASES, NotWritten, format_of, in_docs, read, table, template_of, written

READ = [name for name, release in RELEASES.items() if release.format is not None]


@pytest.mark.parametrize("name", RELEASES)
def test_the_probe_finds_the_format(data_dir: Path, name: str) -> None:
    found = format_of(template_of(data_dir, name))
    assert (found.name if found else None) == RELEASES[name].format


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", READ)
def test_what_a_template_writes_is_read_back(data_dir: Path, name: str, case: str) -> None:
    release, template = RELEASES[name], template_of(data_dir, name)
    tool_format = format_of(template)
    assert tool_format is not None
    if case in release.not_written:
        with pytest.raises(NotWritten, match=release.not_written[case]):
            written(template, release, CASES[case])
        return
    prompt, text = written(template, release, CASES[case])
    response = read(template, tool_format, prompt, text)
    assert response.values == [(called, dict(arguments)) for called, arguments in CASES[case].calls]
    assert response.content == (CASES[case].content or "")
    assert response.withdrawn == 0
    assert response.reasoning == (CASES[case].reasoning or "")


@pytest.mark.parametrize("case", ["two calls", "text before", "nested", "reasoning"])
@pytest.mark.parametrize("name", READ)
def test_a_response_cut_anywhere_shows_no_part_of_a_tag(data_dir: Path, name: str, case: str) -> None:
    """Compare the parts of a cut response with the beginnings of those of the whole response."""
    release, template = RELEASES[name], template_of(data_dir, name)
    if case in release.not_written:
        return  # the test above shows it
    tool_format = format_of(template)
    assert tool_format is not None
    prompt, text = written(template, release, CASES[case])
    whole = read(template, tool_format, prompt, text)
    for size in range(len(text)):
        part = read(template, tool_format, prompt, text[:size], cut=True)
        assert whole.reasoning.startswith(part.reasoning)
        assert len(part.calls) <= len(whole.calls)
        for (called, arguments), (expected, complete) in zip(part.calls, whole.calls, strict=False):
            assert called == expected
            assert complete.startswith(arguments)


def test_the_table_in_the_docs_is_what_these_tests_find(data_dir: Path) -> None:
    docs = Path(__file__).parents[2] / "docs" / "serving.md"
    assert in_docs(docs.read_text(encoding="utf-8"))[1] == table(data_dir)
