"""The views: they parse, they agree with each other and with the ledger, and they show what is impossible."""

import csv
import io
import json
import math
import re
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import pytest
from trace_models import DEVICE, GREEDY, Maker, Ticks

from ridgeline.engine import SamplingParams
from ridgeline.insight.trace.bottleneck import slowest
from ridgeline.insight.trace.request_trace import TraceOptions
from ridgeline.insight.trace.trace_ledger import Ledger
from ridgeline.insight.trace.views.ledger_roofline import ledger_roofline
from ridgeline.insight.trace.views.perfetto import REQUEST, STEPS, to_perfetto
from ridgeline.insight.trace.views.report import WIDTH, ReportOptions, build_report, summarise_step
from ridgeline.insight.trace.views.table import op_table
from ridgeline.insight.trace.views.trace_export import COLUMNS, steps_json, to_csv, to_json
from ridgeline.insight.trace.views.trace_summary import summary
from ridgeline.price.device import Cache, HostTime
from ridgeline.price.device_roofline import roofline
from ridgeline.price.physics_guard import under_floor
from ridgeline.util.document import humanize
from ridgeline.util.document.elements import Document, DocumentTable
from ridgeline.util.document.roofline_chart import Point
from ridgeline.util.document.svg import svg
from ridgeline.util.document.terminal_renderer import plain

NS = 1e-3  # a nanosecond in the trace file's microseconds


@pytest.fixture(scope="module")
def ledger(tiny: Maker) -> Ledger:
    """A mixture's ledger with every view in it."""
    everything = TraceOptions(attention=True, lens=True, memory=True, experts=True, repeats=2)
    return tiny("qwen3-moe").trace(everything)


def told(ledger: Ledger, **shown: Any) -> str:
    return plain(build_report(ledger, ReportOptions(**shown)), WIDTH)


def lines_of(table: DocumentTable, width: int = WIDTH) -> list[str]:
    """A table's lines without the document's title."""
    return plain(Document("table", (table,)), width).splitlines()[1:]


# -- the summary ------------------------------------------------------------------------------------------------------

PREFIXES = {"": 1.0, "m": 1e-3, "µ": 1e-6, "n": 1e-9, "p": 1e-12}


def seconds_in(text: str) -> float:
    """Seconds as a cell says them."""
    number, unit = text.removeprefix("over ").split()
    return float(number) * PREFIXES[unit.removesuffix("s")]


def summed(ledger: Ledger) -> dict[str, list[str]]:
    """The rows of the summary's table by their labels."""
    table = summary(ledger).blocks[0]
    assert isinstance(table, DocumentTable)
    rows = [[str(cell) for cell in row.cells] for row in table.rows if not isinstance(row, str)]
    return {row[0]: row[1:] for row in rows}


@pytest.mark.parametrize("family", ["qwen3-moe", "qwen3-next", "gpt2"])
def test_the_lines_of_a_summary_add_up(tiny: Maker, family: str) -> None:
    """Every op is in one line, and the lines are the whole step: at best, predicted and measured."""
    host = HostTime(step=4e-4, op=0.0, sequence=9e-5, token=1e-6, byte=0.0)
    ledger = tiny(family).trace(TraceOptions(repeats=2), device=replace(DEVICE, host=host))
    rows = summed(ledger)
    whole = rows.pop("one token")
    step = ledger.step("decode")
    assert step.host > 0
    assert seconds_in(whole[1]) == pytest.approx(step.expected, rel=0.01)
    for column in range(3):
        parts = [seconds_in(cells[column]) for cells in rows.values() if cells[column]]
        assert sum(parts) == pytest.approx(seconds_in(whole[column]), rel=0.02)
    assert seconds_in(whole[2]) == pytest.approx(ledger.whole("decode"), rel=0.01)


