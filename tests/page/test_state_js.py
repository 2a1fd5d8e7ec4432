"""The page's state and the address that says it."""

import json
import random
from typing import Any

import pytest

from page.modules import Modules

FIELDS = """{
    one: {
        words: state.text("usual"), count: state.whole(null, -5, 5), share: state.number(0.5), on: state.flag(true),
    },
    "two words": {
        pick: state.oneOf(["a", "b&c", ""]), names: state.list(state.text()),
        sizes: state.list(state.number(0), [1, 2]),
    },
}"""
TEXTS = [
    "",
    "usual",
    "#&=?%+ /",
    "é 数 🜛",
    "a,b",
    "%",
    "%zz",
    "<script>",
    "1",
    "v=1&tab=two",
    "two words.pick",
    "\n\x00",
]


@pytest.fixture(scope="module")
def page() -> Modules:
    page = Modules("state.js")
    page.eval(
        f"(() => {{ const state = modules['state.js']; globalThis.state = state; globalThis.fields = {FIELDS}; }})()"
    )
    return page


def number() -> float:
    return random.choice([0.0, -1.5, 1e300, 5e-324, 0.1 + 0.2, random.gauss(0, 1e6), float(random.randint(-9, 9))])


def state() -> dict[str, Any]:
    return {
        "tab": random.choice([None, "one", "two words"]),
        "one": {
            "words": random.choice(TEXTS),
            "count": random.choice([None, *range(-5, 6)]),
            "share": number(),
            "on": random.random() < 0.5,
        },
        "two words": {
            "pick": random.choice(["a", "b&c", ""]),
            "names": random.choices(TEXTS, k=random.randint(0, 4)),
            "sizes": [number() for _ in range(random.randint(0, 4))],
        },
    }


def test_two_hundred_random_states_come_back_from_their_addresses(page: Modules) -> None:
    random.seed(6)
    for _ in range(200):
        wanted = state()
        address = page.eval(f"state.writeState({json.dumps(wanted)}, fields)")
        assert address.startswith("#v=1")
        assert address.isascii()
        assert not set(address[1:]) & set(' "<>#')
        assert page.eval(f"state.readState({json.dumps(address)}, fields)") == {"state": wanted, "newer": False}


def test_an_address_says_only_what_is_not_as_usual(page: Modules) -> None:
    assert page.eval("state.writeState(state.usualState(fields), fields)") == "#v=1"


def read(page: Modules, address: str) -> Any:
    """What is not as usual of the state that an address says."""
    found = page.eval(f"state.readState({json.dumps(address)}, fields)")
    usual = page.eval("state.usualState(fields)")
    said = {
        f"{tab}.{name}": value
        for tab in ("one", "two words")
        for name, value in found["state"][tab].items()
        if value != usual[tab][name]
    }
    return found["state"]["tab"], said, found["newer"]


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("", (None, {}, False)),
        ("#", (None, {}, False)),
        ("#one", ("one", {}, False)),
        ("#tab=one&words=x&count=3", ("one", {"one.words": "x", "one.count": 3}, False)),
        ("#count=3", (None, {"one.count": 3}, False)),
        ("#two%20words&pick=b%26c", ("two words", {"two words.pick": "b&c"}, False)),
        (
            "#v=0&tab=two%20words&one.count=2&pick=b%26c",
            ("two words", {"one.count": 2, "two words.pick": "b&c"}, False),
        ),
    ],
)
def test_addresses_of_version_0_open(page: Modules, address: str, wanted: Any) -> None:
    """Those that people type: a tab's name, and its fields by theirs."""
    assert read(page, address) == wanted


@pytest.mark.parametrize(
    "address",
    [
        "#v=1&one.count=9&one.share=NaN&one.on=yes&two words.pick=c&tab=three",
        "#v=1&one.count=1.5&one.share=&two words.sizes=1,x&one.nothing=1&nobody.x=1",
        "#v=1&one.words=%zz&%zz=1&=&&===&one=1&.=1",
        "#v=1&__proto__.words=x&constructor.name=x&one.__proto__=x&one.constructor=x&tab=__proto__&tab=constructor",
        "#v=1&one.words=" + "x" * 5000,
    ],
)
def test_what_no_field_would_say_is_passed_over(page: Modules, address: str) -> None:
    assert read(page, address) == (None, {}, False)


def test_an_address_of_a_newer_page_is_read_as_far_as_it_goes(page: Modules) -> None:
    assert read(page, "#v=2&tab=one&one.count=3&one.shape=round") == ("one", {"one.count": 3}, True)
