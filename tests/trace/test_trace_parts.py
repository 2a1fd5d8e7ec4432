"""The parts of a step around its ops in a trace: predicted next to measured where the device has their constants."""

import csv
import io
import json
from dataclasses import replace

import pytest
from trace_models import DEVICE, Maker

from ridgeline.core.checkpoint import read_config
from ridgeline.engine import SamplingParams
from ridgeline.insight.trace.priced_trace import priced_trace
from ridgeline.insight.trace.request_trace import TraceOptions
from ridgeline.insight.trace.trace_ledger import Ledger
from ridgeline.insight.trace.views.priced_report import priced_document, priced_json
from ridgeline.insight.trace.views.report import WIDTH
from ridgeline.insight.trace.views.table import op_table
from ridgeline.insight.trace.views.trace_export import steps_json, to_csv
from ridgeline.insight.trace.views.trace_summary import summary
from ridgeline.price.device import HostTime
from ridgeline.price.devices import load_device
from ridgeline.price.host_parts import HostParts, PartTime, SamplingTime
from ridgeline.price.plan.scenario import Deployment, ModelCache
from ridgeline.util.document.elements import Document
from ridgeline.util.document.terminal_renderer import plain

PARTS = HostParts(
    PartTime(5e-3, 0.0, 0.0, 0.0, 0.0, 0.0),
    PartTime(2e-3, 0.0, 1e-4, 0.0, 1e-3, 0.0),
    {"greedy": SamplingTime(3e-3, 1e-4, 1e-6), "top-p": SamplingTime(4e-3, 1e-4, 2e-6)},
)
REST = HostTime(7e-3, 0.0, 0.0, 0.0, 0.0)
KNOWN = replace(DEVICE, host=replace(REST, parts=PARTS))
NAMES = ("batch", "between ops", "sampling")
VOCABULARY = 263


def traced(tiny: Maker, params: SamplingParams) -> Ledger:
    return tiny("llama").trace(TraceOptions(repeats=1), params, KNOWN)


@pytest.fixture(scope="module")
def ledger(tiny: Maker) -> Ledger:
    return traced(tiny, SamplingParams(temperature=0.0, max_tokens=3))


def test_each_part_is_predicted_and_the_whole_step_compared(ledger: Ledger) -> None:
    """Check that a step's expected time leaves out the scheduler, which a trace does not measure."""
    for step in ledger.steps:
        tokens = step.work.tokens
        expected = (2e-3 + 1e-4 * tokens + 1e-3 * (step.name == "prefill"), 7e-3, 3.1e-3 + 1e-6 * VOCABULARY)
        assert tuple(one.name for one in step.overheads) == NAMES
        assert [one.expected for one in step.overheads] == pytest.approx(expected)
        assert step.host == pytest.approx(sum(expected))
        assert step.expected == pytest.approx(ledger.ops(step.name).expected + sum(expected))
        assert ledger.not_predicted(step.name) == ()
        assert ledger.total(step.name).difference is not None


def test_the_way_of_sampling_is_that_of_the_request(tiny: Maker) -> None:
    drawn = traced(tiny, SamplingParams(temperature=0.7, top_p=0.9, max_tokens=3, seed=1))
    for step in drawn.steps:
        assert step.overheads[-1].expected == pytest.approx(4.1e-3 + 2e-6 * VOCABULARY)


def test_the_views_show_the_parts(ledger: Ledger) -> None:
    table = plain(Document("table", (op_table(ledger),)), WIDTH).splitlines()
    rows = {name: line for line in table for name in NAMES if line.startswith(name)}
    assert set(rows) == set(NAMES)
    assert all(len(line.removeprefix(name).split()) == 3 * len(ledger.steps) for name, line in rows.items())
    assert rows["between ops"].count("7.0m") == len(ledger.steps)
    assert "whose scheduler is neither measured nor expected here" in " ".join(" ".join(table).split())
    told = plain(summary(ledger), WIDTH).splitlines()
    assert [line.split("  ")[0] for line in told if line.startswith(NAMES)] == list(NAMES)
    lines = list(csv.DictReader(io.StringIO(to_csv(ledger))))
    for name, step in steps_json(ledger)["steps"].items():
        own = {line["path"]: float(line["expected_s"]) for line in lines if line["step"] == name}
        assert step["expected_overheads"] == {part: own[part] for part in NAMES}
        assert step["not_predicted"] == []
        assert step["expected_s"] == pytest.approx(own["whole step"])


def test_a_device_with_their_sum_alone_has_no_time_for_a_part(tiny: Maker) -> None:
    """Check that a calibration without the parts is shown as before."""
    host = replace(REST, step=17e-3)
    ledger = tiny("llama").trace(TraceOptions(repeats=1), device=replace(DEVICE, host=host))
    for step in ledger.steps:
        assert [one.expected for one in step.overheads] == [None, None, None]
        assert step.host == 17e-3
        assert steps_json(ledger)["steps"][step.name]["expected_overheads"] == {}
    text = " ".join(plain(Document("table", (op_table(ledger),)), WIDTH).split())
    assert "covers the scheduler too" in text
    assert "Python around the ops: batch, between ops, sampling" in plain(summary(ledger), WIDTH)
    assert all(
        line["expected_s"] == "" for line in csv.DictReader(io.StringIO(to_csv(ledger))) if line["path"] in NAMES
    )


def test_a_measured_step_reports_no_log_probabilities(tiny: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the table of candidates, which needs them, does not make the measured sampling longer."""
    made = tiny("llama")
    sampler, seen = made.llm.engine.executor.sampler, []  # type: ignore[attr-defined]
    monkeypatch.setattr(sampler, "sample", _noting(sampler.sample, seen))
    ledger = made.trace(TraceOptions(repeats=2))
    assert {choice.taken.raw for choice in ledger.choices.values()}
    assert seen[0] == 5
    assert seen[-2:] == [None, None]


def _noting(sample, seen):  # type: ignore[no-untyped-def]
    """Return the sampler's function, which notes how many alternatives the rows ask for."""

    def noting(logits_RV, rows):  # type: ignore[no-untyped-def]
        rows = list(rows)
        seen.extend(row.params.logprobs for row in rows)
        return sample(logits_RV, rows)

    return noting


def test_a_priced_trace_lists_the_parts() -> None:
    """Check that a step that is only priced includes the scheduler."""
    device = replace(load_device("h100-sxm"), calibrated=True, host=replace(REST, parts=PARTS))
    case = ModelCache(read_config("qwen3-0.6b")).scenario(Deployment(device))
    trace = priced_trace("m", case, 16, 1)
    page = plain(priced_document(trace), 200)
    found = json.loads(json.dumps(priced_json(trace)))
    for step in trace.steps:
        told = found["steps"][step.name]
        assert list(told["host"]) == ["scheduler", *NAMES]
        assert sum(told["host"].values()) == pytest.approx(told["host_s"])
        assert told["host"]["scheduler"] == 5e-3
    assert page.count("\nscheduler") == len(trace.steps)
    plainer = ModelCache(read_config("qwen3-0.6b")).scenario(Deployment(replace(device, host=REST)))
    assert {step["host"] == {} for step in priced_json(priced_trace("m", plainer, 16, 1))["steps"].values()} == {True}