def test_a_summary_says_what_a_step_reads(tiny: Maker) -> None:
    """In the order of the work, with what is not predicted named so: this device's host is not known."""
    made = tiny("llama")
    ledger = made.trace(TraceOptions(repeats=2))
    model = made.llm.loaded.model
    matrices = [p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name]
    weights = sum(p.nbytes for p in matrices)
    rows = summed(ledger)
    names = list(rows)
    assert names[0] == f"weights of 3 layers: {humanize.say(weights, 'B')}"
    assert [name.partition(":")[0] for name in names[1:]] == [
        "attention", "head", "norms and other small ops", "Python around the ops", "one token",
    ]  # fmt: skip
    assert names[2].startswith("head: logits of 263 tokens, ")
    assert rows[names[4]][1] == "not known"
    assert rows["one token"][1].startswith("over ")
    text = plain(summary(ledger), WIDTH)
    ops = ledger.ops("decode")
    alike = f"{humanize.say_seconds(ops.expected)} predicted, {humanize.say_seconds(ops.measured)} measured ("
    assert f"The ops alone: {alike}{humanize.say_difference(ops.difference)})" in " ".join(text.split())
    assert "\non Slate 2 (not calibrated" in text, "no bullet: it is one line"
    assert "impossible" not in text


def test_a_summary_of_a_prompt_alone_and_of_what_cannot_be(tiny: Maker, ledger: Ledger) -> None:
    """Without a decode step the prefill is shown; the physics guard is never left out."""
    alone = replace(ledger, steps=ledger.steps[:1])
    assert list(summed(alone))[-1] == "the prompt"
    assert plain(summary(alone), WIDTH).startswith("tiny: where the time of the prompt went\n")
    slow = replace(DEVICE, bandwidth=1.0, caches=(Cache("L2", 2e6, 1.0),))
    broken = tiny("llama").trace(TraceOptions(repeats=2), device=slow)
    assert "impossible: " in plain(summary(broken), WIDTH)


# -- for programs -----------------------------------------------------------------------------------------------------


def test_json_says_what_the_ledger_holds(ledger: Ledger) -> None:
    found = json.loads(json.dumps(to_json(ledger)))
    assert found["model"] == "tiny"
    assert found["device"]["name"] == "slate"
    assert [op["path"] for op in found["ops"]] == [row.path for row in ledger.rows]
    for step in ledger.steps:
        said, whole = found["steps"][step.name], ledger.total(step.name)
        assert said["measured_s"] == whole.measured
        assert said["flops"] == whole.cost.total_flops == sum(op[step.name]["flops"] for op in found["ops"])
        assert said["ops"]["measured_s"] + sum(said["overheads"].values()) == pytest.approx(said["measured_s"])
        assert said["slowest"] == slowest(ledger, step.name) != ""
        ops = [op[step.name]["measured_s"] for op in found["ops"]]
        assert ops == [entry.measured for entry in ledger.entries(step.name)]
    assert found["answer"]["text"] == ledger.answer
    assert len(found["attention"]["weights"]) == len(found["lens"]["rows"]) - 1 == len(found["memory"]["layers"])
    assert len(found["experts"]["layers"]) == 2


def test_json_leaves_out_what_was_not_asked_for(tiny: Maker) -> None:
    found = to_json(tiny("llama").trace())
    assert not {"attention", "lens", "memory", "experts"} & found.keys()


def test_csv_agrees_with_json(ledger: Ledger) -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(ledger))))
    assert tuple(lines[0]) == COLUMNS
    found = to_json(ledger)
    for step in ledger.steps:
        ops = [line for line in lines if line["step"] == step.name and line["kind"] not in ("overhead", "step")]
        assert len(ops) == len(found["ops"])
        for line, op in zip(ops, found["ops"], strict=True):
            assert (line["path"], line["kind"]) == (op["path"], op["kind"])
            assert line["layer"] == ("" if op["layer"] is None else str(op["layer"]))
            for column in ("flops", "bytes", "weight_bytes", "bound_s", "expected_s", "measured_s", "floor_s"):
                assert float(line[column]) == op[step.name][column]
        parts = [float(line["measured_s"]) for line in lines if line["step"] == step.name and line["kind"] != "step"]
        (whole,) = [line for line in lines if line["step"] == step.name and line["kind"] == "step"]
        assert sum(parts) == pytest.approx(float(whole["measured_s"]))
        assert float(whole["flops"]) == found["steps"][step.name]["flops"]


# -- the trace file ---------------------------------------------------------------------------------------------------


