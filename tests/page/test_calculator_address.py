"""The calculator's state and its address: what it was, it is again."""

import json
import random
from typing import Any

import pytest

from page.modules import Modules

TEXTS = ["", "a100-sxm-80gb", "./<img src=x>", "a&b=c#d%zz", "數 é 🜛", "%", ",", "pin", "v=1&tab=calculator"]


def case() -> dict[str, Any]:
    """What is asked, of which figures follow."""
    return {
        "model": random.choice(TEXTS),
        "card": random.choice(TEXTS),
        "cards": random.randint(1, 8),
        "weights": random.choice(["", "fp8", "int4-g64", "a & b"]),
        "kv": random.choice(["", "nvfp4", "="]),
        "input": random.choice([1, 1500, 2**24, random.randint(1, 2**24)]),
        "output": random.choice([1, 1000, 2**24, random.randint(1, 2**24)]),
        "users": random.choice([1, 2048, random.randint(1, 2048)]),
        "ttft": random.choice([0, 1, 1000, 10 ** random.uniform(-12, 3), 5e-324]),
        "tpot": random.choice([0, 0.05, 0.1 + 0.2, 10 ** random.uniform(-12, 3)]),
        "use": random.choice([0.3, 0.9, 1, random.uniform(0.3, 1)]),
    }


@pytest.fixture(scope="module")
def page() -> Modules:
    """The tab, with nothing to draw with."""
    page = Modules()
    page.stand_in("dom.js")
    page.read("state.js")
    page.read("tab_calculator.js")
    page.eval("(() => { globalThis.fields = { calculator: modules['tab_calculator.js'].fields }; })()")
    return page


def test_two_hundred_random_states_come_back_from_their_addresses(page: Modules) -> None:
    """Of every field there is, the case that is compared with too."""
    random.seed(14)
    named = set(page.eval("Object.keys(fields.calculator)"))
    everything = {**case(), "rival": "", "pin": None}
    assert named <= set(everything), "a field that this test does not know"
    for _ in range(200):
        own = {**case(), "rival": random.choice(TEXTS), "pin": random.choice([None, case()])}
        state = {"tab": "calculator", "calculator": {name: value for name, value in own.items() if name in named}}
        address = page.eval(f"modules['state.js'].writeState({json.dumps(state)}, fields)")
        found = page.eval(f"modules['state.js'].readState({json.dumps(address)}, fields)")
        assert found == {"state": state, "newer": False}


@pytest.mark.parametrize(
    ("address", "wanted"),
    [
        ("#users=32", {"users": 32}),
        ("#calculator&model=gpt2&ttft=0", {"model": "gpt2", "ttft": 0}),
        ("#v=0&tab=calculator&calculator.use=0.5&cards=2", {"use": 0.5, "cards": 2}),
        ("#v=1&calculator.users=0&calculator.use=2&calculator.cards=9&calculator.input=1e99", {}),
    ],
)
def test_addresses_that_are_typed(page: Modules, address: str, wanted: dict[str, Any]) -> None:
    """Of version 0 too; what no control could say is passed over."""
    found = page.eval(f"modules['state.js'].readState({json.dumps(address)}, fields).state.calculator")
    usual = page.eval("modules['state.js'].usualState(fields).calculator")
    assert {name: value for name, value in found.items() if value != usual[name]} == wanted
