"""The documentation can be found and followed: docs/README.md lists every page, and links lead somewhere."""

import re
from pathlib import Path

import pytest

from test_packages import GROUPS, PACKAGE

ROOT = Path(__file__).resolve().parents[1]
DOCS, BENCHMARKS = ROOT / "docs", ROOT / "benchmarks"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md"), *BENCHMARKS.glob("*.md")])
_CODE = re.compile(r"^( *)```.*?^\1```$|^    .*?$|`[^`\n]*`", re.M | re.S)
_LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"")
_HEADING = re.compile(r"^#{1,6} (.*)$", re.M)


def links_of(text: str) -> list[str]:
    """Return the targets of a page's links and images, without those in code and those to other sites."""
    # Code within the text of a link is no link of its own, so only the code's characters go.
    prose = _CODE.sub("", text)
    return [link or image for link, image in _LINK.findall(prose) if "://" not in (link or image)]


def anchors_of(text: str) -> set[str]:
    """Return the anchors of a page's headings as a forge makes them: lower case, no punctuation, hyphens for spaces."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in _HEADING.findall(prose)]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def broken(page: Path) -> list[str]:
    """Return the links of a page that lead nowhere."""
    faults = []
    for link in links_of(page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            faults.append(f"{link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target.read_text(encoding="utf-8")):
            faults.append(f"{link}: {target.name} has no such heading")
    return faults


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert broken(page) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page: its `code`\n[a](#a-page-its-code) [b](gone.md) [c](#gone) `[d](e.md)`\n")
    assert broken(page) == ["gone.md: there is no such file", "#gone: page.md has no such heading"]


def test_the_index_lists_every_page() -> None:
    """Each once or more, with a line of its own; the guide by its first chapter."""
    index = DOCS / "README.md"
    listed = {(DOCS / link.partition("#")[0]).resolve() for link in links_of(index.read_text(encoding="utf-8"))}
    wanted = {*DOCS.glob("*.md"), *BENCHMARKS.glob("*.md"), DOCS / "guide" / "README.md"} - {index}
    assert sorted(str(path.relative_to(ROOT)) for path in wanted - listed) == []


def test_the_map_has_every_package() -> None:
    """docs/architecture.md has a row for each folder that CONTRIBUTING.md's table of imports has, and for data."""
    rows = re.findall(r"^\| (`.*?/`) \|", (DOCS / "architecture.md").read_text(encoding="utf-8"), re.M)
    mapped = re.findall(r"`([^`]+)/`", " ".join(rows))
    folders = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")} - {Path()}
    groups = {folder.parts[0] for folder in folders} & set(GROUPS)
    packages = {Path(*folder.parts[: 2 if folder.parts[0] in groups else 1]) for folder in folders}
    assert sorted(mapped) == sorted([*(path.as_posix() for path in packages if path.as_posix() not in groups), "data"])


def test_the_table_of_commands_is_whole() -> None:
    """docs/cli.md has a row for each command of the list."""
    commands = (ROOT / "tests" / "cli" / "commands.txt").read_text(encoding="ascii")
    known = {line.split()[0] for line in commands.splitlines() if line and not line.startswith(" ")}
    text = (DOCS / "cli.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"`([a-z]+)`", " ".join(re.findall(r"^\| (`[a-z]+`.*?) \|", text, re.M))))
    assert shown == known


def test_the_examples_in_python_run() -> None:
    """Those of docs/python.md, one after the other, as they stand."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "python.md").read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 4
    names: dict[str, object] = {"__name__": "python_md"}
    for block in blocks:
        exec(compile(block, "docs/python.md", "exec"), names)