def slices(ledger: Ledger) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """Complete events by process and thread, in the order of the file."""
    found: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in json.loads(json.dumps(to_perfetto(ledger)))["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append(event)
    return found


def test_trace_file_has_the_fields_of_the_format(ledger: Ledger) -> None:
    """As in "Trace Event Format": metadata events that name processes and threads, complete events with ts and dur."""
    trace = json.loads(json.dumps(to_perfetto(ledger)))
    assert trace["displayTimeUnit"] == "ms"
    named: dict[str, set[tuple[int, int]]] = {"process_name": set(), "thread_name": set()}
    for event in trace["traceEvents"]:
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ph"] in ("M", "X")
        if event["ph"] == "M":
            assert isinstance(event["args"]["name"], str)
            named[event["name"]].add((event["pid"], event["tid"]))
        else:
            assert event["name"]
            assert event["ts"] >= 0
            assert event["dur"] >= 0
    used = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["ph"] == "X"}
    assert used == named["thread_name"] == {(REQUEST, 1), (STEPS, 1), (STEPS, 2)}
    assert {process for process, _ in named["process_name"]} == {REQUEST, STEPS}


def test_slices_of_a_thread_nest(ledger: Ledger) -> None:
    """In the order of their beginnings, each slice lies wholly within the innermost one that is still open."""
    for events in slices(ledger).values():
        stack: list[float] = []
        begun = 0.0
        for event in events:
            start, end = event["ts"], event["ts"] + event["dur"]
            assert start >= begun - NS / 2, "slices come in order"
            begun = start
            while stack and stack[-1] <= start + NS / 2 and len(stack) > 1:
                stack.pop()
            assert not stack or end <= stack[-1] + NS / 2, f"{event['name']} outlasts what it lies in"
            stack.append(end)


def test_trace_file_agrees_with_the_ledger(ledger: Ledger) -> None:
    found = slices(ledger)
    for thread, step in enumerate(ledger.steps, 1):
        events = found[STEPS, thread]
        whole = [event for event in events if event["cat"] == "step"]
        assert [event["name"] for event in whole] == [step.name]
        assert whole[0]["dur"] == pytest.approx(ledger.whole(step.name) * 1e6, rel=1e-3, abs=1.0)
        kinds = {row.kind for row in ledger.rows}
        ops = [event for event in events if event["cat"] in kinds]
        assert [event["args"]["path"] for event in ops] == [row.path for row in ledger.rows]
        for event, row in zip(ops, ledger.rows, strict=True):
            entry = row.entries[step.name]
            assert event["dur"] == pytest.approx(entry.measured * 1e6, abs=2 * NS)
            assert event["args"]["flops"] == entry.cost.total_flops
        for (before, _), (event, row) in pairwise(zip(ops, ledger.rows, strict=True)):
            gap = event["ts"] - before["ts"] - before["dur"]
            assert gap == pytest.approx(max(0.0, row.entries[step.name].gap) * 1e6, abs=2 * NS)
        modules = [event["args"]["path"] for event in events if event["cat"] == "module"]
        assert modules.count("model.layers.0.self_attn") == 1
        assert "model.layers" not in modules
    request, *parts = found[REQUEST, 1]
    assert request["name"] == "request"
    names = [event["name"] for event in parts]
    assert names[:3] == ["tokenise", "queue", "prefill"]
    assert names.count("forward") == names.count("sample") == names.count("schedule") == len(ledger.written)
    assert names.count("detokenise") == len(ledger.written)
    assert [n for n in names if n.startswith("decode")] == [f"decode {i}" for i in range(1, len(ledger.written))]
    assert sum(e["dur"] for e in parts if e["name"] in ("tokenise", "queue", "prefill")) <= request["dur"]


# -- for people -------------------------------------------------------------------------------------------------------


def test_table_has_a_line_for_every_group_and_fits(ledger: Ledger) -> None:
    lines = lines_of(op_table(ledger))
    assert max(map(len, lines)) <= WIDTH <= 112
    body = "\n".join(lines)
    for name in ("self_attn.qkv", "k_norm", "attend", "experts", "mlp.gate", "lm_head", "between ops", "whole step"):
        assert re.search(rf"^{re.escape(name)}\b", body, re.MULTILINE), name
    assert "gate_up x1" in body, "the one dense layer is not taken for three"
    assert len(lines) < 45


def test_table_of_one_layer_and_of_all(ledger: Ledger) -> None:
    in_layer = sum(row.layer == 1 for row in ledger.rows)
    one = lines_of(op_table(ledger, 1))
    every = lines_of(op_table(ledger, "all"))
    assert len(one) == in_layer + 15, "heads, a heading and a gap, five rows of totals, a legend of six lines"
    assert sum(line.startswith("layer ") for line in every) == 3
    assert sum(line.startswith("attend") for line in every) == 3


