"""A tour through one exported file, from disk and without a network: every tab, by keys."""

import json
from dataclasses import replace
from typing import Any

import pytest

from bench.test_report import findings
from page.conftest import OpenPage, apart, until
from ridgeline.engine.setup import load_engine
from ridgeline.insight.bench.bench_export import findings_json
from ridgeline.learn.page.data import CARDS, MODELS, TRAFFIC, device_data, models_data, table_data, table_name
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.model_tables import StoredModel
from ridgeline.learn.page.recorded_images import IMAGES, record_images
from ridgeline.learn.page.recorder import record
from ridgeline.learn.page.recordings import RUNS, SCENES, recorded_runs
from ridgeline.learn.page.request_recording import RECORDED
from ridgeline.price.devices import load_device

pytestmark = pytest.mark.page
MODEL = "llama-3-8b"
TABS = ["Calculator", "Pictures", "One token", "Engine", "Traffic"]


def blocks() -> dict[str, Any]:
    """What `ridgeline page export` writes, of one model and one of each recording."""
    card, loaded = load_device("h100-sxm"), load_engine("tales")
    ids = loaded.text_processor.encode("Once upon a time", loaded.engine.traits.context)
    told = record(loaded, "tales", "Once upon a time", ids, replace(loaded.defaults, seed=1), card, repeats=3)
    table = table_data(MODEL, MODEL, StoredModel())
    return {
        MODELS: models_data({MODEL: [StoredModel()]}),
        CARDS: device_data(),
        table_name(MODEL, StoredModel()): table,
        RUNS: recorded_runs(card, SCENES[2:3]),
        IMAGES: record_images(card, ["a handwritten two"]),
        RECORDED: [json.loads(json.dumps(told))],
        TRAFFIC: [{"name": "r.json", "result": findings_json(findings())}],
    }


@pytest.fixture(scope="module")
def whole_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tour") / "page.html"
    path.write_bytes(render_standalone(apart(blocks)))
    return path.as_uri()


def test_a_tour(open_page: OpenPage, whole_file: str) -> None:
    """The dot climbs; a statement sets the page; a picture, a token and an engine are played to their ends; a
    run under load is looked at. One file is fetched, and nothing is said on the console."""
    one = open_page(whole_file, offline=True, reduced_motion="reduce")
    page = one.page
    tabs = page.get_by_role("tab")
    page.get_by_text("One user of llama-3-8b").wait_for()
    for _ in range(5):
        page.get_by_role("slider", name="Users").press("PageUp")
    page.get_by_text("32 users of llama-3-8b").wait_for()
    page.get_by_role("heading", name="Many users").click()
    page.get_by_role("listitem").filter(has_text="24 GB hold an 8B").get_by_role("button").press("Enter")
    page.get_by_role("row", name="memory holds 21 users").wait_for()
    assert [each.strip() for each in tabs.all_text_contents()] == TABS
    tabs.first.focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("slider", name="Event").press("End")
    page.get_by_text("Seed 3", exact=True).wait_for()
    tabs.nth(1).focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Play").press("Enter")
    until(page, lambda: "token.op=" in page.url)
    tabs.nth(2).focus()
    page.keyboard.press("ArrowRight")
    step = page.get_by_role("slider", name="Step")
    step.press("End")
    assert "preempted" in page.locator(".lanes").last.text_content()
    tabs.nth(3).focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("columnheader", name="r.json").wait_for()
    assert page.locator(".traffic .lines").count() >= 5
    asked = [address.partition("#")[0] for address in one.asked if not address.startswith("data:")]
    assert asked == [whole_file]
