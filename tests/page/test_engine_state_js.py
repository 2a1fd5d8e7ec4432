"""engine_state.js and engine_cells.js: recorded runs replayed beside the ledger that they were recorded from (E1)."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from page.modules import Modules
from ridgeline.engine.engine import Engine
from ridgeline.learn.page import recordings
from ridgeline.learn.page.recordings import SCENES, recorded_runs
from ridgeline.price.devices import load_device

STATES = ["free", "held", "published", "shared", "cached"]
Counts = dict[str, Any]


def ledger_of(engine: Engine) -> Counts:
    """What the engine's own ledger counts."""
    pool, requests = engine.kv_cache_manager.pool, engine.requests.values()
    counts = dict.fromkeys(STATES, 0)
    for page in range(1, pool.size + 1):
        counts[pool.state(page)] += 1
    assert counts["free"] == len(pool.free_pages)
    assert counts["cached"] == pool.cached
    return {
        "counts": [counts[name] for name in STATES],
        "held": pool.size - pool.available,
        "running": sorted((each.group, each.known, each.computed) for each in requests if each.running),
        "waiting": sorted((each.group, each.known, each.preemptions) for each in requests if not each.running),
    }


@pytest.fixture(scope="module")
def played() -> Iterator[tuple[dict[str, Any], dict[str, list[Counts]]]]:
    """The runs of the page, and of each what the ledger counted when each frame was told."""
    counted: dict[str, list[Counts]] = {}
    with pytest.MonkeyPatch.context() as patch:
        hear = recordings._Recording._on_message

        def counting(self: Any, message: Any) -> None:
            hear(self, message)
            if isinstance(message, recordings.EngineSnapshot):
                counted.setdefault(self._scene.id, []).append(ledger_of(self.engine))

        patch.setattr(recordings._Recording, "_on_message", counting)
        yield recorded_runs(load_device("h100-sxm")), counted


@pytest.fixture(scope="module")
def modules() -> Modules:
    return Modules("engine_cells.js", "engine_state.js")


REPLAY = """((run) => {
  const engine = new modules["engine_state.js"].EngineState();
  return [run.snapshot, ...run.frames].map((told) => {
    engine.take(told);
    const { waiting, running } = engine.lanes();
    const { pages } = engine;
    const recount = [0, 0, 0, 0, 0];
    for (let page = 1; page <= pages.count; page += 1) recount[pages.state[page]] += 1;
    return {
      counts: [...engine.counts], recount, held: engine.counters.held_pages,
      running: running.map((each) => [each.request, each.known, each.computed]),
      waiting: waiting.map((each) => [each.request, each.known, each.preemptions]),
    };
  });
})"""


CHAIN = """((changes) => {
  const engine = new modules["engine_state.js"].EngineState();
  engine.pages = (engine.begin(SNAPSHOT), engine.pages);
  return changes.map((change) => { engine.lay(change); return engine.chain(change[1]); });
})"""


def test_a_prefix_is_followed_to_its_first_page(modules: Modules, played: Any) -> None:
    """Also of pages that are kept for nobody, until one of them has other contents."""
    code = CHAIN.replace("SNAPSHOT", json.dumps(played[0]["runs"][0]["snapshot"]))
    changes = [
        [0, 3, "published", 1, 0, 1, 0],
        [0, 5, "published", 1, 16, 1, 3],
        [0, 4, "held", 1, 32, 1, 5],
        [0, 5, "cached", 0, -1, 0, 0],
        [0, 3, "cached", 0, -1, 0, 0],
        [0, 5, "cached", 0, -1, 0, 0],
        [0, 3, "held", 2, 0, 1, 0],
        [0, 5, "cached", 0, -1, 0, 0],
        [0, 5, "held", 2, 16, 1, 3],
    ]
    found = modules.eval(f"{code}({json.dumps(changes)})")
    assert found == [[3], [5, 3], [4, 5, 3], [5, 3], [3], [5, 3], [3], [5], [5, 3]]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.id)
def test_a_replay_counts_what_the_ledger_counts(scene: Any, played: Any, modules: Modules) -> None:
    runs, counted = played
    (run,) = [each for each in runs["runs"] if each["id"] == scene.id]
    seen = modules.eval(f"{REPLAY}({json.dumps(run)})")
    assert len(seen) == len(run["frames"]) + 1 > 20
    for step, (page, ledger) in enumerate(zip(seen, counted[scene.id], strict=True)):
        assert page["counts"] == page["recount"] == ledger["counts"], step
        assert page["held"] == ledger["held"] == sum(ledger["counts"][1:4]), step
        assert page["running"] == [list(each) for each in ledger["running"]], step
        assert page["waiting"] == [list(each) for each in ledger["waiting"]], step


