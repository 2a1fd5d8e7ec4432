"""The tab *Traffic* in a browser: results that are dropped, compared, and in a file."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bench.test_report import findings
from page.conftest import OpenPage, apart
from page.test_page_browser import serious
from ridgeline.insight.bench.bench_export import findings_json
from ridgeline.insight.traffic.slo import parse_slo
from ridgeline.learn.page.data import TRAFFIC
from ridgeline.learn.page.html_document import render_standalone
from server.conftest import Running

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.page
HOSTILE = "<img src=x onerror=alert(1)>"
DROP = """(files) => {
  const held = new DataTransfer();
  for (const [name, text] of files) held.items.add(new File([text], name));
  for (const type of ["dragover", "drop"]) {
    const said = { bubbles: true, cancelable: true, dataTransfer: held };
    document.querySelector("main").dispatchEvent(new DragEvent(type, said));
  }
}"""


def result(rate: float) -> dict[str, Any]:
    """A run against a server that is known, with targets; its model is called what means harm."""

    def run() -> dict[str, Any]:
        found = findings_json(findings(parse_slo("ttft=50ms,tpot=10ms"), rate=rate))
        found["inputs"]["model"] = HOSTILE
        found["reasons"] = [f"{HOSTILE} is a reason"]
        return found

    return apart(run)


def cell(page: "Page", name: str) -> list[str]:
    row = page.locator(".traffic tbody tr").filter(has=page.get_by_role("rowheader", name=name, exact=True))
    return row.first.locator("td").all_text_contents()


def test_results_are_dropped_and_compared(open_page: OpenPage, tales_server: Running) -> None:
    """What is none is said, and what is shown stays."""
    page = open_page(f"{tales_server.url}/#traffic").page
    page.get_by_text(f"ridgeline bench serve {tales_server.url}").wait_for()
    page.evaluate(DROP, [["slow.json", json.dumps(result(5.0))]])
    page.get_by_role("columnheader", name="slow.json").wait_for()
    assert cell(page, "completed requests") == ["40 of 40"]
    assert cell(page, "TTFT p50") == ["40.0 ms"]
    page.evaluate(DROP, [[f"{HOSTILE}.json", json.dumps(result(20.0))]])
    page.get_by_role("columnheader", name=f"{HOSTILE}.json").wait_for()
    assert len(cell(page, "output tokens per second")) == 2
    assert page.locator("#content img").count() == 0
    charts = page.locator(".lines")
    assert charts.count() >= 6
    assert charts.first.locator(".series").count() == 2
    page.evaluate(DROP, [["half.json", '{"a": [']])
    page.get_by_role("alert").get_by_text("half.json is not valid JSON").wait_for()
    assert cell(page, "completed requests") == ["40 of 40", "40 of 40"]
    page.get_by_role("button", name="Remove").press("Enter")
    page.locator(".lines").first.wait_for(state="detached")


def test_a_file_shows_its_results(open_page: OpenPage, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    shown = [{"name": name, "result": result(rate)} for name, rate in (("a.json", 5.0), ("b.json", 20.0))]
    path.write_bytes(render_standalone({TRAFFIC: shown}))
    one = open_page(
        f"{path.as_uri()}#traffic", offline=True, color_scheme="dark", viewport={"width": 360, "height": 740}
    )
    page = one.page
    page.locator(".lines").first.wait_for()
    assert page.locator(".lines .as-table").count() == page.locator(".lines").count()
    page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it is no wider than the screen"
    assert serious(page) == []
    assert [address for address in one.asked if not address.startswith(("data:", "file:"))] == []
