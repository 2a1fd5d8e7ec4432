"""The tab *Chat* in a browser: a conversation by keys, what its answers took, and texts that mean harm."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from page.conftest import OpenPage, saying, slow_steps
from server.conftest import Running

pytestmark = pytest.mark.page
HOSTILE = "</textarea><script>alert(1)</script><img src=x onerror=alert(1)>"
"""Short enough for the parrot, which remembers 256 positions."""


def say(page: Any, text: str, key: str = "Enter") -> None:
    page.get_by_role("textbox", name=re.compile("Type a message|A text to continue|Add text")).fill(text)
    page.keyboard.press(key)


@contextmanager
def answered(page: Any) -> Iterator[None]:
    """What is done inside has an answer when it is left, and that is shown with what its steps took."""
    with page.expect_response("**/v1/trace/*"):
        yield
    page.locator(".answer").last.get_by_text("steps, measured", exact=True).wait_for(state="attached")


def answers(page: Any) -> list[str]:
    """Their texts."""
    return page.locator(".answer > .words").all_text_contents()


def test_a_conversation_by_keys(open_page: OpenPage, tales_server: Running) -> None:
    """The same seed gives the same answer; each has what it took beside what was predicted."""
    page = open_page(f"{tales_server.url}/#v=1&tab=chat&chat.seed=7&chat.length=12").page
    with answered(page):
        say(page, "Once upon a time")
    (first,) = answers(page)
    assert first
    took = page.locator(".took summary")
    assert re.search(r"12 tokens · [\d.,]+ tok/s out · first in [\d.]+ [mµ]?s · cut off", took.text_content())
    assert re.search(r"steps [\d.]+ [mµ]?s, predicted [\d.]+ [mµ]?s", page.locator(".priced").text_content())
    took.click()
    rows = {row.locator("th").text_content(): row.text_content() for row in page.locator(".facts tr").all()}
    assert list(rows) == ["queue", "prompt", "response", "total", "steps, measured", "steps, predicted", "steps, floor"]
    assert "12 steps of the engine" in rows["steps, measured"]
    with answered(page):
        page.get_by_role("button", name="Again").press("Enter")
    assert answers(page) == [first]
    page.get_by_role("button", name="Edit").press("Enter")
    page.get_by_label("Edit your message").fill("The dragon")
    with answered(page):
        page.keyboard.press("Control+Enter")
    (other,) = answers(page)
    assert other != first
    with answered(page):
        say(page, "Then", "Control+Enter")
    assert page.locator(".question .words").all_text_contents() == ["The dragon", "Then"]
    page.get_by_role("button", name="New").press("Enter")
    page.get_by_role("heading", name="Chat with tales").wait_for()
    tales_server.idle()


def test_shift_and_enter_begin_a_line(open_page: OpenPage, tales_server: Running) -> None:
    page = open_page(f"{tales_server.url}/#chat").page
    area = page.get_by_label("Type a message")
    area.press("a")
    area.press("Shift+Enter")
    area.press("b")
    assert area.input_value() == "a\nb"
    assert page.locator(".answer").count() == 0
    area.fill("   ")
    area.press("Enter")
    assert page.get_by_role("button", name="Send").is_disabled()


def test_an_answer_is_stopped(open_page: OpenPage, tales_server: Running) -> None:
    """What was written stays, and the server gives up too."""
    page = open_page(f"{tales_server.url}/#v=1&tab=chat&chat.temperature=2").page
    with slow_steps(tales_server):
        say(page, "Once")
        page.get_by_role("button", name="Stop").wait_for()
        page.keyboard.press("Escape")
        page.get_by_role("button", name="Again").wait_for()
        page.get_by_text("stopped", exact=True).wait_for()
    tales_server.idle()


def test_sliders_change_the_chances_of_what_was_not_drawn(open_page: OpenPage, tales_server: Running) -> None:
    """The numbers are those of the model's own log-probabilities."""
    page = open_page(f"{tales_server.url}/#v=1&tab=chat&chat.seed=7&chat.length=4&chat.top_p=1").page
    with answered(page):
        say(page, "Once upon a time")
    table = page.get_by_role("table", name="Candidates for this token")

    def drawn() -> list[str]:
        return [row.locator("td").nth(2).text_content() for row in table.locator("tbody tr").all()]

    assert len(drawn()) >= 10
    page.get_by_label("Top-k").press("Home")
    for _ in range(2):
        page.get_by_label("Top-k").press("ArrowRight")
    assert [share == "–" for share in drawn()][:4] == [False, False, True, True]
    assert "exactly" in page.locator(".candidates figcaption").text_content()
    page.get_by_label("Temperature").press("Home")
    assert drawn()[:2] == ["100%", "–"]
    own = [row.locator("td").nth(1).text_content() for row in table.locator("tbody tr").all()]
    page.get_by_label("Token", exact=True).press("Home")
    page.get_by_text("1 of 4", exact=True).wait_for()
    body = {
        "prompt": "Once upon a time",
        "max_tokens": 1,
        "logprobs": 20,
    }
    told = tales_server.post("/v1/completions", body).json()["choices"][0]["logprobs"]["top_logprobs"][0]
    first = [row.locator("th").text_content() for row in table.locator("tbody tr").all()]
    assert first != own
    likeliest = max(told, key=told.__getitem__)
    assert first[0].removesuffix(" (written)") == likeliest.replace(" ", "␣").replace("\n", "↵")
    page.locator(".piece").nth(2).click()
    page.get_by_text("3 of 4", exact=True).wait_for()
    tales_server.idle()


