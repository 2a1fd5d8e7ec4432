"""The page in a browser: what is there before a tab is, tabs by keyboard, the address, who may see it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from page.conftest import OpenPage, saying
from ridgeline.learn.page.html_document import render_standalone
from server.conftest import Running

pytestmark = pytest.mark.page


def serious(page: Any) -> list[str]:
    """What axe finds that keeps people out. Its script passes the page's policy, as all that a test runs."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe-playwright-python is not installed")
    page.evaluate(Path(axe.__file__).with_name("axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{each['id']}: {node['html'][:200]}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize(("scheme", "width"), [("dark", 360), ("light", 1280)])
def test_axe_finds_nothing_serious(open_page: OpenPage, tales_server: Running, scheme: str, width: int) -> None:
    """With an answer, all of it unfolded."""
    one = open_page(f"{tales_server.url}/#chat", color_scheme=scheme, viewport={"width": width, "height": 740})
    page = one.page
    page.get_by_label("Type a message").fill("Once upon a time")
    page.keyboard.press("Enter")
    page.locator(".took summary").click()
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is no wider than the screen"


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    """A server that wants a key."""
    with saying("It is open.", keys=("sk-right",)) as up:
        yield up


def test_a_key_is_asked_for_kept_and_forgotten(open_page: OpenPage, locked: Running) -> None:
    """What a browser says of a 401 is its own; the page is without fault."""
    one = open_page(f"{locked.url}/#chat", quiet=False)
    page, key = one.page, one.page.get_by_label("API key")
    key.fill("sk-wrong")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("does not accept this key").wait_for()
    key.fill("späße")
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("letters, digits and signs").wait_for()
    key.fill(" sk-right ")
    page.keyboard.press("Enter")
    say = page.get_by_label("Type a message")
    say.fill("Is it?")
    page.keyboard.press("Enter")
    page.get_by_text("It is open.", exact=True).first.wait_for()
    assert serious(page) == []
    page.reload()
    say.wait_for()
    assert page.context.cookies() == []
    assert page.evaluate("Object.keys(localStorage)") == []
    assert "sk-right" not in "".join(one.asked)
    page.get_by_role("button", name="Forget the key").click()
    key.wait_for()
    page.reload()
    key.wait_for()
    assert all("401" in line for line in one.said), one.said


def test_a_page_that_came_before_the_model_waits_for_it(open_page: OpenPage, tales_server: Running) -> None:
    page = open_page(f"{tales_server.url}/health", quiet=False).page
    loading = {"status": 503, "json": {"error": {"message": "the model is still loading", "code": "loading"}}}
    page.route("**/v1/models", lambda route: route.fulfill(**loading))
    page.route("**/health", lambda route: route.fulfill(status=503, json={"status": "loading"}))
    page.goto(f"{tales_server.url}/#chat")
    page.get_by_role("status").get_by_text("The model is being loaded.").wait_for()
    page.unroute_all()
    page.get_by_label("Type a message").wait_for()


def test_a_server_that_no_tab_is_for_says_what_it_answers(open_page: OpenPage, tales_server: Running) -> None:
    page = open_page("about:blank").page
    name = "<b onmouseover=alert(1)>tiny</b>"
    cards = {"object": "list", "data": [{"id": name, "object": "model", "routes": ["/v1/embeddings"]}]}
    page.route("**/v1/models", lambda route: route.fulfill(json=cards))
    page.goto(tales_server.url)
    row = page.get_by_role("row").filter(has_text="/v1/embeddings")
    assert row.get_by_role("rowheader").text_content() == name
    assert page.locator("#content b").count() == 0
    assert page.get_by_role("tab").count() == 0
    assert serious(page) == []


def test_an_address_says_which_tab_and_how_its_fields_stand(open_page: OpenPage, tales_server: Running) -> None:
    page = open_page(f"{tales_server.url}/#v=1&tab=chat&chat.temperature=0.25&chat.top_k=7").page
    temperature, top_k = page.get_by_label("Temperature"), page.get_by_label("Top-k")
    assert (temperature.input_value(), top_k.input_value()) == ("0.25", "7")
    temperature.press("ArrowRight")
    top_k.press("Home")
    assert page.evaluate("location.hash") == "#v=1&tab=chat&chat.temperature=0.3&chat.top_k=0"
    page.reload()
    assert page.get_by_label("Temperature").input_value() == "0.3"
    page.get_by_role("button", name="Defaults of tales").click()
    assert page.evaluate("location.hash") == "#v=1&tab=chat"
    assert page.get_by_label("Temperature").input_value() == "0.8"


def test_an_address_of_a_newer_page_says_so(open_page: OpenPage, tales_server: Running) -> None:
    page = open_page(f"{tales_server.url}/#v=9&tab=chat&chat.top_k=3").page
    page.get_by_text("This address was made by a newer version of the page").wait_for()
    assert page.get_by_label("Top-k").input_value() == "3"


def test_tabs_go_by_keys(open_page: OpenPage, tales_server: Running) -> None:
    """As the pattern of WAI-ARIA has it; there is a way past the bar."""
    page = open_page(f"{tales_server.url}/#chat").page
    tabs = page.get_by_role("tab")
    tabs.first.wait_for()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    page.keyboard.press("Tab")
    names = [name.strip() for name in tabs.all_text_contents()]
    shown = [page.get_by_role("tab", selected=True).text_content().strip()]
    for key in ["ArrowRight"] * len(names) + ["End", "Home", "ArrowLeft"]:
        page.keyboard.press(key)
        shown.append(page.get_by_role("tab", selected=True).text_content().strip())
        assert page.evaluate("document.activeElement.textContent").strip() == shown[-1]
        assert page.get_by_role("tabpanel").count() == 1
    start = names.index(shown[0])
    round_about = [names[(start + i) % len(names)] for i in range(len(names) + 1)]
    assert shown == [*round_about, names[-1], names[0], names[-1]]


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_bytes(render_standalone({"note.json": {"said": "</script><script>alert(1)</script>" * 200}}))
    return path


def test_one_file_opens_from_disk_and_asks_nobody(open_page: OpenPage, one_file: Path) -> None:
    one = open_page(one_file.as_uri(), offline=True)
    one.page.locator("main > *").first.wait_for()
    assert [address for address in one.asked if not address.startswith("data:")] == [one_file.as_uri()]
    found = one.page.evaluate("import('page/source.js').then((m) => m.openSource().data('note.json'))")
    assert found == json.loads(json.dumps({"said": "</script><script>alert(1)</script>" * 200}))
    both = "import('page/source.js').then((m) => m.openSource().names().concat(m.tableName('a b', { devices: 2 })))"
    assert one.page.evaluate(both) == ["note.json", "tables/a%20b.json?devices=2"]
    missing = "import('page/source.js').then((m) => m.openSource().data('x')).catch((error) => error.message)"
    assert one.page.evaluate(missing) == "this file has no x; export the page again with this data"
