"""The page in a browser: how large it is, first paint, frames of a drag and of the engine's view, a listener's cost.

    python benchmarks/page.py [size paint drag engine listener] [--minutes 1] [--rounds 12]

It starts a server of `tales` with 10,000 KV pages, whose engine has one thread, and Debian's chromium without a screen,
which draws by the processor; all of them share its cores. benchmarks/page.md has what came of it.
"""

import argparse
import http.client
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from ridgeline.learn.page.html_document import page_sizes

CHROMIUM = "/usr/bin/chromium"
PAGES = 10_000
PAGE_SIZE, PAGE_BYTES = 8, 15_360
"""Positions of a KV page, and its bytes in `tales`; with sixteen positions 256 requests could not fill 10,000."""

FRAMES = """(() => {
  const kept = (window.frames_ = { between: [], work: [], updates: 0 });
  const after = new MessageChannel();
  let [before, began] = [0, 0];
  after.port1.onmessage = () => kept.work.push(performance.now() - began);
  const look = (now) => {
    if (before) kept.between.push(now - before);
    [before, began] = [now, now];
    after.port2.postMessage(0);
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""
"""Notes of each frame the time since the one before, and how long the main thread works for it: from its beginning,
handlers of pointers among it, until styles, layout and painting are done and the next message is heard."""

UPDATES = """(() => {
  const read = ReadableStreamDefaultReader.prototype.read;
  ReadableStreamDefaultReader.prototype.read = async function () {
    const found = await read.call(this);
    if (typeof found.value === "string" && window.frames_) frames_.updates += found.value.split("\\n\\n").length - 1;
    return found;
  };
})()"""
"""Counts events of streams."""


@dataclass
class Server:
    """A server of `tales`."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> Any:
        """JSON of a route."""
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def write(self, sequences: int, tokens: int) -> float:
        """Have so many answers of so many tokens written at once. Returns its seconds."""
        body = {
            "prompt": [[5 + i] * 16 for i in range(sequences)],
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
        }
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        start = time.perf_counter()
        urllib.request.urlopen(request).read()
        return time.perf_counter() - start


@contextmanager
def serving() -> Iterator[Server]:
    """In a process of its own, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ridgeline", "serve", "tales", "--port", str(port), "--threads", "1"]
    process = subprocess.Popen(
        [*command, "--page-size", str(PAGE_SIZE), "--kv-memory", f"{PAGES * PAGE_BYTES / 1e6}MB"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = Server(port)
    try:
        while True:
            try:
                server.get("/v1/models")
                break
            except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
                assert process.poll() is None, "the server did not start"
                time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait()


def spread(values: Sequence[float]) -> str:
    """`median (quartile to quartile)`."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def frames_in_words(page: Page) -> str:
    """What the frames of a page were since FRAMES."""
    kept = page.evaluate("frames_")
    parts = []
    for name in ("between", "work"):
        values = sorted(kept[name])
        at = [values[min(len(values) - 1, int(share * len(values)))] for share in (0.5, 0.95, 0.99)]
        parts.append(f"{name} p50 {at[0]:.1f}, p95 {at[1]:.1f}, p99 {at[2]:.1f}, most {values[-1]:.1f} ms")
    return f"{len(kept['between'])} frames: " + "; ".join(parts)


def size() -> None:
    """Bytes that a first visit fetches, tables left out."""
    sizes = page_sizes()
    print(f"size: {len(sizes)} files, {sum(sizes.values()):,} bytes compressed")


def paint(browser: Browser, server: Server, rounds: int) -> None:
    """First paint and first contentful paint, of a first visit and of a reload, by tab."""
    for tab in ("calculator", "chat", "engine"):
        firsts, contents, again = list[float](), list[float](), list[float]()
        for _ in range(rounds):
            context = browser.new_context(viewport={"width": 1280, "height": 800})
            page = context.new_page()
            for visit in range(2):
                page.goto(f"{server.url}/#tab={tab}") if visit == 0 else page.reload()
                found: list[float] = []
                while len(found) < 2:  # the page's policy lets nobody wait inside it
                    found = page.evaluate("performance.getEntriesByType('paint').map((each) => each.startTime)")
                if visit:
                    again.append(found[1])
                else:
                    firsts.append(found[0])
                    contents.append(found[1])
            context.close()
        print(
            f"paint, {tab}, {rounds} visits: first {spread(firsts)}, with content {spread(contents)}, "
            f"with content of a reload {spread(again)} ms"
        )


