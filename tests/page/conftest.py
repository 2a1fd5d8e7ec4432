"""A browser, and servers for it to open."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from engine.test_transcript import TOKENIZER, speaking
from ridgeline.core.text import ChatTemplate, ChatTemplates
from ridgeline.engine.async_llm import AsyncLLM
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.setup import load_engine
from ridgeline.engine.text_processor import TextProcessor
from ridgeline.learn.page.recorder import INSPECTOR
from ridgeline.price.devices import load_device
from ridgeline.server.admission import RequestQueue
from ridgeline.server.http.page_data import PageData
from ridgeline.server.lifecycle import build_service
from ridgeline.server.model_loop import ModelLoop
from ridgeline.server.multi_model import LoopedEngine
from ridgeline.server.server_settings import ServerSettings
from ridgeline.server.telemetry.observability import observe_one_engine
from server.conftest import Running, running

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE = 60
"""Seconds that a test waits for what has to come: it is there within one, but machines that test are slow and busy."""

_Made = TypeVar("_Made")

CHROMIUM = Path("/usr/bin/chromium")
THINKING = (
    "{% for m in messages %}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% endfor %}"
)


# While playwright runs, its event loop does: asyncio.run fails in this thread, and so would tests of other folders.
@pytest.fixture(scope="package")
def browser() -> Iterator["Browser"]:
    """Debian's chromium, driven by playwright; skips where either is missing."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install playwright"
    )
    if not CHROMIUM.exists():
        pytest.skip(f"there is no {CHROMIUM}: apt install chromium")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as running_playwright:
        launched = running_playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield launched
        launched.close()


@dataclass
class Opened:
    """A page that is looked at, and what a browser said of it. said: console messages, errors, reports of the
    policy. asked: the addresses that it fetched."""

    page: "Page"
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


REPORT = """addEventListener("securitypolicyviolation", (event) => {
  console.log("policy", event.violatedDirective, event.blockedURI, event.sourceFile, event.lineNumber);
});"""
"""What a policy stopped, on the console."""

OpenPage = Callable[..., Opened]


@pytest.fixture
def open_page(browser: "Browser") -> Iterator[OpenPage]:
    """Opens an address in a fresh browser, of which nothing may be said by the end of the test unless it says so."""
    opened: list[Opened] = []
    with ExitStack() as stack:

        def open_one(address: str, *, quiet: bool = True, **context: Any) -> Opened:
            """context: as playwright has it. quiet: whether nothing may be said in the end."""
            fresh = browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **context})
            stack.callback(fresh.close)
            fresh.set_default_timeout(1000 * PATIENCE)
            one = Opened(fresh.new_page())
            one.page.on("console", lambda message: one.said.append(f"{message.type}: {message.text}"))
            one.page.on("pageerror", lambda error: one.said.append(f"error: {error}"))
            one.page.on("request", lambda request: one.asked.append(request.url))
            one.page.add_init_script(REPORT)
            one.page.goto(address)
            if quiet:
                opened.append(one)
            return one

        yield open_one
        for one in opened:
            assert one.said == []


def apart(make: Callable[[], _Made]) -> _Made:
    """What is made in another thread: in the tests' own a browser's event loop may run, beside which no other does."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(make).result()


def until(page: "Page", holds: Callable[[], bool]) -> None:
    """Wait for it. A page's policy lets nobody evaluate in it again and again, as playwright's own waiting does."""
    for _ in range(PATIENCE * 50):
        if holds():
            return
        page.wait_for_timeout(20)
    raise AssertionError("it did not come to that")


@contextmanager
def slow_steps(server: Running) -> Iterator[None]:
    """The server's engine takes a fifth of a second longer for a step inside: what comes of a few dozen steps is under
    way until then, however slow a browser is."""
    engine = server.service.llm.host._loaded.engine  # type: ignore[attr-defined]
    step, over = engine.step, threading.Event()
    engine.step = lambda: (over.wait(0.2), step())[1]
    try:
        yield
    finally:
        over.set()
        del engine.step


@contextmanager
def watched(llm: AsyncLLM, settings: ServerSettings, priced: Mapping[str, str] | None = None) -> Iterator[Running]:
    """A server of an engine with what observes it. priced: the models that its page has a price of, as PageData."""
    service = build_service(llm, RequestQueue(llm.info, settings), settings)
    watching = observe_one_engine(service, service.llm, settings, settings.models[0])
    data = PageData(priced or {}, settings)
    try:
        with running(service, settings, routes=[*watching.routes(), *data.routes()]) as up:
            yield up
    finally:
        llm.close()


@pytest.fixture(scope="package")
def tales_server() -> Iterator[Running]:
    """Of `tales`, with a price for its steps: leave it idle."""
    loop = ModelLoop(1)
    llm = AsyncLLM(LoopedEngine(load_engine("tales"), load_device("h100-sxm"), loop, INSPECTOR))
    with watched(llm, ServerSettings(models=("tales",))) as up:
        yield up


@contextmanager
def saying(*texts: str, template: str | None = THINKING, name: str = "parrot", **more: Any) -> Iterator[Running]:
    """A server whose model says these texts, one an answer, byte by byte. more: of its settings."""
    templates = None if template is None else ChatTemplates({"default": ChatTemplate(template, TOKENIZER)})
    texts_of = TextProcessor(TOKENIZER, templates, SamplingParams(temperature=0.0))
    llm = AsyncLLM(replace(speaking(*texts), text_processor=texts_of))
    with watched(llm, ServerSettings(models=(name,), **more)) as up:
        yield up
