"""What the tab makes of a recording: a line of time that is the step."""

from typing import Any

import pytest

from page.modules import Modules
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.price.interval_text import time_interval
from ridgeline.util.document.humanize import say_seconds

COLUMNS = ["measured", "gap", "expected", "bound", "weights", "read", "written", "activations", "flops", "outputs"]


def raw(gaps: list[float]) -> dict[str, Any]:
    """Four ops of two layers and what follows them, each of another length."""
    paths = ["embed", "layers.0.mlp.up", "layers.1.mlp.up", "norm"]
    entries = [[1e-3 * (at + 1), gaps[at], 2e-3, 1e-3, 4.0, 0.0, 0.0, 4.0, 16.0, [[1]]] for at in range(4)]
    overheads = {"batch": 5e-3, "between ops": sum(gaps) + 1e-3, "sampling": 2e-3}
    measured = 10e-3 + sum(overheads.values())
    return {
        "columns": COLUMNS,
        "ops": [{"path": path, "layer": layer} for path, layer in zip(paths, [None, 0, 1, None], strict=True)],
        "steps": [{"name": "decode", "measured": measured, "overheads": overheads, "entries": entries}],
    }


@pytest.fixture(scope="module")
def page() -> Modules:
    return Modules("token_recording.js")


def read(page: Modules, gaps: list[float]) -> Any:
    return page.call("token_recording.js", "readRecording", raw(gaps))["steps"][0]


def test_its_parts_follow_each_other_and_are_the_whole_step(page: Modules) -> None:
    step = read(page, [0.0, 1e-4, 2e-4, 0.0])
    end = 0.0
    for part in step["parts"]:
        assert part["begin"] == pytest.approx(end)
        end += part["seconds"]
    assert end == pytest.approx(step["measured"]) == pytest.approx(step["length"])
    assert [part.get("op") for part in step["parts"] if "op" in part] == [0, 1, 2, 3]
    assert [part["name"] for part in step["parts"]][:2] == ["batch", "embed"]
    assert step["parts"][-1]["name"] == "sampling"


def test_a_step_has_the_factors_of_its_interval(page: Modules) -> None:
    told = raw([0.0] * 4)
    assert page.call("token_recording.js", "readRecording", told)["steps"][0].get("factors") is None
    factors = {"prefill": [0.5, 2.0], "decode": [0.8, 1.5]}
    read = page.call("token_recording.js", "readRecording", told | {"predicted_intervals": factors})
    assert read["steps"][0]["factors"] == [0.8, 1.5]


@pytest.mark.parametrize(("positions", "decodes", "phase"), [(4, 4, "decode"), (9, 2, "mixed"), (512, 0, "prefill")])
def test_a_step_of_the_engine_has_a_phase(positions: int, decodes: int, phase: str) -> None:
    told = {"positions": positions, "decodes": decodes}
    assert Modules("predicted.js").call("predicted.js", "phaseOf", told) == phase


def test_a_predicted_time_has_its_interval_as_plan_has_it() -> None:
    page = Modules("predicted.js")
    interval = ErrorInterval("decode", "timed", 0.8, 1.5, 9, 3)
    said = page.call("predicted.js", "sayPredicted", 0.0123, [interval.low, interval.high])
    assert said == f"{say_seconds(0.0123)} {time_interval(interval, 0.0123)}"
    assert page.call("predicted.js", "sayPredicted", 0.0123) == "12.3 ms"
    assert page.call("predicted.js", "sayWithin", 0.0123, interval.around_time(0.0123)) == said
    assert page.call("predicted.js", "sayWithin", 0.0, [0.0, 0.0]) == "0 s"
    assert page.call("predicted.js", "sayWithin", 0.0123, None) == "12.3 ms"


def test_a_gap_that_hooks_made_negative_has_no_part(page: Modules) -> None:
    step = read(page, [0.0, -1e-5, 0.0, 0.0])
    assert all(part["seconds"] > 0 for part in step["parts"])


def test_lanes_are_layers_and_what_is_before_and_after(page: Modules) -> None:
    lanes = read(page, [0.0] * 4)["lanes"]
    assert [(lane["title"], lane["places"]) for lane in lanes] == [
        ("before", [0]),
        ("layer 0", [1]),
        ("layer 1", [2]),
        ("after", [3]),
    ]
    assert [lane["measured"] for lane in lanes] == pytest.approx([1e-3, 2e-3, 3e-3, 4e-3])


def test_an_op_has_its_sums(page: Modules) -> None:
    op = read(page, [0.0] * 4)["ops"][1]
    assert (op["name"], op["nbytes"], op["intensity"], op["reached"]) == ("mlp.up", 8.0, 2.0, 0.5)


def test_a_stretch_around_an_op_stays_inside_the_step(page: Modules) -> None:
    step = read(page, [0.0] * 4)
    for place in range(4):
        for zoom in (1, 4, 64):
            begin, end = page.call("token_recording.js", "windowAround", step, place, zoom)
            assert end - begin == pytest.approx(step["length"] / zoom)
            assert begin >= 0
            assert end <= step["length"] + 1e-12
            part = next(part for part in step["parts"] if part.get("op") == place)
            assert begin <= part["begin"] + part["seconds"] / 2 <= end


@pytest.mark.parametrize(("seconds", "times"), [(1.4e-3, 1000), (7e-3, 1000), (9e-4, 10000), (3.0, 1)])
def test_a_step_is_played_in_one_to_ten_seconds(page: Modules, seconds: float, times: int) -> None:
    assert page.call("token_recording.js", "slowness", seconds) == times
