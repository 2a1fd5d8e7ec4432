"""The tab *Pictures* in a browser: what a server draws, stopped and looked at, and what was recorded."""

import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from page.conftest import OpenPage, until
from page.modules import Modules
from page.test_page_browser import serious
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.recorded_images import IMAGES, record_images
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.price.devices import load_device
from ridgeline.server.server_settings import ServerSettings
from server.pictures import Drawing, Held, drawing

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.page
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def drawer() -> Iterator[Drawing]:
    """A server of `digits`."""
    with drawing({"digits": load_pipeline("digits")}, ServerSettings(models=("digits",))) as up:
        yield up


def pixels(page: "Page") -> Image.Image:
    """The picture that is shown."""
    source = page.locator(".picture img").get_attribute("src") or ""
    assert source.startswith("data:image/png;base64,")
    return Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))


def test_a_picture_is_drawn_as_the_server_draws_it(open_page: OpenPage, drawer: Drawing) -> None:
    """The prompt, which means harm, is text; previews came, stages are done, the address says how it was asked."""
    one = open_page(f"{drawer.url}/#v=1&tab=pictures&pictures.seed=4&pictures.steps=6")
    page = one.page
    page.get_by_label("Prompt").fill(HOSTILE)
    page.get_by_role("button", name="Draw").press("Enter")
    page.get_by_text("Seed 4", exact=True).wait_for()
    shown = pixels(page)
    fields = {"prompt": HOSTILE, "seed": 4, "num_inference_steps": 6}
    wanted = drawer.draw(**fields)["data"][0]["b64_json"]
    assert shown.tobytes() == Image.open(io.BytesIO(base64.b64decode(wanted))).tobytes()
    assert page.locator(".previews img").count() == 3
    assert page.locator(".stages progress").evaluate_all("all => all.map((each) => each.value)") == [1, 1, 1]
    assert page.locator(".stages li").nth(1).get_by_text("6 of 6").count() == 1
    assert page.locator(".facts tr").count() == 2
    assert page.locator("#content script, #content img[src=x]").count() == 0
    page.get_by_label("Guidance").press("Home")
    assert "pictures.guidance=0" in page.url
    assert serious(page) == []
    drawer.idle()


def test_a_picture_is_stopped(open_page: OpenPage, drawer: Drawing) -> None:
    """By a key; the server gives up between two steps."""
    page = open_page(f"{drawer.url}/#pictures").page
    page.get_by_label("Prompt").fill("a handwritten one")
    with Held(drawer.service.engine.pipelines["digits"]):
        page.get_by_role("button", name="Draw").press("Enter")
        page.get_by_role("button", name="Stop").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("Stopped.", exact=True).wait_for()
        page.get_by_role("button", name="Draw").wait_for()
    drawer.idle()


def test_a_clip_is_drawn_and_fetched(open_page: OpenPage) -> None:
    """A job: looked at until it is there, then its file; one that is stopped is removed."""
    with drawing({"digits-video": load_pipeline("digits-video")}, ServerSettings(models=("digits-video",))) as up:
        page = open_page(f"{up.url}/#v=1&tab=pictures&pictures.seed=1&pictures.steps=2").page
        page.get_by_label("Prompt").fill("a seven")
        page.get_by_role("button", name="Draw").press("Enter")
        page.locator(".picture [src^='blob:']").wait_for()
        page.get_by_text("Seed 1", exact=True).wait_for()
        (job,) = up.get("/v1/videos").json()["data"]
        assert (job["status"], job["seed"], job["num_inference_steps"]) == ("completed", 1, 2)
        with Held(up.service.engine.pipelines["digits-video"]):
            page.get_by_role("button", name="Draw").press("Enter")
            page.get_by_role("button", name="Stop").press("Enter")
            page.get_by_text("Stopped.", exact=True).wait_for()
        until(page, lambda: [each["id"] for each in up.get("/v1/videos").json()["data"]] == [job["id"]])


@pytest.fixture(scope="module")
def recorded_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "page.html"
    path.write_bytes(render_standalone({IMAGES: record_images(load_device("h100-sxm"))}))
    return path


def test_a_recorded_picture_plays(open_page: OpenPage, recorded_file: Path) -> None:
    one = open_page(f"{recorded_file.as_uri()}#pictures", offline=True)
    page = one.page
    at = page.get_by_role("slider", name="Event")
    until(page, lambda: int(at.input_value()) > 1)  # it plays by itself
    at.press("End")
    page.get_by_role("button", name="Again").wait_for()
    assert page.locator(".previews li").count() == 11
    assert page.locator(".picture img").get_attribute("alt") == "a handwritten seven"
    at.press("Home")
    page.locator(".drawing .blank").wait_for()
    assert [address for address in one.asked if not address.startswith(("data:", "file:"))] == []


def test_a_recorded_picture_keeps_nobody_out(open_page: OpenPage, recorded_file: Path) -> None:
    page = open_page(
        f"{recorded_file.as_uri()}#v=1&tab=pictures&pictures.at=15",
        color_scheme="dark",
        viewport={"width": 360, "height": 740},
        reduced_motion="reduce",
    ).page
    page.get_by_role("img", name="Predicted image after step 7: a handwritten seven").wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is no wider than the screen"
    assert serious(page) == []


def drawn(events: list[dict[str, Any]], then: str) -> Any:
    made = Modules("drawing.js")
    code = "modules['drawing.js']"
    return made.eval(
        f"((found) => {then})({json.dumps(events)}.reduce({code}.after, {code}.begun()))".replace("$", code)
    )


def test_what_is_left_follows_the_price_and_then_its_own_pace() -> None:
    def told(step: int, seconds: float, predicted: float, left: float) -> dict[str, Any]:
        times = {"inference_time_s": seconds, "predicted_time_s": predicted, "predicted_time_left_s": left}
        return {"type": "image_generation.progress", "stage": "denoise", "step": step, "steps": 4} | times

    one, two = told(1, 3.0, 1.0, 3.0), told(2, 6.0, 2.0, 2.0)
    assert drawn([one], "$.remaining(found)") == 3.0
    assert drawn([one, two], "$.remaining(found)") == 6.0
    assert drawn([], "$.remaining(found)") is None
    assert drawn([one, two], "$.stagesOf(found)") == [["encode", 1], ["denoise", 0.5], ["decode", 0]]
    assert drawn([one, {"type": "of a later server"}], "found.step") == 1
