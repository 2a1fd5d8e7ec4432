"""The tab *Engine* in a browser: what it shows of a server that works, and of recorded runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from page.conftest import OpenPage, slow_steps, until
from page.test_page_browser import serious
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.recordings import SCENES, recorded_runs
from ridgeline.price.devices import load_device
from server.conftest import Running

pytestmark = pytest.mark.page
STATE = "/v1/engine/state"


def counted(page: Any) -> dict[str, int]:
    """The table of the map: pages by state."""
    rows = page.locator(".counts tbody tr").all()
    return {
        row.locator("th").text_content(): int(row.locator("td").first.text_content().replace(",", "")) for row in rows
    }


def pool_of(server: Running) -> Any:
    """The pool that the server's engine has."""
    return server.service.llm.host._loaded.engine.kv_cache_manager.pool  # type: ignore[attr-defined]


def truth(server: Running) -> dict[str, int]:
    pool = pool_of(server)
    states = [pool.state(page) for page in range(1, pool.size + 1)]
    return {name: states.count(name) for name in ("held", "published", "shared", "cached", "free")}


def gauge(page: Any, name: str) -> str:
    found = page.locator(".gauge").filter(has=page.get_by_text(name, exact=True))
    return str(found.locator(".value").text_content())


def share_of(metrics: str) -> float:
    """Predicted over measured seconds of all steps, from what Prometheus is told."""

    def total(name: str) -> float:
        return sum(float(value) for value in re.findall(rf"^{name}_sum{{[^}}]*}} (\S+)$", metrics, re.MULTILINE))

    return total("ridgeline:step_predicted_seconds") / total("ridgeline:step_seconds")


def test_what_is_sent_is_seen_and_the_view_ends_as_the_engine_does(open_page: OpenPage, tales_server: Running) -> None:
    """Counts are the pool's, the gauge is what the metrics say (E5), and nobody listens once it is hidden (E4)."""
    one = open_page(f"{tales_server.url}/#tab=engine")
    page = one.page
    page.get_by_role("heading", name="KV memory").wait_for()
    page.evaluate("Math.random = () => 1 - 2 ** -53")  # the longest answers: the long prompt leaves room for one
    page.get_by_role("button", name="Send 10", exact=True).press("Enter")
    page.get_by_role("button", name="A long prompt").press("Enter")
    page.get_by_text("None of your requests is running.").wait_for()
    tales_server.idle()
    until(page, lambda: page.locator(".lane").nth(2).locator("h3 span").text_content() == "11")
    until(page, lambda: counted(page) == truth(tales_server))
    assert counted(page)["cached"] > 0
    assert (gauge(page, "Running"), gauge(page, "Waiting")) == ("0", "0")
    assert page.locator(".lane").nth(2).locator("li").first.locator(".what").text_content().endswith(("length", "stop"))
    metrics = tales_server.get("/metrics").data.decode()
    assert float(page.locator(".since").text_content()) == pytest.approx(share_of(metrics), rel=6e-3)
    page.get_by_role("img", name=re.compile("^Map of .* KV pages")).press("ArrowRight")
    assert re.match(r"Page 1: \w+", page.locator(".map .looked").text_content())
    page.get_by_role("img", name=re.compile("^The last .* steps")).press("ArrowLeft")
    told = json.loads(page.locator(".steps .looked").text_content())
    assert told["positions"] == sum(item[2] for item in told["items"])
    page.get_by_text("As a table").click()
    assert page.get_by_role("region", name="Steps as a table").locator("tbody tr").count() <= 120
    assert serious(page) == []
    assert pool_of(tales_server).touched is not None
    page.get_by_role("tab", name="Chat").click()
    until(page, lambda: pool_of(tales_server).touched is None)
    page.get_by_role("tab", name="Engine").click()
    until(page, lambda: pool_of(tales_server).touched is not None)


def test_the_last_request_is_taken_back(open_page: OpenPage, tales_server: Running) -> None:
    """Closing its connection ends it in the engine; the lanes say so."""
    page = open_page(
        f"{tales_server.url}/#tab=engine", color_scheme="dark", viewport={"width": 360, "height": 740}
    ).page
    send = page.get_by_role("button", name="Send 100", exact=True)
    send.wait_for()
    with slow_steps(tales_server):
        send.press("Enter")
        until(page, lambda: gauge(page, "Running") != "0")
        page.get_by_role("button", name="Abort all").press("Enter")
        page.get_by_text("None of your requests is running.").wait_for()
    tales_server.idle()
    page.locator(".what").filter(has_text="abort").first.wait_for()
    until(page, lambda: counted(page) == truth(tales_server))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is no wider than the screen"
    assert serious(page) == []


@pytest.fixture(scope="module")
def recorded_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "runs.html"
    path.write_bytes(render_standalone({"runs.json": recorded_runs(load_device("h100-sxm"), SCENES[2:])}))
    return path


def test_recorded_runs_are_played_and_scrubbed(open_page: OpenPage, recorded_file: Path) -> None:
    one = open_page(f"{recorded_file.as_uri()}#tab=engine", offline=True)
    page = one.page
    step = page.get_by_role("slider", name="Step")
    until(page, lambda: int(step.input_value()) > 1)  # it plays by itself
    step.press("End")
    page.get_by_role("button", name="Again").wait_for()
    at_end = counted(page)
    assert gauge(page, "Running") == "0"
    assert sum(at_end.values()) == SCENES[2].pages
    step.press("Home")
    assert counted(page)["free"] == SCENES[2].pages
    for _ in range(30):
        step.press("ArrowRight")
    middle = counted(page)
    assert middle["held"] + middle["published"] > 0
    step.press("End")
    assert counted(page) == at_end
    assert "preempted" in page.locator(".lanes").text_content()
    page.get_by_role("button", name="A shared prefix").click()
    until(page, lambda: int(step.input_value()) > 1)
    step.press("Home")
    assert [address for address in one.asked if not address.startswith(("data:", "file:"))] == []


def test_without_motion_nothing_plays_by_itself(open_page: OpenPage, recorded_file: Path) -> None:
    page = open_page(
        f"{recorded_file.as_uri()}#v=1&tab=engine&engine.run=shared&engine.step=20", reduced_motion="reduce"
    ).page
    step = page.get_by_role("slider", name="Step")
    assert (step.input_value(), page.get_by_role("button", name="Play").count()) == ("20", 1)
    page.get_by_role("button", name="A step on").click()
    assert step.input_value() == "21"
    assert "engine.step=21" in page.url