def test_a_step_is_compared_with_a_prediction_of_all_of_it_alone(ledger: Ledger) -> None:
    """Check that the ops' prediction is not held against a whole step, which hid that the ops were 35 % off."""
    steps = tuple(replace(step, host=2.5e-4, expected=step.expected + 2.5e-4) for step in ledger.steps)
    host = HostTime(step=4e-4, op=0.0, sequence=9e-5, token=1e-6, byte=0.0)
    known = replace(ledger, steps=steps, device=replace(ledger.device, host=host))
    for found, cells in ((ledger, 5), (known, 7)):
        (line,) = [x for x in lines_of(op_table(found)) if x.startswith("whole step")]
        assert len(line.replace(" M ", " ").replace(" C ", " ").split()) == len(["whole", "step"]) + 2 * cells
        assert ("The whole step has no exp." in "\n".join(lines_of(op_table(found)))) == (cells == 5)
    said = {name: summarise_step(ledger, ledger.step(name)) for name in ("prefill", "decode")}
    for name, sentence in said.items():
        ops = humanize.say_seconds(ledger.ops(name).measured)
        assert f", its ops {ops} ({humanize.say_seconds(ledger.step(name).expected)} expected, " in sentence
        assert "; not compared, because it is not predicted: batch, between ops, sampling; slowest" in sentence
        assert "its ops" not in (full := summarise_step(known, known.step(name)))
        assert "not compared" not in full
        step = steps_json(ledger)["steps"][name]
        assert (step["difference"], step["not_predicted"]) == (None, ["batch", "between ops", "sampling"])
        assert step["ops"]["difference"] == pytest.approx(step["ops"]["measured_s"] / step["ops"]["expected_s"] - 1)
        step = steps_json(known)["steps"][name]
        assert step["difference"] == pytest.approx(step["measured_s"] / step["expected_s"] - 1)
        assert step["not_predicted"] == []
    assert "covers the scheduler too" in " ".join(lines_of(op_table(known)))
    assert "covers the scheduler too" not in " ".join(lines_of(op_table(ledger)))


def test_rests_are_compared_where_the_device_knows_them(ledger: Ledger) -> None:
    assert "all but ops" not in "\n".join(lines_of(op_table(ledger)))
    steps = tuple(replace(step, host=2.5e-4) for step in ledger.steps)
    (line,) = [x for x in lines_of(op_table(replace(ledger, steps=steps))) if x.startswith("all but ops")]
    assert line.count("250µ") == 2


def test_shapes_are_those_of_all_results(tiny: Maker) -> None:
    """What queries, keys and values are projected to, and the sum beside its norm."""
    lines = [line.split() for line in lines_of(op_table(tiny("llama").trace()))]
    shapes = {line[0]: line[1] for line in lines if len(line) > 1}
    assert shapes["self_attn.qkv"] == "36>60+2·20"
    assert shapes["model.norm"] == "36>2·36"
    assert shapes["input_layernorm"] == "36>2·36", "of two layers; the first has no residual to add"
    assert shapes["lm_head"] == "36>263"


def test_narrow_terminals_get_one_step_below_the_other(ledger: Ledger) -> None:
    lines = lines_of(op_table(ledger), 80)
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith("lm_head") for line in lines) == 2


def test_story_tells_everything_in_order(ledger: Ledger) -> None:
    text = told(ledger, roofline=True)
    order = ["text", "tokens", "ids", "answer", "device", "slowest in prefill", "slowest in decode", "embed_tokens",
             "lm_head", "whole step", "prefill: floor", "candidates after prefill", "tokenise", "decode 1",
             "Attention:", "Lens:", "Memory:", "Experts:", "tiny on Slate 2"]  # fmt: skip
    places = [text.index(word) for word in order]
    assert places == sorted(places)
    assert "not calibrated" in text
    assert "impossible" not in text


def test_candidates_of_a_drawn_token_say_what_was_cut(tiny: Maker) -> None:
    ledger = tiny("llama").trace(params=SamplingParams(temperature=0.7, top_k=2, seed=5, max_tokens=2, ignore_eos=True))
    for choice in ledger.choices.values():
        assert not choice.greedy
        kept = [candidate.drawn for candidate in choice.candidates if candidate.drawn is not None]
        assert len(kept) == 2
        assert sum(kept) == pytest.approx(1.0)
        assert choice.taken.drawn in kept
        assert choice.candidates[0].raw == max(candidate.raw for candidate in choice.candidates)
    assert " cut" in told(ledger)


