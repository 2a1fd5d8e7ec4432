"""The rendered pages docs/guide/*.md: a forge shows each as finished text, every link in them leads somewhere, and one
that differs from its source is found."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from docs.guide.machinery import forge
from docs.guide.machinery.api import api_markdown, docstring_markdown
from docs.guide.machinery.chapters import GUIDE, read_chapters, reading_order, title_of
from docs.guide.machinery.images import IMAGES
from docs.guide.machinery.markdown import Renderer, page_name
from docs.guide.machinery.pages import page_faults
from markdown_it import MarkdownIt

import ridgeline
from ridgeline.learn.guide.guide_numbers import GuideNumber, read_lock
from ridgeline.learn.guide.quizzes import QuizChoice, QuizQuestion, read_quizzes

PAGES = {path.name: path.read_text(encoding="utf-8") for path in sorted(GUIDE.glob("*.md"))}
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable("table")


class Shown(HTMLParser):
    """A page as a reader sees it: its links, and its text, in which a backtick stands for code."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text = ""
        self.code = 0
        self.feed(MARKDOWN.render(page))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.code += tag == "code"
        self.links += [value for key, value in attrs if key in ("href", "src") and value]

    def handle_endtag(self, tag: str) -> None:
        self.code -= tag == "code"

    def handle_data(self, data: str) -> None:
        self.text += data if not self.code else "`"


@cache
def shown(name: str) -> Shown:
    return Shown(PAGES[name])


@cache
def anchors_of(page: str) -> set[str]:
    """Return the anchors of a page's headings by GitHub's rule, as the plugin of markdown-it has it."""
    plugin = pytest.importorskip(
        "mdit_py_plugins.anchors", reason="myst-parser is not installed: pip install '.[docs]'"
    )
    parser = MarkdownIt("commonmark").use(plugin.anchors_plugin, max_level=6)
    return {str(token.attrs["id"]) for token in parser.parse(page) if token.type == "heading_open"}


def test_each_source_has_a_page() -> None:
    assert set(PAGES) == {page_name(name) for name in read_chapters()}
    for name in read_chapters():
        first = PAGES[page_name(name)].splitlines()[0]
        assert re.fullmatch(rf"<!-- Made from docs/guide/source/{name} by `make guide-update`\..* -->", first)


@pytest.mark.parametrize("name", PAGES)
def test_no_mark_of_a_source_is_left(name: str) -> None:
    text = shown(name).text
    assert not re.search(r"\{[\w:-]+\}`", text)
    assert not re.search(r"^`{3,}\{|\{[\w:-]+\}`|^:::|^\([\w-]+\)=$", PAGES[name], re.MULTILINE)
    assert not re.search(r"^: ", text, re.MULTILINE), "a definition list"
    assert "$$" not in text
    assert PAGES[name].count("<details>") == PAGES[name].count("</details>")


@pytest.mark.parametrize("name", PAGES)
def test_links_and_images_lead_somewhere(name: str) -> None:
    lost = []
    for link in shown(name).links:
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (GUIDE / unquote(parts.path)).resolve() if parts.path else GUIDE / name
        if not target.exists():
            lost.append(link)
        elif parts.fragment and unquote(parts.fragment) not in anchors_of(PAGES[target.name]):
            lost.append(f"{link} has no such heading")
    assert lost == []


def test_chapters_lead_from_one_to_the_next() -> None:
    """The index has all of them by their titles, and each ends with its neighbours."""
    sources = read_chapters()
    order = reading_order(sources["index.md"])
    for before, name in pairwise(order):
        assert f"[{title_of(sources[f'{name}.md'])}]({name}.md)" in PAGES["README.md"]
        foot = PAGES[f"{name}.md"].splitlines()[-1]
        assert foot.startswith(f"← [{title_of(sources[f'{before}.md'])}]({before}.md) · [Contents](README.md)")
        assert PAGES[f"{before}.md"].splitlines()[-1].endswith(f"({name}.md) →")


