"""The built site (`make guide`): it opens from a disk without network, its links lead somewhere, its search finds."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest
from docs.guide.machinery.chapters import ROOT, chapters

from page.conftest import browser  # noqa: F401 the same browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SITE = ROOT / "guide"
CALCULATOR = "calculator.html"
"""The page in the guide, which has tests of its own."""
pytestmark = pytest.mark.guide


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    assert (SITE / "index.html").exists(), "make guide builds it"


class Links(HTMLParser):
    """What a page refers to, and the names in it that may be referred to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[tuple[str, str]] = []
        self.names: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.names |= {value for key in ("id", "name") if (value := given.get(key))}
        self.links += [(tag, value) for key in ("href", "src") if (value := given.get(key)) is not None]


@pytest.fixture(scope="module")
def pages() -> dict[Path, Links]:
    return {path: Links(path.read_text(encoding="utf-8")) for path in SITE.rglob("*.html") if path.name != CALCULATOR}


def test_nothing_is_fetched_from_elsewhere(pages: dict[Path, Links]) -> None:
    """No script, style, picture or font has an address in the network; links that people follow may."""
    fetched = [
        f"{path.name}: {link}"
        for path, page in pages.items()
        for tag, link in page.links
        if tag != "a" and urlsplit(link).netloc
    ]
    assert fetched == []
    styles = "".join(path.read_text(encoding="utf-8") for path in SITE.rglob("*.css"))
    assert not re.findall(r"url\(['\"]?https?:|@import", styles)


def test_links_within_the_site_lead_somewhere(pages: dict[Path, Links]) -> None:
    lost = []
    for path, page in pages.items():
        for _, link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists():
                lost.append(f"{path.name}: {link}")
            elif target.name == CALCULATOR:
                continue  # what stands behind its # is a case, and no place
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].names:
                lost.append(f"{path.name}: {link} has no such place")
    assert lost == []


@pytest.fixture
def page(browser: "Browser") -> Iterator["Page"]:  # noqa: F811
    """A page of a browser without network, of which nothing may be said and which asks for files alone."""
    context = browser.new_context(offline=True, viewport={"width": 360, "height": 800})
    opened, said = context.new_page(), list[str]()
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on(
        "request", lambda request: None if request.url.startswith(("file:", "data:")) else said.append(request.url)
    )
    yield opened
    context.close()
    assert said == []


@pytest.mark.page
def test_every_page_opens_from_a_disk(page: "Page") -> None:
    """And none is wider than a telephone."""
    for path in chapters():
        page.goto((SITE / f"{path.stem}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path.name


@pytest.mark.page
@pytest.mark.parametrize(
    ("word", "chapter"),
    [
        ("softmax", "Attention by hand"), ("queen", "Words as directions"),
        ("roofline", "Prefill, decode, roofline"), ("goodput", "Traffic"),
    ],
)  # fmt: skip
def test_search_finds(page: "Page", word: str, chapter: str) -> None:
    page.goto((SITE / "search.html").as_uri() + f"?q={word}")
    # Results come one after the other; a chapter that is not among them ends in Playwright's own error.
    page.locator("#search-results li", has_text=chapter).first.wait_for()


@pytest.mark.page
def test_a_question_says_why_when_it_is_opened(page: "Page") -> None:
    """Without a script."""
    page.goto((SITE / "attention.html").as_uri())
    choice = page.locator(".quiz details.right").first
    assert not choice.locator("p").is_visible()
    choice.locator("summary").click()
    assert choice.locator("p").inner_text().startswith("Right.")


@pytest.mark.page
def test_pictures_are_dark_on_dark_ground(browser: "Browser") -> None:  # noqa: F811
    colours = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(offline=True, color_scheme=scheme)
        opened = context.new_page()
        opened.goto((SITE / "bend.html").as_uri())
        colours[scheme] = opened.evaluate("getComputedStyle(document.querySelector('.picture svg rect')).fill")
        context.close()
    assert colours["light"] == "rgb(255, 255, 255)"
    assert colours["dark"] == "rgb(22, 25, 29)"


@pytest.mark.page
def test_a_guess_is_told_beside_text_and_ledger_and_stays(page: "Page") -> None:
    address = (SITE / "memory.html").as_uri()
    page.goto(address)
    form = page.locator("form.guess")
    told = form.locator("details p")
    assert not told.is_visible()
    form.locator("input").fill("40")
    assert form.locator("output").inner_text() == "40"
    form.locator("button").click()
    assert told.inner_text() == "Your guess: 40. A text says: about 30. The ledger: 21."
    page.goto(address)
    assert told.is_visible()
    assert form.locator("output").inner_text() == "40"


@pytest.mark.page
def test_a_guess_needs_no_script(browser: "Browser") -> None:  # noqa: F811
    """The figure is folded, and no slider stands there that does nothing."""
    context = browser.new_context(offline=True, java_script_enabled=False)
    opened = context.new_page()
    opened.goto((SITE / "memory.html").as_uri())
    assert not opened.locator("form.guess input").is_visible()
    opened.locator("form.guess summary").click()
    assert opened.locator("form.guess details p").inner_text() == "A text says: about 30. The ledger: 21."
    context.close()


@pytest.mark.page
def test_the_calculator_is_set_to_the_chapters_case(page: "Page") -> None:
    """Loaded when it is opened, from the file beside the chapters."""
    page.goto((SITE / "memory.html").as_uri())
    assert [frame.url for frame in page.frames if CALCULATOR in frame.url] == []
    page.locator("details.calculator summary").click()
    sentence = page.frame_locator("details.calculator iframe").locator(".sentence")
    sentence.get_by_text("RTX 4090").wait_for()
    assert "21" in sentence.inner_text()