def test_a_timer_that_beats_the_floor_is_found_out(tiny: Maker) -> None:
    """The physics guard: a clock a million times too slow makes every op with weights impossible."""
    ledger = tiny("llama").trace(clock=Ticks(1e-15))
    broken = ledger.impossible()
    weighty = [row for row in ledger.rows if row.entries["decode"].floor > 0]
    assert len(broken) == 2 * (len(weighty) + 1)
    assert all("faster than the floor" in line for line in broken)
    assert all(row.entries["decode"].impossible for row in weighty)
    text = told(ledger)
    assert re.search(r"!\d", text)
    assert text.count("impossible: ") == len(broken)
    assert to_json(ledger)["impossible"] == broken
    assert not tiny("llama").trace(clock=Ticks(1.0)).impossible()


def test_the_floor_takes_the_nearest_memory_that_could_hold_the_op(tiny: Maker) -> None:
    """10 % slack, and the cache's bandwidth for what fits into it."""
    ledger = tiny("llama").trace()
    row = next(row for row in ledger.rows if row.path.endswith("0.mlp.down_proj"))
    entry = row.entries["decode"]
    nbytes, flops = 36 * 44 * 4, 2 * 36 * 44
    assert entry.floor == max(nbytes / 700e9, flops / 7e12)
    assert not under_floor(entry.floor * 0.91, entry.floor)
    assert under_floor(entry.floor * 0.89, entry.floor)


def test_the_guard_is_silent_where_another_machine_measured(tiny: Maker) -> None:
    """A slow card's floor is nothing that the machine at hand could beat: no guard, and no share of its roofs."""
    slow = replace(DEVICE, peaks={"fp32": 1e3, "bf16": 1e3}, bandwidth=1e3, caches=())
    here, elsewhere = (tiny("llama").trace(device=slow, at_hand=at_hand) for at_hand in (True, False))
    assert here.impossible()
    assert elsewhere.impossible() == []
    assert not any(op["decode"]["impossible"] for op in to_json(elsewhere)["ops"])
    assert not any(line["impossible"] == "True" for line in csv.DictReader(io.StringIO(to_csv(elsewhere))))
    text = told(elsewhere, roofline=True)
    assert not re.search(r"!\d", text)
    assert "impossible" not in text
    assert "bound, " not in text.partition("slowest in decode")[2].partition("\n")[0]
    assert "measured on another machine" in text
    drawn = ledger_roofline(elsewhere)
    assert max(point.flops_per_second for point in drawn.points) < drawn.y[1]


# -- pictures ---------------------------------------------------------------------------------------------------------


def test_picture_has_a_point_for_every_class(ledger: Ledger) -> None:
    drawn = ledger_roofline(ledger)
    for step in ledger.steps:
        kinds = {point.kind for point in drawn.points if point.step == step.name}
        assert kinds == {row.kind for row in ledger.rows} - {"embedding"}
    assert [roof.name for roof in drawn.slopes] == ["L2", "L3", "memory"]
    assert [(roof.name, roof.rate) for roof in drawn.ceilings] == [("fp32", DEVICE.peaks["fp32"])]
    for group in ledger.classes():
        total = group.totals["decode"]
        for point in drawn.points:
            if (point.kind, point.step) == (group.label, "decode"):
                assert point.intensity == pytest.approx(total.cost.intensity)
                assert point.flops_per_second == pytest.approx(total.cost.total_flops / total.measured)
                assert point.of_roof == pytest.approx(total.bound / total.measured)
    assert all(drawn.x[0] <= point.intensity <= drawn.x[1] for point in drawn.points)
    assert all(drawn.y[0] <= point.flops_per_second <= drawn.y[1] for point in drawn.points)
    assert len(drawn.unplaced) == 2
    assert all(math.log10(end).is_integer() for end in (*drawn.x, *drawn.y))


def test_svg_is_an_svg(ledger: Ledger) -> None:
    drawn = ledger_roofline(ledger)
    root = ElementTree.fromstring(svg(drawn))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    width, height = float(root.get("width", 0)), float(root.get("height", 0))
    circles = [node for node in root.iter() if node.tag.endswith("circle")]
    titled = [node for node in circles if len(node)]
    assert len(titled) == len(drawn.points)
    for node in titled:
        assert 0 < float(node.get("cx", -1)) < width
        assert 0 < float(node.get("cy", -1)) < height
    words = " ".join(node.text or "" for node in root.iter() if node.tag.endswith("text"))
    for name in ("L2 700 GB/s", "L3 300 GB/s", "memory 90.0 GB/s", "fp32 7.00 TFLOP/s", "FLOP per byte", "attention"):
        assert name in words


