"""A config.json given to the page: dropped or chosen, priced by the server, a stranger's text throughout."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from page.conftest import OpenPage
from page.modules import Modules
from ridgeline.core.checkpoint.catalogue import CATALOGUE
from ridgeline.learn.page.data import CARDS, MODELS, device_data, models_data, table_data, table_name
from ridgeline.learn.page.html_document import render_standalone
from ridgeline.learn.page.model_tables import StoredModel
from server.conftest import Running

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.page

STILL = {"reduced_motion": "reduce"}
CONFIG = (CATALOGUE / "qwen3-0.6b.json").read_bytes()
HOSTILE = "<img src=x onerror=alert(1)>"
DROP = """([name, text]) => {
  const held = new DataTransfer();
  held.items.add(new File([text], name));
  for (const type of ["dragover", "drop"]) {
    document.querySelector(".chips").dispatchEvent(
      new DragEvent(type, { bubbles: true, cancelable: true, dataTransfer: held }));
  }
}"""


def give(page: "Page", name: str, data: bytes) -> None:
    """By the button."""
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Open a config.json").press("Enter")
    chooser.value.set_files({"name": name, "mimeType": "application/json", "buffer": data})


def test_a_config_becomes_the_model_of_the_page(open_page: OpenPage, tales_server: Running) -> None:
    """Dropped or chosen, stored as is asked; the command takes the file. What is none is said, and the page goes on."""
    opened = open_page(f"{tales_server.url}/#tab=calculator&card=h100-sxm", **STILL)
    page = opened.page
    page.locator(".sentence").wait_for()
    page.evaluate(DROP, [f"{HOSTILE}.json", CONFIG.decode()])
    page.locator(".sentence strong").get_by_text(HOSTILE, exact=True).wait_for()
    assert page.get_by_role("combobox", name="model").input_value() == f"./{HOSTILE}"
    page.get_by_label("weights").select_option("fp8")
    page.locator(".take code").get_by_text("ridgeline plan config.json --device h100-sxm").get_by_text("fp8").wait_for()
    give(page, "config.json", json.dumps({**json.loads(CONFIG), "_name_or_path": "somebody/theirs"}).encode())
    page.locator(".sentence strong").get_by_text("theirs", exact=True).wait_for()
    trouble = page.locator(".chips").get_by_role("alert")
    give(page, "large.json", b" " * (5 << 20))
    trouble.get_by_text("large.json has more than 1048576 bytes").wait_for()
    give(page, "half.json", b'{"a": [')
    trouble.get_by_text("half.json is not valid JSON").wait_for()
    give(page, "deep.json", b'{"a":' * 300 + b"1" + b"}" * 300)
    page.get_by_role("alert").get_by_text("nested deeper than 64").wait_for()
    opened.said[:] = [each for each in opened.said if "400 (Bad Request)" not in each]


def test_one_that_is_gone_is_asked_for_again(open_page: OpenPage, tales_server: Running) -> None:
    page = open_page(f"{tales_server.url}/#tab=calculator&model=./theirs", **STILL).page
    page.get_by_role("alert").get_by_text("open its config.json again").wait_for()
    give(page, "theirs.json", CONFIG)
    page.locator(".sentence strong").get_by_text("theirs", exact=True).wait_for()


def test_a_file_says_how_to_export(open_page: OpenPage, tmp_path: Path) -> None:
    table = table_data("gpt2", "gpt2", StoredModel())
    blocks = {
        MODELS: models_data({"gpt2": [StoredModel()]}),
        CARDS: device_data(),
        table_name("gpt2", StoredModel()): table,
    }
    path = tmp_path / "page.html"
    path.write_bytes(render_standalone(blocks))
    page = open_page(f"{path.as_uri()}#model=gpt2&input=100&output=100", **STILL).page
    page.locator(".sentence").wait_for()
    page.evaluate(DROP, ["config.json", CONFIG.decode()])
    page.get_by_role("alert").get_by_text("ridgeline page export --out page.html --models PATH").wait_for()


@pytest.mark.parametrize(
    ("file", "config", "name"),
    [
        ("my-model.json", {"_name_or_path": "other"}, "my-model"),
        ("config.json", {"_name_or_path": "somebody/their-model/"}, "their-model"),
        ("config (1).json", {"_name_or_path": "", "model_type": "llama"}, "llama"),
        ("config.json", [], "config"),
        ("config.json", {"_name_or_path": {"a": 1}, "model_type": 7}, "config"),
        (".json", None, "config"),
        ("a\n b.json", {}, "a b"),
    ],
)
def test_what_it_is_called(file: str, config: Any, name: str) -> None:
    assert Modules("calc_case.js").call("calc_case.js", "modelName", file, config) == name
