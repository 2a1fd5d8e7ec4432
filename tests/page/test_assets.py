"""The page's files: what they may be, and what each leads to."""

import hashlib
import re

import pytest

from ridgeline.learn.page.assets import STATIC, assets, of_type, without_comments
from ridgeline.learn.page.html_document import page_sizes, served_page

OWN = [asset for asset in assets().values() if not asset.name.startswith("vendored/")]
MODULES = [asset for asset in OWN if asset.name.endswith(".js")]


def test_all_of_it_is_at_most_150_kb_compressed() -> None:
    assert sum(page_sizes().values()) <= 150_000, page_sizes()


@pytest.mark.parametrize("asset", OWN, ids=lambda asset: asset.name)
def test_no_file_of_ours_has_more_than_400_lines(asset: object) -> None:
    assert asset.text.count("\n") <= 400  # type: ignore[attr-defined]


def test_others_files_are_those_that_the_table_says() -> None:
    folder = STATIC / "vendored"
    rows = re.findall(r"^\| (\S+) \| .* \| ([0-9a-f]{64}) \|$", (folder / "README.md").read_text(), re.MULTILINE)
    found = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "README.md"
    }
    assert found == dict(rows)
    assert all((folder / name).parent.joinpath("LICENSE").exists() for name in found)


def test_every_import_is_of_a_file_that_there_is() -> None:
    """By its bare name, which is all that one file of the page can resolve; and every file is imported by one."""
    imported = {asset.name: re.findall(r'(?:from|import\()\s*"([^"]+)"', asset.text) for asset in MODULES}
    names = {f"page/{asset.name}" for asset in of_type(".js")}
    for name, wanted in imported.items():
        assert set(wanted) <= names, name
    assert re.search(r'src="page/app\.js\?v=[0-9a-f]{16}"', served_page().document.data.decode())


def exported(text: str) -> set[str]:
    """Return the names that a module exports."""
    named = re.findall(r"^export (?:async )?(?:function\*?|const|let|class) (\w+)", text, re.MULTILINE)
    lists = re.findall(r"^export \{([^}]*)\}", text, re.MULTILINE)
    return {*named, *re.findall(r"\w+(?=\s*(?:,|$))", ",".join(lists))}


def test_every_imported_name_is_exported() -> None:
    """Compare the imports of our files with the exports: only a browser would miss a name that a file no longer has."""
    found = {asset.name: exported(asset.text) for asset in MODULES}
    for asset in MODULES:
        for names, module in re.findall(r'import \{([^}]*)\} from "page/([^"]+)"', asset.text):
            wanted = {name.split(" as ")[0].strip() for name in names.split(",") if name.strip()}
            assert module not in found or wanted <= found[module], (asset.name, module)


@pytest.mark.parametrize("asset", MODULES, ids=lambda asset: asset.name)
def test_no_text_becomes_markup_or_code_and_nothing_comes_from_elsewhere(asset: object) -> None:
    text = re.sub(r"//.*|/\*.*?\*/", "", asset.text)  # type: ignore[attr-defined]
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "new Function",
        "http:",
        "https:",
    ):
        assert word not in text.replace("http://www.w3.org/", ""), word


@pytest.mark.parametrize(
    ("text", "sent"),
    [
        ("// a\nlet b; // c\n", "\nlet b; // c\n"),
        ("/** a */\nb();", "\nb();"),
        ("/**\n * a\n */\nb();\n  /* c */\nd", "\n\n\nb();\n\nd"),
        ("a(); /* b\nc */ d();", "a(); /* b\nc */ d();"),
        ("/* a */ b();", "/* a */ b();"),
        ("a = `\n  /path`;", "a = `\n  /path`;"),
    ],
)
def test_comments_leave_empty_lines(text: str, sent: str) -> None:
    """Lines keep their numbers, and code beside a comment stays."""
    assert without_comments(text) == sent
