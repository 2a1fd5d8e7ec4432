"""The page's home in a browser: what the page is, and three things to try, each a click."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import OpenPage, apart, until, watched
from page.test_page_browser import serious
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.setup import load_engine
from ridgeline.learn.page.data import CARDS, MODELS, device_data, models_data, table_data, table_name
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.model_tables import StoredModel
from ridgeline.learn.page.recorder import INSPECTOR
from ridgeline.price.devices import load_device
from ridgeline.server.model_loop import ModelLoop
from ridgeline.server.multi_model import LoopedEngine
from ridgeline.server.server_settings import ServerSettings
from server.conftest import Running

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = pytest.mark.page

STILL: dict[str, Any] = {"reduced_motion": "reduce"}
SERVED: dict[str, Any] = {
    "quiet": False,
    **STILL,
}  # the console has a 400: tales does not divide over two cards, which a lever says


@pytest.fixture(scope="module")
def priced_server() -> Iterator[Running]:
    """A server of `tales` whose calculator has its price, as `ridgeline serve` starts it."""
    with ExitStack() as stack:
        loop = ModelLoop(1)
        llm = AsyncLLM(LoopedEngine(load_engine("tales"), load_device("h100-sxm"), loop, INSPECTOR))
        yield stack.enter_context(watched(llm, ServerSettings(models=("tales",)), {"tales": "tales"}))


def home_of(page: "Page") -> "Locator":
    return page.get_by_role("region", name="What this is")


def tries_of(page: "Page") -> "Locator":
    return page.get_by_role("group", name="Things to try").get_by_role("button")


def test_the_home_says_what_it_is_and_what_to_try(open_page: OpenPage, priced_server: Running) -> None:
    """Three examples, the calculator below them. Each opens its tab, the home goes, and going back brings it again."""
    page = open_page(f"{priced_server.url}/", **SERVED).page
    home_of(page).get_by_text("predicts, measures and explains their speed").wait_for()
    tries = tries_of(page)
    assert [each.split("\n")[0] for each in tries.all_inner_texts()] == [
        "Plan llama-3-8b on an H100", "Chat with tales", "Follow one token through tales",
    ]  # fmt: skip
    page.get_by_text("One user of tales").wait_for()
    opened = {"Calculator": "Users", "Chat": "Type a message", "One token": "A text of at most 64 tokens"}
    for at, (title, control) in enumerate(opened.items()):
        tries.nth(at).click()
        page.get_by_role("tabpanel").get_by_label(control).first.wait_for()
        assert page.get_by_role("tab", selected=True).inner_text() == title
        assert page.evaluate("document.activeElement.textContent").strip() == title, "the keyboard goes on from there"
        assert home_of(page).count() == 0
        page.go_back()
        home_of(page).wait_for()


def test_the_known_model_is_planned_whatever_was_looked_at(open_page: OpenPage, priced_server: Running) -> None:
    """The served model's short prompts do not come along."""
    page = open_page(f"{priced_server.url}/", **SERVED).page
    page.get_by_text("One user of tales").wait_for()
    page.get_by_role("slider", name="Users").press("PageUp")
    until(page, lambda: "calculator.input" in page.url)
    assert home_of(page).count() == 1, "a home stays while its calculator is used"
    tries_of(page).first.click()
    page.get_by_text("of llama-3-8b on an NVIDIA H100").wait_for()
    until(page, lambda: "calculator.input" not in page.url)


def test_an_address_that_says_something_has_no_home(open_page: OpenPage, priced_server: Running) -> None:
    for said in ("#calculator", "#users=8", "#v=1&tab=chat"):
        page = open_page(f"{priced_server.url}/{said}", **SERVED).page
        page.get_by_role("tab").first.wait_for()
        page.locator(".panel > *").first.wait_for()
        assert home_of(page).count() == 0


@pytest.mark.parametrize(("scheme", "width"), [("light", 320), ("dark", 1280)])
def test_axe_finds_nothing_serious(open_page: OpenPage, priced_server: Running, scheme: str, width: int) -> None:
    size = {"width": width, "height": 800}
    page = open_page(f"{priced_server.url}/", color_scheme=scheme, viewport=size, **SERVED).page
    home_of(page).wait_for()
    page.get_by_text("One user of tales").wait_for()
    assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is no wider than the screen"
    home, bar = home_of(page).bounding_box(), page.locator(".panel.calculator").bounding_box()
    assert home is not None
    assert bar is not None
    assert home["y"] + home["height"] <= bar["y"] + 1


@pytest.mark.parametrize(("model", "says"), [("llama-3-8b", "Plan llama-3-8b on an H100"), ("gpt2", "Plan a model on")])
def test_a_file_offers_what_it_holds(
    open_page: OpenPage, tmp_path_factory: pytest.TempPathFactory, model: str, says: str
) -> None:
    """One that lacks the well-known model plans its own; nothing is fetched."""
    path = tmp_path_factory.mktemp("home") / "page.html"

    def written() -> None:
        own = {table_name(model, StoredModel()): table_data(model, model, StoredModel())}
        path.write_bytes(
            render_standalone({MODELS: models_data({model: [StoredModel()]}), CARDS: device_data(), **own})
        )

    apart(written)
    one = open_page(path.as_uri(), offline=True, **STILL)
    home_of(one.page).get_by_text("in recorded runs").wait_for()
    tries = tries_of(one.page)
    assert tries.count() == 1
    assert tries.first.inner_text().startswith(says)
    tries.first.click()
    until(one.page, lambda: "card=h100-sxm" in one.page.url)
    assert ("model=llama-3-8b" in one.page.url) == (model == "llama-3-8b")
