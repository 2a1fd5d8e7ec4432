"""The calculator's layout: nothing covers anything else, whatever the model, the card and the window."""

import json
from typing import TYPE_CHECKING

import pytest

from page.conftest import OpenPage
from ridgeline.learn.page.data import CARDS, MODELS, device_data, models_data, table_data, table_name
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.model_tables import StoredModel
from ridgeline.price.devices import load_device

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.page

STILL = {"reduced_motion": "reduce"}
CASES = {
    320: "epyc-9654",
    768: "rtx-4060-ti-16gb",
    1280: "l4",
    2560: "h100-sxm",
}
"""A card for each width of a window, small ones for most."""

MEASURE = """() => {
  const found = [];
  const box = (each) => each.getBoundingClientRect();
  const shown = (each) => box(each).width > 0 && box(each).height > 0 && getComputedStyle(each).visibility !== "hidden";
  const all = (query) => [...document.querySelectorAll(query)].filter(shown);
  const words = (each) => `${each.tagName} ${each.getAttribute("class") ?? ""} "${each.textContent.slice(0, 30)}"`;
  const apart = (parts) => parts.forEach((one, at) => parts.slice(at + 1).forEach((other) => {
    const [a, b] = [box(one), box(other)];
    const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (wide > 1 && high > 1) found.push(`${words(one)} covers ${words(other)}`);
  }));
  const charts = ".roofline > svg, .roofline figcaption, .tower .sides > svg, .sums, .tower > .trouble";
  apart(all(`.bar, .sentence, ${charts}, .beneath, div.under, .folklore`));
  apart(all(".chips > *"));
  apart(all(".under > section"));
  for (const svg of all(".calculator figure svg")) {
    const frame = box(svg);
    for (const part of svg.querySelectorAll("rect:not(.reach), path, circle:not(.reach), text")) {
      if (!shown(part) || part.closest(".hint")) continue;
      const own = box(part);
      const beside = Math.max(frame.left - own.left, own.right - frame.right);
      const out = Math.max(beside, frame.top - own.top, own.bottom - frame.bottom);
      if (out > 2) found.push(`${words(part)} leaves its chart by ${out.toFixed(0)}`);
    }
    apart([...svg.querySelectorAll("text:not([transform])")].filter((each) => shown(each) && !each.closest(".hint")));
  }
  const wider = document.documentElement.scrollWidth - innerWidth;
  if (wider > 0) found.push(`the page is wider than its window by ${wider}`);
  return found;
}"""


MODELS_SHOWN = (
    "kimi-k2", "deepseek-v3", "llama-3.1-405b", "llama-4-maverick-17b-128e", "qwen3-next-80b-a3b", "llama-3-8b",
    "gemma-3-1b", "whisper-base", "gpt2",
)  # fmt: skip
"""The largest, those of long names, of other memories, of encoders, and small ones."""


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page with models as they are released."""
    ways = {name: [StoredModel()] for name in MODELS_SHOWN}
    blocks = {table_name(name, StoredModel()): table_data(name, name, StoredModel()) for name in MODELS_SHOWN}
    path = tmp_path_factory.mktemp("layout") / "page.html"
    path.write_bytes(render_standalone({MODELS: models_data(ways), CARDS: device_data(), **blocks}))
    return path.as_uri()


def show(page: "Page", model: str, card: str, users: int) -> None:
    """Go there and wait for the last of its panels, or for what is in the way of them."""
    page.evaluate("(hash) => { location.hash = hash; }", f"#model={model}&card={card}&users={users}")
    command = page.locator(".take code").filter(has_text=f"plan {model} --device {card} ")
    command.or_(page.locator("main > section > .trouble")).first.wait_for()


@pytest.mark.parametrize(("width", "card"), CASES.items())
def test_nothing_covers_anything(open_page: OpenPage, catalogue: str, width: int, card: str) -> None:
    """Among the models are some of fifty times the card's memory."""
    page = open_page(catalogue, viewport={"width": width, "height": 900}, **STILL).page
    page.locator(".sentence").wait_for()
    faults = {}
    for place, model in enumerate(MODELS_SHOWN):
        show(page, model, card, 1 + 31 * (place % 2))
        if found := page.evaluate(MEASURE):
            faults[model] = found
    assert faults == {}, json.dumps(faults, indent=1)


def test_a_model_that_is_far_too_large_ends_at_the_edge(open_page: OpenPage, catalogue: str) -> None:
    """And not over the headline; the sums beside it are whole."""
    page = open_page(f"{catalogue}#model=kimi-k2&card=l4", **STILL).page
    page.locator(".tower .torn").wait_for()
    chart = page.locator(".tower svg").bounding_box()
    assert chart is not None
    for part in page.locator(".tower svg rect.part").all():
        box = part.bounding_box()
        assert box is not None
        assert box["y"] >= chart["y"]
        assert box["y"] + box["height"] <= chart["y"] + chart["height"]
    weights = float((page.locator(".sums .weights td").text_content() or "").strip("− GiB").replace(",", ""))
    assert weights * 2**30 > 40 * load_device("l4").memory
    card = page.get_by_role("combobox", name="card", exact=True)
    card.fill("h200-sxm")
    card.press("Enter")
    page.locator(".sums caption").get_by_text("h200-sxm").wait_for()
    assert page.locator(".tower .torn").count() == 1