@pytest.fixture(scope="module")
def parrot() -> Iterator[Running]:
    """A server whose model and whose model's name mean harm."""
    with saying(f"<think>hm {HOSTILE}</think>{HOSTILE}", name='<img src=x onerror="alert(1)">') as up:
        yield up


def test_hostile_texts_are_texts(open_page: OpenPage, parrot: Running) -> None:
    """From the model, its name, the user and the address; thoughts are folded."""
    one = open_page(f"{parrot.url}/#v=1&tab=chat&chat.model=%3Cscript%3Ealert(1)%3C/script%3E&chat.top_k=<b>")
    page = one.page
    assert "<img" in page.get_by_role("heading").text_content()
    with answered(page):
        say(page, HOSTILE)
    assert answers(page) == [HOSTILE]
    assert page.locator(".question .words").text_content() == HOSTILE
    thought = page.locator(".thought")
    assert not thought.locator(".words").is_visible()
    thought.locator("summary").click()
    assert thought.locator(".words").text_content().strip() == f"hm {HOSTILE}"
    assert page.locator("main script, main img, main b").count() == 0
    assert page.title().startswith("Chat · <img")
    parrot.idle()


def test_a_word_of_a_megabyte(open_page: OpenPage, parrot: Running) -> None:
    """Is shown whole, refused by the server in a line, and may be said otherwise."""
    one = open_page(f"{parrot.url}/#chat", quiet=False)
    page = one.page
    say(page, "w" * (1 << 20))
    alert = page.get_by_role("alert")
    alert.wait_for()
    assert "\n" not in alert.text_content()
    assert "1048576 characters" in alert.text_content()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert all("400" in line for line in one.said), one.said
    page.get_by_role("button", name="Edit").click()
    page.get_by_label("Edit your message").fill("short")
    with answered(page):
        page.keyboard.press("Control+Enter")
    assert answers(page) == [HOSTILE]
    assert page.get_by_role("alert").count() == 0


LISTEN = """(() => {
  window.heard = [];
  const region = document.querySelector(".talk > [role=status]");
  const hear = new MutationObserver(() => heard.push(region.textContent));
  hear.observe(region, { childList: true, characterData: true, subtree: true });
})()"""
"""Notes what a screen reader would be given to say."""


def test_who_listens_hears_the_answer_once(open_page: OpenPage, parrot: Running) -> None:
    """Not each of its pieces."""
    page = open_page(f"{parrot.url}/#chat").page
    page.get_by_label("Type a message").wait_for()
    page.evaluate(LISTEN)
    with answered(page):
        say(page, "Well?")
    assert page.evaluate("heard") == ["The model is generating.", f"The model wrote: {HOSTILE}"]


def test_a_model_without_a_template_continues_texts(open_page: OpenPage) -> None:
    with saying(" and then", template=None) as up:
        page = open_page(f"{up.url}/#chat").page
        page.get_by_role("heading", name="Continue a text with parrot").wait_for()
        with answered(page):
            say(page, "Once")
        with answered(page), page.expect_request("**/v1/completions") as asked:
            page.get_by_role("button", name="Continue").click()
        assert asked.value.post_data_json["prompt"] == "Once and then"
        assert answers(page) == ["and then", "and then"]


def test_an_error_is_a_line_and_the_conversation_goes_on(open_page: OpenPage) -> None:
    with saying("Yes.") as up:
        one = open_page(f"{up.url}/#chat", quiet=False)
        page = one.page
        page.get_by_label("Type a message").wait_for()
        page.route("**/v1/chat/completions", lambda route: route.abort())
        say(page, "Hello?")
        alert = page.get_by_role("alert")
        alert.wait_for()
        assert alert.text_content() == "the server cannot be reached or has closed the connection"
        page.unroute_all()
        broken = (
            'data: {"choices": [{"delta": {"content": "Ye"}}]}\n\ndata: {"error": {"message": "the engine\\ndied"}}\n\n'
        )
        page.route("**/v1/chat/completions", lambda route: route.fulfill(body=broken, content_type="text/event-stream"))
        page.get_by_role("button", name="Again").click()
        page.get_by_text("the engine died", exact=True).wait_for()
        assert answers(page) == ["Ye"]
        page.unroute_all()
        with answered(page):
            page.get_by_role("button", name="Again").click()
        assert answers(page) == ["Yes."]