def drag(browser: Browser, server: Server) -> None:
    """The dot and the wall of the calculator, to and fro; moves come as fast as the browser takes them."""
    for width, height in ((1280, 800), (2560, 1440)):
        context = browser.new_context(viewport={"width": width, "height": height}, reduced_motion="reduce")
        page = context.new_page()
        page.goto(f"{server.url}/#tab=calculator&users=4")
        page.locator(".levers tbody tr").first.get_by_text("× ").first.wait_for()
        for name, handle in (("users", page.locator(".users .dot")), ("context", page.locator(".wall .grip"))):
            box = handle.bounding_box()
            assert box is not None
            x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
            page.mouse.move(x, y)
            page.mouse.down()
            page.evaluate(FRAMES)
            for step in range(400):
                page.mouse.move(x + 120 * abs((step / 100) % 2 - 1) - 120, y)
            print(f"drag, {name}, {width} pixels: {frames_in_words(page)}")
            page.mouse.up()
        context.close()


def engine(browser: Browser, server: Server, minutes: float) -> None:
    """The view of an engine of PAGES pages while requests come, twenty a second."""
    for width, height in ((1280, 800), (2560, 1440)):
        context = browser.new_context(viewport={"width": width, "height": height})
        page = context.new_page()
        page.add_init_script(UPDATES)
        page.goto(f"{server.url}/#tab=engine")
        page.get_by_role("slider", name="Arrivals a second").fill("20")
        page.wait_for_timeout(3000)
        page.evaluate(FRAMES)
        page.wait_for_timeout(minutes * 60_000)
        words = frames_in_words(page)
        updates = page.evaluate("frames_.updates") / (minutes * 60)
        limits, counters = (server.get("/v1/engine/state")[name] for name in ("limits", "counters"))
        heap = page.evaluate("performance.memory.usedJSHeapSize") / 2**20
        print(
            f"engine, {width} pixels, {limits['pages']:,} pages, {updates:.1f} updates a second, "
            f"{counters['running']} requests run, heap {heap:.0f} MiB: {words}"
        )
        page.get_by_role("button", name="Abort all").click()
        context.close()


@contextmanager
def listening(server: Server) -> Iterator[None]:
    """With one listener of the engine's events, who reads and throws away."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    connection.request("GET", "/v1/engine/events")
    answer = connection.getresponse()
    assert answer.status == 200

    def read() -> None:
        try:
            while answer.read1(1 << 16):
                pass
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield
    finally:
        assert connection.sock is None or connection.sock.shutdown(socket.SHUT_RDWR) is None
        thread.join()
        connection.close()


def listener(server: Server, rounds: int) -> None:
    """Steps of sixteen sequences with a listener over those without, in turn: 120 steps a run, ten pairs a round."""
    step: Callable[[], list[float]] = lambda: [  # noqa: E731
        each["seconds"] for each in server.get("/v1/engine/state")["recent"] if each["decodes"] == 16
    ]
    server.write(16, 120)
    pairs = list[tuple[float, float]]()
    medians: dict[bool, list[float]] = {False: [], True: []}
    for each in range(10 * rounds):
        took = {}
        for listens in (False, True) if each % 2 else (True, False):
            if listens:
                with listening(server):
                    took[listens] = server.write(16, 120)
                    medians[listens].append(statistics.median(step()))
            else:
                took[listens] = server.write(16, 120)
                medians[listens].append(statistics.median(step()))
        pairs.append((took[True] / took[False], medians[True][-1] / medians[False][-1]))
    whole, steps = zip(*pairs, strict=True)
    print(
        f"listener: median step {statistics.median(medians[False]) * 1e6:.0f} us without, "
        f"{statistics.median(medians[True]) * 1e6:.0f} us with; in turn, of {10 * rounds} pairs: the step's ratio "
        f"{spread_of_ratio(steps)}, that of the whole run {spread_of_ratio(whole)}"
    )


def spread_of_ratio(values: Sequence[float]) -> str:
    """The median, and between what it lies in 95 of 100 cases, by ranks (binomial, normal beyond its tables)."""
    ranked, half = sorted(values), 0.98 * len(values) ** 0.5
    low, high = int(max(0, len(ranked) / 2 - half)), int(min(len(ranked) - 1, len(ranked) / 2 + half))
    return f"{statistics.median(ranked):.4f} ({ranked[low]:.4f} to {ranked[high]:.4f})"


def main() -> None:
    """Print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ["size", "paint", "drag", "engine", "listener"]
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=[], metavar="PART")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long the engine's view is watched")
    parser.add_argument("--rounds", type=int, default=12)
    said = parser.parse_args()
    said.parts = said.parts or parts
    processor = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "?",
    )
    print(f"{processor}, {os.cpu_count()} cores")
    if "size" in said.parts:
        size()
    with serving() as server, sync_playwright() as playwright:
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        print(f"chromium {browser.version}, software rendering")
        if "paint" in said.parts:
            paint(browser, server, said.rounds)
        if "drag" in said.parts:
            drag(browser, server)
        if "engine" in said.parts:
            engine(browser, server, said.minutes)
        if "listener" in said.parts:
            listener(server, said.rounds)
        browser.close()


if __name__ == "__main__":
    main()
