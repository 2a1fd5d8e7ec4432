"""The thread in which models take turns: by priced seconds, none without work, all told when it ends."""

import threading
from collections.abc import Callable

import pytest

from ridgeline.server.model_loop import ModelLoop

A_WHILE = 10.0  # seconds, after which a test has failed


class Script:
    """Models with steps to run. clock: the priced seconds of all steps so far. log: whose they were, and when they
    ended. at: what comes after so many steps of all."""

    def __init__(self) -> None:
        self.models: dict[str, Model] = {}
        self.log: list[tuple[str, float]] = []
        self.clock = 0.0
        self.at: dict[int, Callable[[], None]] = {}
        self.idle = threading.Event()

    def model(self, name: str, seconds: float, steps: int) -> "Model":
        """One with so many steps, each of so many priced seconds."""
        self.models[name] = Model(self, name, seconds, steps)
        return self.models[name]

    def run(self) -> str:
        """All steps, and those that come of them; whose they were."""
        loop = ModelLoop(1)
        for model in self.models.values():
            loop.join(model)
        loop.call_soon(self._begin)
        assert self.idle.wait(A_WHILE)
        loop.close()
        assert [model.reason for model in self.models.values()] == ["closed"] * len(self.models)
        return "".join(name for name, _ in self.log)

    def _begin(self) -> None:
        for model in self.models.values():
            model.left = model.steps

    def ran(self, model: "Model") -> None:
        self.clock += model.seconds
        self.log.append((model.name, self.clock))
        self.at.pop(len(self.log), lambda: None)()
        if not any(each.busy for each in self.models.values()):
            self.idle.set()


class Model:
    def __init__(self, script: Script, name: str, seconds: float, steps: int) -> None:
        self.script, self.name, self.seconds, self.steps = script, name, seconds, steps
        self.left, self.reason = 0, ""

    @property
    def busy(self) -> bool:
        return self.left > 0

    def step(self) -> float:
        assert self.busy
        self.left -= 1
        self.script.ran(self)
        return self.seconds

    def on_loop_end(self, reason: str) -> None:
        self.reason = reason


@pytest.mark.parametrize(("slow", "quick"), [(1.0, 0.1), (0.3, 0.03), (0.05, 0.7)])
def test_a_picture_beside_a_stream_takes_at_most_twice_its_price(slow: float, quick: float) -> None:
    """Whichever steps are longer; the stream goes on, and waits for one step at a time."""
    script = Script()
    script.model("p", slow, 20)
    script.model("t", quick, 400)
    ran = script.run()
    ended = script.log[ran.rindex("p")][1]
    assert 20 * slow <= ended <= 2 * 20 * slow + quick
    beside = ran[: ran.rindex("p")]
    assert "pp" not in beside or slow < quick
    shared = beside.count("t") * quick
    assert shared == pytest.approx(20 * slow, abs=slow + quick)


def test_who_comes_late_is_owed_nothing() -> None:
    script = Script()
    script.model("a", 1.0, 120)
    late = script.model("b", 1.0, 0)

    def come() -> None:
        late.left = 10

    script.at[100] = come
    ran = script.run()
    assert ran[:100] == "a" * 100
    assert sorted((ran[100:102], ran[102:104])) in (["ab", "ab"], ["ba", "ba"])
    assert ran[100:120].count("b") == 10


def test_requests_one_after_the_other_get_no_more_than_their_share() -> None:
    """A client that asks anew as soon as it has been answered, beside one that draws."""
    script = Script()
    draws, writes = script.model("d", 0.25, 80), script.model("w", 1.0, 1)
    step = writes.step

    def again() -> float:
        seconds = step()
        if draws.busy:
            # It is idle for the length of one step of the other's.
            script.at[len(script.log) + 1] = lambda: setattr(writes, "left", 1)
        return seconds

    writes.step = again  # type: ignore[method-assign]
    ran = script.run()
    while_both = ran[: ran.rindex("d")]
    assert 10 <= while_both.count("w") <= 80 * 0.25 + 1


def test_an_error_ends_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    script = Script()
    healthy, broken = script.model("a", 1.0, 0), script.model("b", 1.0, 0)
    broken.left = 1

    def fail() -> None:
        raise KeyError("of a user")

    script.at[1] = fail
    loop = ModelLoop(1)
    loop.join(healthy)
    loop.join(broken)
    loop._thread.join(A_WHILE)
    assert (healthy.reason, broken.reason) == ("KeyError", "KeyError")
    loop.close()
