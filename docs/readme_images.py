"""The images of README.md's section on plan, trace, simulate and the page: `python docs/readme_images.py`.

The roofline is drawn by roofline.py, the image at the top by first_screen.py. Screenshots need playwright and Debian's
chromium.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import sync_playwright

from ridgeline.util.document.svg_parts import on_dark

IMAGES = Path(__file__).with_name("images")
SIMULATE = "simulate llama-3-8b --device h100-sxm --rate 12 --profile spike:3:20s:8s --duration 60s --max-requests 128"
PAGES = {"plan": "#calculator&model=llama-3-8b&card=h100-sxm&users=32", "page": "#token"}
DRAWN, TRACED = 5000, 20_000  # milliseconds that a tab is given to draw itself, and to trace a token
SIZE = {"width": 1100, "height": 700}


def main() -> None:
    """Write the chart of a simulation and the screenshots of the page."""
    IMAGES.mkdir(exist_ok=True)
    chart = _chart("Requests over time")
    (IMAGES / "simulate.svg").write_text(chart, encoding="utf-8")
    (IMAGES / "simulate-dark.svg").write_text(on_dark(chart), encoding="utf-8")
    with _server() as address:
        _screenshots(address)


def _chart(name: str) -> str:
    """Return the chart of that name from the report of a simulation."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.html"
        command = [sys.executable, "-m", "ridgeline", *SIMULATE.split(), "--report", str(report)]
        subprocess.run(command, check=True, capture_output=True)
        charts = re.findall(r"<svg xmlns.*?</svg>", report.read_text(encoding="utf-8"), re.DOTALL)
    (found,) = (chart for chart in charts if f'aria-label="{name}"' in chart)
    return f"{found}\n"


@contextmanager
def _server() -> Iterator[str]:
    """Serve `tales`, and yield the address of its page."""
    command = [sys.executable, "-m", "ridgeline", "serve", "tales", "--port", "0", "--no-access-log"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield next(found[1] for line in process.stderr if (found := re.search(r"its page: (\S+)", line)))
        finally:
            process.terminate()


def _screenshots(address: str) -> None:
    """Save each tab of the page in light and in dark colours."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for name, tab in PAGES.items():
            for ending in ("", "-dark"):
                page = browser.new_page(viewport=SIZE, color_scheme="dark" if ending else "light")
                page.goto(address + tab)
                page.wait_for_load_state("networkidle")
                if name == "page":
                    page.get_by_role("button", name="Follow it").click()
                    page.wait_for_timeout(TRACED)
                page.wait_for_timeout(DRAWN)
                page.screenshot(path=IMAGES / f"{name}{ending}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    main()