def test_each_scene_shows_what_it_says(played: Any) -> None:
    runs, counted = played
    by_id = {run["id"]: run for run in runs["runs"]}
    last = {name: run["frames"][-1]["counters"] for name, run in by_id.items()}
    for scene in SCENES:
        ended = [end for frame in by_id[scene.id]["frames"] for end in frame["ended"]]
        assert sorted(end["request"] for end in ended) == sorted({end["request"] for end in ended})
        assert len(ended) == len(scene.arrivals), "each ends once"
        assert {end["finish"] for end in ended} == {"length"}
        assert sorted(end["output"] for end in ended) == sorted(each.output for each in scene.arrivals)
        assert (last[scene.id]["running"], last[scene.id]["held_pages"]) == (0, 0)
    assert max(len(counts["running"]) for counts in counted["batching"]) >= 5
    chunks = [
        step
        for frame in by_id["chunked"]["frames"]
        for step in frame["recent"]
        if 0 < step["decodes"] < step["positions"]
    ]
    assert len(chunks) >= 3, "chunks of the long prompt run beside the others' tokens"
    assert last["preempted"]["preemptions"] > 0
    assert any(counts["waiting"] and counts["waiting"][0][2] for counts in counted["preempted"])
    assert last["shared"]["reused_tokens"] > 100
    assert max(counts["counts"][STATES.index("shared")] for counts in counted["shared"]) >= 3
    assert max(len(json.dumps(run)) for run in runs["runs"]) < 200_000


def test_rates_and_shares_are_those_of_the_counters(played: Any, modules: Modules) -> None:
    """Over a whole run, which is shorter than what rates look back."""
    runs, _ = played
    for run in runs["runs"]:
        code = """((run) => {
          const engine = new modules["engine_state.js"].EngineState();
          [run.snapshot, ...run.frames].forEach((told) => engine.take(told));
          return { ...engine.gauges(), steps: engine.steps.length, later: engine.gauges(10) };
        })"""
        told = modules.eval(f"{code}({json.dumps(run)})")
        first, last = run["snapshot"], run["frames"][-1]
        seconds = last["clock"] - first["clock"]
        assert seconds < 3
        steps = [step for frame in run["frames"] for step in frame["recent"]]
        out = last["counters"]["output_tokens"] - first["counters"]["output_tokens"]
        prompts = sum(item[2] for step in steps for item in step["items"] if item[2] > 1)
        assert told["out"] == pytest.approx(out / seconds)
        assert told["prompt"] == pytest.approx(prompts / seconds)
        assert told["share"] == pytest.approx(sum(s["predicted"] for s in steps) / sum(s["seconds"] for s in steps))
        assert (told["later"]["out"], told["later"]["prompt"]) == (0, 0)
        ended = [end for frame in run["frames"] for end in frame["ended"]]
        assert told["hits"] == pytest.approx(sum(e["cached"] for e in ended) / sum(e["prompt"] for e in ended))


def test_a_frame_that_began_before_the_snapshot_counts_once(modules: Modules, played: Any) -> None:
    """Steps that a snapshot has already said are not shown again."""
    run = played[0]["runs"][0]
    code = """((run) => {
      const engine = new modules["engine_state.js"].EngineState();
      const [frame] = run.frames;
      engine.take({ ...run.snapshot, step: frame.step + 1, counters: frame.counters, recent: frame.recent, pages: [] });
      engine.take(frame);
      return [engine.steps.length, engine.rates(1)];
    })"""
    steps, rates = modules.eval(f"{code}({json.dumps(run)})")
    assert (steps, rates) == (1, {"prompt": 0, "out": 0})


@pytest.mark.parametrize("pages", [1, 14, 1000, 8787, 100_000, 1_234_567])
@pytest.mark.parametrize("width", [300, 717, 1500])
def test_every_page_has_a_cell_that_fits(modules: Modules, pages: int, width: int) -> None:
    tallest = 400
    layout = modules.call("engine_cells.js", "layoutOf", pages, width, tallest)
    side, columns, cells, each = (layout[name] for name in ("side", "columns", "cells", "each"))
    assert columns * side <= width
    assert layout["rows"] * side <= tallest
    assert side >= 5
    assert (cells - 1) * each < pages <= cells * each
    for page in {1, pages // 2 + 1, pages}:
        cell = modules.call("engine_cells.js", "cellOf", layout, page)
        first, last = modules.call("engine_cells.js", "pagesOf", layout, cell, pages)
        assert first <= page <= last
        x, y = (cell % columns + 0.5) * side, (cell // columns + 0.5) * side
        assert modules.call("engine_cells.js", "cellAt", layout, x, y) == cell
    assert modules.call("engine_cells.js", "cellAt", layout, -1, 3) == -1
    assert modules.call("engine_cells.js", "cellAt", layout, 1, layout["rows"] * side + 1) == -1
