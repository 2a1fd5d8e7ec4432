"""What the calculator computes beside `plan.js`: the command that says the same, contexts, names that are typed."""

import contextlib
import io
import json
import random
import shlex
import sys
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import pytest

from page.pages import NATIVE, Page
from ridgeline.cli.main import main
from ridgeline.core.checkpoint.source import open_source
from ridgeline.core.ops.number_formats import WEIGHT_FORMATS
from ridgeline.learn.page.device_tables import build_device_tables
from ridgeline.learn.page.model_tables import StoredModel, model_table
from ridgeline.price.devices import catalogue_devices, load_device
from ridgeline.price.engine_profile import default_engine
from ridgeline.price.error_interval import LEVELS, intervals_for
from ridgeline.price.interval_text import cost_interval, rate_interval, time_interval
from ridgeline.price.plan.scenario import Deployment, ModelCache
from support.class_models import ARCHITECTURE, FROM, register_class
from support.planned import TINY

USUAL = {
    "card": "a100-sxm-80gb", "cards": 1, "weights": "", "kv": "",
    "input": 1500, "output": 1000, "users": 1, "ttft": 1, "tpot": 0.05, "use": 0.9,
}  # fmt: skip


@lru_cache
def calculator(weights: str | None = None, devices: int = 1) -> Page:
    """The modules, with `setting(state)` of Llama-3-8B stored so."""
    page = Page("calc_case.js")
    page.keep("cards", build_device_tables(map(load_device, ("a100-sxm-80gb", "h100-sxm", "rtx-4090"))))
    page.keep("written", model_table(open_source("llama-3-8b"), StoredModel(weights, None, devices)))
    page.run("""
        const {openTable, openCards} = modules["price.js"];
        const {settingOf, commandOf, withContext, contextFor, reachable, originOf} = modules["calc_case.js"];
        const {decodeOf} = modules["plan.js"];
        const all = openCards(kept.cards), table = openTable(kept.written);
        const setting = (state) => settingOf(table, all, state);""")
    return page


def planned(state: dict[str, Any], page: Page, monkeypatch: pytest.MonkeyPatch, said: IO[str]) -> Any:
    """What the command that a page offers prints."""
    command = page.eval(f"commandOf({json.dumps(state)}, table)")
    monkeypatch.setattr(sys, "argv", [*shlex.split(command), "--json"])
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main()
    said.seek(0)
    return json.load(said)