def test_every_number_question_and_image_is_shown() -> None:
    """Each number of a source stands in its page, and so do the questions and the images."""
    numbers, sources = read_lock(), read_chapters()
    quizzes = read_quizzes(numbers)
    for name, text in sources.items():
        page = PAGES[page_name(name)]
        for number in re.findall(r"\{n\}`([^`]+)`", text):
            assert numbers[number].text in shown(page_name(name)).text, number
        assert page.count("![") == text.count("```{picture}")
        for question in quizzes.get(name.removesuffix(".md"), ()):
            assert forge.marked(question.ask) in page
            assert page.count("\n**Right.** ") == sum(bool(one.choices) for one in quizzes[name.removesuffix(".md")])


def test_images_are_light() -> None:
    sizes = {path.name: path.stat().st_size for path in IMAGES.glob("*.svg")}
    assert len(sizes) >= 22
    assert sum(sizes.values()) < 1.5e6


# -- what the renderer makes ------------------------------------------------------------------------------------------


def renderer(texts: Mapping[str, str], quizzes: Mapping[str, list[QuizQuestion]] | None = None) -> Renderer:
    glossary = "# Words\n\n```{glossary}\nKV cache\n  What is kept.\n\ntop-k\nmost likely\n  A rule of $k$.\n```\n"
    numbers = {"price": GuideNumber("$0.15", 0.15), "time": GuideNumber("7.5 ms", 0.0075)}
    return Renderer({"words.md": glossary, **texts}, numbers, quizzes or {}, {})


@pytest.mark.parametrize(
    ("source", "page"),
    [
        ("It takes {n}`time`.", "It takes 7.5 ms."),
        ("{n}`price` or $p$", "<span>$</span>0.15 or $p$"),
        ("{says}`2 * 3 <b>`", r"“2 \* 3 \<b>”"),
        ("{term}`kv cache` and {term}`the first\n<top-k>`",
         "[kv cache](words.md#kv-cache) and [the first](words.md#top-k-most-likely)"),
        ("`{n}` stays, $x_i$ and $a\\,b$", "`{n}` stays, $`x_i`$ and $`a\\,b`$"),
        ("$$a\n= b$$", "```math\na\n= b\n```"),
        ("**Why?**\n: It is\n  so.\n\nEnd.", "**Why?**\n\nIt is\nso.\n\nEnd."),
        ("[there](index.md)", "[there](README.md)"),
        ("```console skip: it writes\n$ ridgeline lab\n```", "```console\n$ ridgeline lab\n```"),
        ("```{answer}\n{n}`time`, of course.\n```",
         "<details><summary>Done? Compare</summary>\n\n7.5 ms, of course.\n\n</details>"),
        ("```{guess} time 1 9\n:text: 8 ms\nHow long?\n```",
         "**Guess first.** How long?\n\n<details><summary>Look</summary>\n\n"
         "A text says: 8 ms. The ledger: **7.5 ms**.\n\n</details>"),
        ("```{toctree}\n:caption: Begin\n\nwords\n```", "## Begin\n\n- [Words](words.md)"),
    ],
)  # fmt: skip
def test_marks_and_directives(source: str, page: str) -> None:
    assert renderer({"made.md": source}).body("made.md") == page


def test_a_glossary_has_a_heading_for_each_term() -> None:
    page = renderer({}).body("words.md")
    assert page == "# Words\n\n### KV cache\n\nWhat is kept.\n\n### top-k, most likely\n\nA rule of $k$."