def test_names_in_the_svg_cover_no_other_name() -> None:
    """Three memories of nearly one speed, and points on each other: names are moved or left to the legend."""
    points = [Point(f"class {i}", "decode", 1.0 + i / 50, 1e9 * (1 + i / 50), 9e9, True, 0.1) for i in range(9)]
    near = replace(DEVICE, bandwidth=70e9, caches=(Cache("L2", 2e6, 95e9), Cache("L3", 30e6, 80e9)))
    root = ElementTree.fromstring(svg(roofline("tiny", near, ["fp32"], points)))
    named = [node for node in root.iter() if node.tag.endswith("text") and (node.text or "").startswith("class")]
    names = [node for node in named if ":" not in (node.text or "")]
    assert len(named) - len(names) == len(points), "the legend has them all"
    assert 1 < len(names) <= len(points)
    boxes = []
    for node in names:
        width, x, y = 6.4 * len(node.text or ""), float(node.get("x", 0)), float(node.get("y", 0))
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[node.get("text-anchor", "")]
        boxes.append((left, y - 11, left + width, y + 3))
    for (l1, t1, r1, b1), (l2, t2, r2, b2) in combinations(boxes, 2):
        assert not (l1 < r2 and l2 < r1 and t1 < b2 and t2 < b1)
    slanted = [node for node in root.iter() if (node.get("transform") or "").startswith("rotate(-") and len(node)]
    over = {(node[0].text or "").split()[0]: float(node[0].get("y", 0)) for node in slanted[1:]}
    assert over["memory"] > over["L3"], "the last name stands under its slope"


def test_names_are_escaped(ledger: Ledger) -> None:
    title = svg(ledger_roofline(replace(ledger, model="a<b>&c")))
    ElementTree.fromstring(title)
    assert "a&lt;b&gt;&amp;c" in title


def test_chart_places_every_letter(ledger: Ledger) -> None:
    lines = plain(Document("drawn", (ledger_roofline(ledger),)), 100).splitlines()[1:]
    canvas = "".join(line[12:] for line in lines[1:25])
    assert all(len(line) <= 100 for line in lines[:27])
    for letter in "LAENHXlaenhx":
        assert letter in canvas, letter
    assert "fp32 7.00 TFLOP/s" in canvas
    assert any("1 L2 700 GB/s" in line for line in lines)


def test_views_say_shares_one_way_and_what_shades_mean(ledger: Ledger) -> None:
    text = told(ledger)
    assert "· under 2%  ░ to 5%  ▒ to 15%  ▓ to 40%  █ more" in text
    lens = text.partition("\nLens:")[2].partition("\nMemory:")[0]
    rows = [line for line in lens.splitlines() if re.match(r"(embedding|layer \d)", line)]
    assert len(rows) == 4
    assert all(len(re.findall(r"\d%", row)) == 5 and not re.search(r"\d\.\d\d", row) for row in rows)


def test_two_tokens_are_enough_for_a_trace(tiny: Maker) -> None:
    ledger = tiny("llama").trace(params=replace(GREEDY, max_tokens=1))
    assert len(ledger.written) == 1
    assert [step.name for step in ledger.steps] == ["prefill", "decode"], "decode is measured all the same"
    assert "decode 1" not in told(ledger)


def test_a_step_whose_parts_and_whole_disagree_says_so(ledger: Ledger) -> None:
    def doubted(unhooked: float, overhead: float) -> bool:
        """Of the decode step alone: without hooks so many times the whole, each overhead of so many seconds."""
        step = next(step for step in ledger.steps if step.name == "decode")
        step = replace(step, overheads=tuple(replace(one, seconds=overhead) for one in step.overheads))
        whole = replace(ledger, steps=(step,)).whole("decode")
        doubtful = replace(ledger, steps=(replace(step, unhooked=unhooked * whole),))
        return "do not trust these figures" in " ".join(told(doubtful).split())

    assert not doubted(1.1, 1e-6)
    assert doubted(2.0, 1e-6)
    assert doubted(0.5, 1e-6)
    assert doubted(1.0, -1e-12)
