"""The tab *One token* in a browser: a text that is typed, and one that was recorded."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from page.conftest import OpenPage
from page.test_page_browser import serious
from ridgeline.engine.setup import load_engine
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.recorder import record
from ridgeline.price.devices import load_device
from server.conftest import Running

pytestmark = pytest.mark.page
HOSTILE = "<img src=x onerror=alert(1)> & </script>"


@pytest.fixture(scope="module")
def recordings() -> list[dict[str, Any]]:
    """Of two models, the first of a text that means harm, with an op that took less than it can."""
    found = []
    for name, text in (("tales", HOSTILE), ("mixture", "Once upon a time")):
        loaded = load_engine(name)
        ids = loaded.text_processor.encode(text, loaded.engine.traits.context)
        rules = replace(loaded.defaults, seed=5)
        found.append(json.loads(json.dumps(record(loaded, name, text, ids, rules, load_device("h100-sxm"), repeats=3))))
    first = found[0]
    first["device"]["at_hand"] = True
    decode = first["steps"][1]
    decode["entries"][4][first["columns"].index("impossible")] = True
    return found


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory, recordings: list[dict[str, Any]]) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("token") / "page.html"
    path.write_bytes(render_standalone({"recordings.json": recordings}))
    return path


@pytest.mark.parametrize(("scheme", "width"), [("dark", 360), ("light", 2560)])
def test_a_recorded_run_is_all_there(
    open_page: OpenPage, one_file: Path, recordings: list[dict[str, Any]], scheme: str, width: int
) -> None:
    """Every op, what lies between them, each chart with its table; nothing is asked of anybody."""
    one = open_page(
        f"{one_file.as_uri()}#token", offline=True, color_scheme=scheme, viewport={"width": width, "height": 900}
    )
    page, told = one.page, recordings[0]
    page.locator(".chips").wait_for()
    asked = [address.partition("#")[0] for address in one.asked if not address.startswith("data:")]
    assert asked == [one_file.as_uri()]
    assert page.locator(".chips li").count() == len(told["prompt"]) + len(told["written"])
    assert page.locator(".chip.special").count() == 1
    assert HOSTILE in page.locator(".tokens .words").text_content()
    assert page.locator("#content img").count() == 0
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    ops = page.get_by_role("group", name="Every op").locator("tbody tr")
    ops.first.wait_for()
    assert ops.count() == len(told["ops"]) + len(told["steps"][1]["overheads"]) + 1
    drawn = page.locator(".lanes .strip rect[data-op]").count()
    assert drawn == 2 * len(told["ops"]), "a fill and an outline for each"
    assert page.locator(".lanes .roof-impossible").count() == 1
    assert page.locator(".lens tbody tr").count() == told["layers"] + 1
    if width == 360:
        assert serious(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is no wider than the screen"


def test_it_goes_by_keys(open_page: OpenPage, one_file: Path, recordings: list[dict[str, Any]]) -> None:
    page = open_page(f"{one_file.as_uri()}#v=1&tab=token&token.op=3", offline=True).page
    scrubber = page.get_by_label("Op of the step")
    title = page.get_by_role("complementary", name="The op").get_by_role("heading")
    ops = recordings[0]["ops"]
    assert ops[3]["path"].endswith(title.text_content())
    scrubber.focus()
    page.keyboard.press("d")
    assert ops[4]["path"].endswith(title.text_content())
    page.get_by_text("Impossible: shape, spec or timer. No kernel can take less than").wait_for()
    page.keyboard.press("a")
    page.keyboard.press("a")
    assert "token.op=2" in page.evaluate("location.hash")
    shown = page.locator(".ends span")
    whole = shown.all_text_contents()
    page.keyboard.press("w")
    assert shown.all_text_contents() != whole
    page.keyboard.press("s")
    assert shown.all_text_contents() == whole
    page.get_by_role("group", name="Step").get_by_role("button").first.click()
    assert "token.step=prefill" in page.evaluate("location.hash")


def test_a_token_is_chosen_and_its_row_shown(
    open_page: OpenPage, one_file: Path, recordings: list[dict[str, Any]]
) -> None:
    page = open_page(f"{one_file.as_uri()}#v=1&tab=token&token.layer=1&token.head=2", offline=True).page
    told = recordings[0]
    page.locator(".chips li").nth(4).get_by_role("button").click()
    page.get_by_role("region", name="Attention").get_by_text("As a table").click()
    rows = page.get_by_role("group", name="Attention weights").locator("tbody tr")
    rows.first.wait_for()
    assert rows.count() == 5
    share = told["attention"]["rows"]["4"][1][2][0]
    said = rows.first.locator("td").nth(3).text_content()
    assert float(said.removesuffix("%")) == pytest.approx(100 * share, rel=0.06, abs=0.006)


def test_another_recorded_run_has_experts(
    open_page: OpenPage, one_file: Path, recordings: list[dict[str, Any]]
) -> None:
    page = open_page(f"{one_file.as_uri()}#token", offline=True).page
    page.get_by_label("Recorded").select_option(label="mixture: Once upon a time")
    rows = page.get_by_role("region", name="Experts").locator("tbody tr")
    rows.first.wait_for()
    picked = recordings[1]["experts"]["layers"][0]["picked"]
    said = rows.first.locator(".pick").all_text_contents()
    assert [int(each.split()[0]) for each in said] == picked


def test_a_text_is_typed_and_followed(open_page: OpenPage, tales_server: Running) -> None:
    """The draw that is shown is the one that the engine made; a text that is too long is refused in words."""
    page = open_page(f"{tales_server.url}/#token", quiet=False).page
    text = page.get_by_label("A text of at most 64 tokens")
    text.fill("a bear " * 64)
    text.press("Enter")
    page.get_by_role("alert").get_by_text("the limit of a trace is 64").wait_for()
    text.fill("The bear")
    text.press("Enter")
    draw = page.get_by_role("region", name="The draw")
    draw.wait_for()
    page.get_by_text("during which it ran nothing else").wait_for()
    assert page.get_by_role("alert").count() == 0
    taken = draw.locator("tr.chosen code").text_content()
    assert taken == draw.get_by_role("heading").locator("code").text_content()
    page.clock.install()  # the step is over within seconds: they pass as they are told to
    page.get_by_role("button", name="Play").click()
    while "token.op=" not in page.url:
        page.clock.run_for(50)
    page.get_by_role("button", name="Pause").wait_for()