def test_choices_say_why() -> None:
    choices = (
        QuizChoice("`a` < b", True, "It *is*."),
        QuizChoice("c", False, "It is not."),
        QuizChoice("d", False, "Nor this."),
    )
    asked = [
        QuizQuestion("made", "Is it?", choices),
        QuizQuestion("made", "How long?", (), GuideNumber("3 ms", 0.003), 0.1, "So."),
    ]
    page = renderer({"made.md": "```{quiz} made\n```"}, {"made": asked}).body("made.md")
    assert "**1.** Is it?\n\n<details><summary><code>a</code> &lt; b</summary>\n\n**Right.** It *is*.\n\n" in page
    assert page.count("**No.**") == 2
    assert "**2.** How long?" in page
    assert "**3 ms, within 10%.** So." in page


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{ref}`there`", "the role 'ref' cannot be rendered"),
        ("```{note}\nLook.\n```", "the directive {note} cannot be rendered"),
        ("{n}`none`", "there is no number 'none'"),
        ("{term}`none`", "'none' is not in the glossary"),
        ("```{picture} lab none\nSeen.\n```", "run `make guide-update`"),
        ("```{eval-rst}\n.. note:: this\n```", "cannot be rendered; add it to api.py"),
        ("```{source} core/ops/torch_attention.py none\n```", "has no none"),
    ],
)
def test_a_mark_that_cannot_be_rendered_is_named(source: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^made\.md: ") as error:
        renderer({"made.md": source}).body("made.md")
    assert says in str(error.value)


@pytest.mark.parametrize("heading", ["KV cache", "Little's law", "top-k, most likely", "A `code` of *mine*: 2 x 3"])
def test_anchors_are_those_of_forges(heading: str) -> None:
    assert anchors_of(f"# {heading}") == {forge.slug(heading)}


def test_sections_of_docstrings_become_lists() -> None:
    text = "Run it.\n\nArgs:\n    a: one * two,\n        and `x * y`.\n    b: more.\n\nRaises:\n    ValueError: no."
    assert docstring_markdown(text) == (
        "Run it.\n\n*Args:*\n\n- `a`: one \\* two,\n  and `x * y`.\n- `b`: more.\n\n*Raises:*\n\n- `ValueError`: no."
    )


def test_fields_become_a_list() -> None:
    page = api_markdown(".. autoclass:: ridgeline.EngineSettings\n   :members:\n")
    listed = re.findall(r"^- `(\w+)`: \S", page, re.MULTILINE)
    assert listed == [field.name for field in fields(ridgeline.EngineSettings)]


def test_signatures_have_no_modules() -> None:
    page = api_markdown(".. autoclass:: ridgeline.LLM\n   :members: stream\n")
    assert "    model: ModelSource | str," in page
    assert "\n### LLM.stream\n" in page
    assert "ridgeline.engine" not in page


# -- pages that differ ------------------------------------------------------------------------------------------------


def test_a_page_that_was_changed_by_hand_is_found(tmp_path: Path) -> None:
    pages = {"one.md": "# One\n\nIt takes 7.5 ms.\n", "two.md": "# Two\n"}
    assert page_faults(pages, update=False, folder=tmp_path) == [
        "one.md is missing: run `make guide-update`", "two.md is missing: run `make guide-update`",
    ]  # fmt: skip
    assert not list(tmp_path.iterdir())
    page_faults(pages, update=True, folder=tmp_path)
    assert page_faults(pages, update=False, folder=tmp_path) == []
    (tmp_path / "one.md").write_text("# One\n\nIt takes 8 ms.\n")
    (tmp_path / "gone.md").write_text("# Gone\n")
    assert page_faults(pages, update=False, folder=tmp_path) == [
        "one.md is not what its source renders to, from line 3 on: run `make guide-update`",
        "gone.md has no source: delete it, or write docs/guide/source/gone.md",
    ]
    page_faults(pages, update=True, folder=tmp_path)
    assert (tmp_path / "one.md").read_text() == pages["one.md"]


def test_a_page_is_another_when_a_number_is() -> None:
    before = renderer({"made.md": "{n}`time`"})
    after = replace(before, numbers={"time": GuideNumber("9 ms", 0.009)})
    assert (before.body("made.md"), after.body("made.md")) == ("7.5 ms", "9 ms")