@pytest.mark.parametrize(
    ("changed", "weights", "devices"),
    [
        pytest.param({"users": 32}, None, 1, marks=pytest.mark.slow),
        ({"card": "h100-sxm", "weights": "fp8", "cards": 2, "input": 77, "ttft": 0, "use": 0.85}, "fp8", 2),
        pytest.param(
            {"card": "rtx-4090", "input": 1999, "output": 1, "tpot": 0.0123, "ttft": 0}, None, 1, marks=pytest.mark.slow
        ),
    ],
)
def test_the_command_says_what_the_page_does(
    changed: dict[str, Any], weights: str | None, devices: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, page = USUAL | changed, calculator(weights, devices)
    found = page.eval(
        f"""(({{decode, serving, context}}) => ({{
            seconds: decode.seconds, intensity: decode.intensity, ridge: decode.ridge, idle: decode.idle, context,
            users: serving.capacity.users, limit: serving.capacity.limit, left: serving.memory.left,
            held: serving.memory.users}}))(setting({json.dumps(state)}))"""
    )
    said = planned(state, page, monkeypatch, io.StringIO())
    assert (found["users"], found["limit"]) == (said["answer"]["users"], said["answer"]["users_limited_by"])
    assert (found["held"], found["left"]) == (said["memory"]["users"], said["memory"]["left"])
    assert found["context"] == said["workload"]["context"]
    assert found["seconds"] == pytest.approx(said["decode"]["seconds"], rel=1e-9)
    for name in ("intensity", "ridge", "idle"):
        assert found[name] == pytest.approx(said["decode"][name], rel=1e-9), name


def test_the_export_has_the_figures_of_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare every exported figure with the same key of `plan --json`, where a time has three values."""
    page = calculator()
    page.read("calc_figures.js")
    state = USUAL | {"users": 32}
    taken = page.eval(f"modules['calc_figures.js'].figuresTaken(setting({json.dumps(state)}))")
    said = planned(state, page, monkeypatch, io.StringIO())
    compared = [key for key in taken if key.split(".")[0] in ("memory", "answer", "load", "trust")]
    assert {"load.asked.ttft", "load.asked.ttft_marching", "trust.intervals.load.high"} < set(compared)
    for key in compared:
        value = said
        for name in key.split("."):
            value = value[name]
        value = value["expected"] if isinstance(value, dict) else value
        assert taken[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key


def test_a_context_that_is_asked_for_is_the_workloads() -> None:
    rng = random.Random(0)
    cases = [
        [{"input": rng.randint(1, 4000), "output": rng.randint(1, 2000)}, rng.randint(2, 4000)] for _ in range(200)
    ] + [[{"input": 1, "output": 1}, 2], [{"input": 1500, "output": 1000}, 2000]]
    made = calculator().eval(f"{json.dumps(cases)}.map(([state, context]) => withContext(state, context))")
    for (_, context), each in zip(cases, made, strict=True):
        assert each["input"] >= 1
        assert each["output"] >= 1
        assert each["input"] + max(1, each["output"] // 2) == context
    assert made[-1] == {"input": 1500, "output": 1000}


def test_the_wall_is_where_no_batch_gets_past() -> None:
    """61 FLOP a byte at 2,000 tokens, and the way back from there."""
    page = calculator()
    wall, most, back = page.eval(
        f"""(({{asked, wall}}) => [wall, decodeOf(asked, 10000000, 2000).intensity, contextFor(asked, wall, 8191)])
        (setting({json.dumps(USUAL)}))"""
    )
    assert wall == pytest.approx(61.2, abs=0.3)
    assert most == pytest.approx(wall, rel=1e-4)
    assert most < wall
    assert back == 2000


def test_intervals_are_pythons_for_every_device_format_and_kind() -> None:
    """Compare the texts of times, rates and costs of all sizes; one of the devices is calibrated."""
    devices = [*catalogue_devices(), NATIVE]
    formats = ["fp32", "bf16", *(each.name for each in WEIGHT_FORMATS), "q4_k_m", "fp8+head"]
    page, amounts = Page("price.js", "interval_formulas.js"), (0.0, 3.21e-7, 0.0123, 0.999, 41.7, 987.6, 12345.6)
    page.keep("cards", build_device_tables(devices))
    page.run("""
        const {openCards} = modules["price.js"], all = openCards(kept.cards);
        const {known_of, time_interval, rate_interval, cost_interval} = modules["interval_formulas.js"];
        const texts = (card, weights, kind, amounts) => {
          const interval = all.intervals[kind][known_of(card, all.engines[card.engine], weights)];
          const say = (each) => [time_interval, rate_interval, cost_interval].map((text) => text(interval, each));
          return [all.levels[interval.known], ...amounts.flatMap(say)];
        };""")
    levels = set()
    for device in devices:
        for weights in formats:
            wanted = {}
            for kind, interval in intervals_for(device, default_engine(device), weights).items():
                said = [
                    say(interval, each) for each in amounts for say in (time_interval, rate_interval, cost_interval)
                ]
                wanted[kind] = [LEVELS[interval.known], *said]
                levels.add(interval.known)
            given = f"all.cards[{json.dumps(device.name)}], {json.dumps(weights)}, kind, {json.dumps(amounts)}"
            found = page.eval(f"Object.fromEntries({json.dumps(list(wanted))}.map((kind) => [kind, texts({given})]))")
            assert found == wanted, (device.name, weights)
    assert levels == set(LEVELS)


def test_the_intervals_of_a_class_are_pythons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Compare them on a device with kernel times, one with those of its family, and a calibrated one."""
    register_class(monkeypatch)
    config = {**TINY, "architectures": [ARCHITECTURE]}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    source, devices = open_source(str(tmp_path)), [*map(load_device, ("h100-sxm", "rtx-4090")), NATIVE]
    page = Page("calc_case.js")
    page.keep("cards", build_device_tables(devices))
    page.keep("written", model_table(source, StoredModel()))
    page.run("""
        const {openTable, openCards} = modules["price.js"], {settingOf} = modules["calc_case.js"];
        const all = openCards(kept.cards), table = openTable(kept.written);""")
    shown = {"low", "high", "known", "rows", "sources", "traced_from"}
    for device in devices:
        case = ModelCache(source.config).scenario(Deployment(device, engine=default_engine(device)))
        wanted = {kind: {name: getattr(each, name) for name in shown} for kind, each in case.intervals.items()}
        state = json.dumps(USUAL | {"card": device.name})
        found = page.eval(f"settingOf(table, all, {state}).intervals")
        assert {kind: {name: each[name] for name in shown} for kind, each in found.items()} == wanted
        assert {each["traced_from"] for each in wanted.values()} == {FROM}


def test_the_origin_of_an_interval_is_what_plan_states() -> None:
    said = calculator().eval(f"originOf(setting({json.dumps(USUAL)}), 'decode')")
    a100 = load_device("a100-sxm-80gb")
    decode = intervals_for(a100, default_engine(a100), "bf16")["decode"]
    assert decode.known == "timed"
    wanted = f"8 of 10 measurements of cases like this one: {decode.measurements}; {LEVELS['timed']}"
    assert said == wanted


def test_what_is_kept_of_a_setting_is_what_it_would_be_anew() -> None:
    """While users are dragged only the step is another one; all else that is shown is as if it were made for them."""
    rng = random.Random(3)
    states = [
        USUAL | {name: rng.choice(values) for name, values in CHANGES.items() if rng.random() < 0.2} for _ in range(24)
    ]
    states = [{**state, "users": rng.choice((1, 2, 32, 400, 2048))} for state in states for _ in range(2)]
    page = calculator()
    page.run("""
        const shown = ({decode, alone, wall, context, serving, state, workload, card}) => {
          const {capacity, memory} = serving, load = serving.load(state.users);
          return [decode.seconds, decode.intensity, alone.seconds, wall, context, workload, card.name, capacity.users,
            capacity.limit, memory.left, memory.users, load.ttft, load.ttftMarching, load.tpot, load.tokensPerSecond];
        };""")
    kept, anew = page.eval(
        f"""((states) => {{
            let before = null;
            const kept = states.map((state) => shown(before = settingOf(table, all, state, before)));
            return [kept, states.map((state) => shown(setting(state)))];
        }})({json.dumps(states)})"""
    )
    for one, other in zip(kept, anew, strict=True):
        assert one == other


CHANGES = {
    "card": ["h100-sxm", "rtx-4090"],
    "input": [77, 1501, 4000],
    "output": [1, 2, 500],
    "ttft": [0, 0.2],
    "tpot": [0, 0.02],
    "use": [0.5],
}


def test_intensities_of_steps_are_those_of_their_phases() -> None:
    page = calculator()
    page.run("const {decodeIntensity} = modules['plan.js'], {doublingsOf} = modules['calc_case.js'];")
    found, wanted = page.eval(
        f"""(({{asked}}) => [1, 7, 300].map((context) => [1, 5, 64, 2048].map((users) =>
            [decodeIntensity(asked, users, context), decodeOf(asked, users, context).intensity])).flat())
        (setting({json.dumps(USUAL)})).reduce(([a, b], [c, d]) => [[...a, c], [...b, d]], [[], []])"""
    )
    assert found == wanted
    doublings = page.eval(f"doublingsOf(setting({json.dumps(USUAL)}))")
    assert [each["users"] for each in doublings] == [2**power for power in range(12)]
    assert doublings[5]["intensity"] == page.eval(f"setting({json.dumps(USUAL | {'users': 32})}).decode.intensity")
