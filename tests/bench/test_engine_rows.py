"""An engine's rows: when a workload is filled and when it ends, and what the roofs would have allowed of it."""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine.null_model import NullExecutor, null_engine
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import build
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.engine.engine import Engine
from ridgeline.engine.sampling import RowFailure, Sampled, SampleRow
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.step_plan import StepPlan
from ridgeline.insight.bench.engine import measured_roofs as roofs_of
from ridgeline.insight.bench.engine.bench_row import DECODE, OUTPUT, PREFILL, BenchRow, figures_of, measure
from ridgeline.insight.bench.engine.engine_bench_report import document, row_json
from ridgeline.insight.bench.engine.engine_run import EngineRun, check_capacity, run, warm_up
from ridgeline.insight.bench.engine.measured_roofs import RoofMeter, halfway
from ridgeline.insight.bench.engine.workload import EngineWorkload
from ridgeline.price.device import Cache, Device
from ridgeline.price.price import Price
from ridgeline.util.document.terminal_renderer import plain

FAST, SLOW = 1e30, 1.0
BOX = Device(
    "this", "A Box", "cpu", {"fp32": 1e9, "bf16": 2e9}, 1e9, 1e9, sources={"all": "measured on this machine, then"}
)


@pytest.fixture(scope="module")
def price() -> Price:
    return Price(build(read_config("tales")))


def alike(sequences: int, prompt: int, output: int, name: str = "alike") -> EngineWorkload:
    return EngineWorkload(name, sequences, (prompt, prompt), (output, output), mixed=False)


def engine_of(tokens: int = 64, requests: int = 8, pages: int = 64) -> Engine:
    """One that computes nothing. tokens: positions of a step."""
    return null_engine(limits=Limits(tokens=tokens, requests=requests), pages=pages, prefix_cache=False)


def ticking() -> Callable[[], float]:
    """A clock that shows a second more each time."""
    count = itertools.count(100.0)
    return lambda: next(count)


def ran(workload: EngineWorkload, engine: Engine | None = None) -> EngineRun:
    """A run in which each step takes a second."""
    return run(engine or engine_of(), workload, ticking())


# -- runs -------------------------------------------------------------------------------------------------------------


def test_a_request_alone_is_filled_by_its_prompt() -> None:
    found = ran(alike(1, 10, 4))
    assert [(step.ended, step.tokens) for step in found.steps] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert (found.filled, found.prompt_tokens, found.preemptions) == (1, 10, 0)
    works = [Work.of([StepSegment(10, 10)]), *(Work.decode([10 + n]) for n in (1, 2, 3))]
    assert [step.work for step in found.steps] == works


def test_a_workload_is_filled_when_the_last_request_has_a_token() -> None:
    """Steps of 16 positions over prompts of 12: the first requests decode while the others are still read, and what
    came of that is no decode."""
    found = ran(alike(3, 12, 4), engine_of(tokens=16))
    lengths = [(step.work.tokens, step.tokens) for step in found.steps]
    assert lengths[:3] == [(16, 1), (16, 2), (7, 3)]
    assert found.filled == 3
    assert sum(tokens for _, tokens in lengths) == 12


def test_waiting_requests_fill_late() -> None:
    """Two at a time: the third begins when those have ended."""
    found = ran(alike(3, 4, 3), engine_of(requests=2))
    assert (found.filled, len(found.steps)) == (4, 6)


def test_a_request_that_fails_ends_it() -> None:
    class Failing(NullExecutor):
        def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
            return [RowFailure("no logits") for _ in rows]

    engine = null_engine(executor=Failing((None,), 64, 4))
    with pytest.raises(ValueError, match="workload 'alike': a request failed: no logits"):
        ran(alike(1, 4, 4), engine)


def test_requests_that_are_too_long_are_refused_by_name() -> None:
    engine = null_engine(context=20, prefix_cache=False)
    check_capacity(engine, [alike(9, 10, 10)])
    both = [alike(1, 10, 10, "short"), alike(1, 10, 11, "long")]
    with pytest.raises(
        ValueError, match=r"'long' has requests of 21 tokens.*context is 20; workloads that fit: short$"
    ):
        check_capacity(engine, both)
    with pytest.raises(ValueError, match=r"KV memory has room for 12 \(--kv-memory\)$"):
        check_capacity(null_engine(pages=3), [alike(1, 10, 3)])


def test_the_first_of_requests_alike_warms_up_and_a_full_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one if it fits; else whatever is run. Then as many positions as a step may have, on this engine."""
    warmed: list[EngineWorkload] = []
    monkeypatch.setattr(
        "ridgeline.insight.bench.engine.engine_run.run", lambda engine, workload: warmed.append(workload)
    )
    drawn = replace(alike(2, 3, 3, "drawn"), mixed=True)
    long, short = alike(1, 400, 3, "long"), alike(1, 3, 3, "short")
    engine = engine_of(tokens=64)
    warm_up(engine, [drawn, long, short], drawn)
    warm_up(engine, [drawn, long], drawn)
    assert [each.name for each in warmed] == ["short", "a full step", "drawn", "a full step"]
    assert max(step.work.tokens for step in ran(warmed[1], engine).steps) == 64


# -- figures ----------------------------------------------------------------------------------------------------------


def test_figures_are_tokens_over_the_times_that_the_words_name(price: Price) -> None:
    """3 x 12 in and 4 out, filled after 3 of 6 steps with 6 of 12 tokens."""
    found = figures_of(ran(alike(3, 12, 4), engine_of(tokens=16)), price, BOX)
    tokens = {name: (figure.tokens, figure.seconds) for name, figure in found.items()}
    assert tokens == {OUTPUT: (12, 6), PREFILL: (36, 3), DECODE: (6, 3)}
    assert found[PREFILL].rate == 12


def test_drawn_lengths_have_no_phases(price: Price) -> None:
    workload = EngineWorkload("drawn", 5, (3, 20), (2, 9), mixed=True)
    assert list(figures_of(ran(workload), price, BOX)) == [OUTPUT]


def test_answers_of_one_token_have_no_decode(price: Price) -> None:
    assert list(figures_of(ran(alike(2, 5, 1)), price, BOX)) == [OUTPUT, PREFILL]


def test_the_floor_is_that_of_the_steps_that_ran(price: Price) -> None:
    """Under a slow memory their bytes, each step's own; under slow arithmetic their FLOPs."""
    workload = alike(2, 10, 3)
    prompts, steps = Work.of([StepSegment(10, 10)] * 2), [Work.decode([length] * 2) for length in (11, 12)]
    costs = [price.step(work) for work in (prompts, *steps)]
    slow_memory = replace(BOX, bandwidth=1e6, peaks={"fp32": FAST, "bf16": FAST})
    found = figures_of(ran(workload), price, slow_memory)
    assert found[PREFILL].floor == pytest.approx(costs[0].memory_bytes / 1e6)
    assert found[DECODE].floor == pytest.approx((costs[1].memory_bytes + costs[2].memory_bytes) / 1e6)
    assert found[OUTPUT].floor == pytest.approx(found[PREFILL].floor + found[DECODE].floor)
    assert (found[DECODE].roof.name, found[DECODE].roof.rate, found[DECODE].roof.unit) == ("memory", 1e6, "B/s")
    slow_arithmetic = replace(BOX, bandwidth=FAST, peaks=dict.fromkeys(BOX.peaks, 1e8))
    found = figures_of(ran(workload), price, slow_arithmetic)
    most = max(costs[1].flops, key=lambda name: costs[1].flops[name])
    assert found[DECODE].floor == pytest.approx((costs[1].flops[most] + costs[2].flops[most]) / 1e8)
    assert (found[DECODE].roof.name, found[DECODE].roof.rate, found[DECODE].roof.unit) == (most, 1e8, "FLOP/s")


def test_what_a_cache_holds_is_under_its_roof(price: Price) -> None:
    near = replace(BOX, caches=(Cache("L3", 1e9, 5e9),), peaks={"fp32": FAST, "bf16": FAST})
    roof = figures_of(ran(alike(1, 10, 3)), price, near)[DECODE].roof
    assert (roof.name, roof.rate) == ("L3", 5e9)


def test_the_ceiling_reached_is_a_share_of_one(price: Price) -> None:
    """Steps of a second, on a machine whose floor for them is half of one."""
    work = Work.of([StepSegment(10, 10)])
    half = replace(BOX, bandwidth=2 * price.step(work).memory_bytes, peaks=dict.fromkeys(BOX.peaks, FAST))
    figure = figures_of(ran(alike(1, 10, 1)), price, half)[PREFILL]
    assert (figure.rate, figure.ceiling, figure.share) == (10, pytest.approx(20), pytest.approx(0.5))


# -- rounds and roofs -------------------------------------------------------------------------------------------------


class Said(RoofMeter):
    """Roofs of which each run has others."""

    def __init__(self, *devices: Device, calibrated: bool = False) -> None:
        self.threads, self.why = 1, "" if calibrated else "not calibrated"
        self.calibrated = devices[0] if calibrated else None
        self.devices = iter(devices)

    def around(self, call: Any) -> Any:
        return call(), next(self.devices)


def rows_of(
    engine: Engine, workloads: Sequence[EngineWorkload], price: Price, roofs: RoofMeter, rounds: int = 1
) -> list[BenchRow]:
    return list(measure(engine, price, workloads, rounds, roofs, lambda text: None))


def test_workloads_run_in_turn(price: Price) -> None:
    """So that a machine that slows down does so for all; a row comes with its last round."""
    told: list[str] = []
    first, second = alike(1, 4, 2, "first"), alike(1, 4, 2, "second")
    rows = measure(engine_of(), price, [first, second], 2, Said(BOX, BOX, BOX, BOX), told.append)
    assert next(rows).workload is first
    assert told == [
        "round 1 of 2: first, 1 x 4 in, 2 out",
        "round 1 of 2: second, 1 x 4 in, 2 out",
        "round 2 of 2: first, 1 x 4 in, 2 out",
    ]
    assert [row.workload for row in rows] == [second]


def test_figures_of_rounds_are_medians(price: Price) -> None:
    """Of the ceilings of three machines, of which the middle one counts."""
    boxes = [replace(BOX, bandwidth=bandwidth, peaks={"fp32": FAST, "bf16": FAST}) for bandwidth in (1e9, 9e9, 2e9)]
    (row,) = rows_of(engine_of(), [alike(1, 4, 3)], price, Said(*boxes), rounds=3)
    ceilings = sorted(figure.ceiling for figure in row.each(DECODE))
    found = row.median(DECODE)
    assert (found.ceiling, found.roof.rate) == (ceilings[1], 2e9)
    rates = sorted(figure.rate for figure in row.each(DECODE))
    assert (found.measured, found.spread) == (rates[1], (rates[0], rates[2]))
    assert row_json(row, Said(BOX))["roofs"]["bytes_per_second"] == 2e9


def test_probes_stand_around_each_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One between two runs; the roofs are halfway, and a cache that only one saw is none."""
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path))
    caches = (Cache("L2", 2e6, 8e9), Cache("L3", 9e6, 4e9))
    found = iter([
        replace(BOX, bandwidth=1e9, caches=caches),
        replace(BOX, bandwidth=2e9, peaks={"fp32": 3e9, "bf16": 4e9}, caches=(Cache("L2", 1e6, 6e9),)),
        replace(BOX, bandwidth=4e9),
    ])  # fmt: skip
    monkeypatch.setattr(roofs_of.estimate, "probed", lambda timer, seconds: next(found))
    roofs = RoofMeter(1)
    assert roofs.calibrated is None
    assert roofs.why.startswith("this machine is not calibrated")
    result, between = roofs.around(lambda: "first")
    assert (result, between.bandwidth, between.peaks) == ("first", 1.5e9, {"fp32": 2e9, "bf16": 3e9})
    assert between.caches == (Cache("L2", 1e6, 7e9),)
    assert roofs.around(lambda: "second")[1].bandwidth == 3e9


def test_halfway_between_a_probe_and_itself_is_that_probe() -> None:
    box = replace(BOX, caches=(Cache("L3", 9e6, 4e9),))
    assert halfway(box, box) == box


# -- what is told -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("torch_only")
def test_the_ceiling_stands_first(price: Price) -> None:
    (row,) = rows_of(engine_of(), [alike(1, 4, 3)], price, Said(BOX))
    page = plain(document("tales", [row], Said(BOX)))
    lines = page.splitlines()
    assert lines[0] == "tales on A Box: 1 thread, kernels: torch's"
    assert lines[1].startswith(
        "Roofs probed before and after each run, in the median: memory 1.00 GB/s, fp32 1.00 GFLOP/s"
    )
    head = next(line for line in lines if line.startswith("tok/s"))
    assert head.split() == ["tok/s", "ceiling", "measured", "share", "roof"]
    assert "alike: 1 x 4 in, 3 out" in lines
    assert re.findall(r"^(prefill|decode|output) ", page, re.MULTILINE) == ["prefill", "decode", "output"]


@pytest.mark.usefixtures("torch_only")
@pytest.mark.parametrize(("share", "said"), [(0.5, False), (0.2, True)])
def test_what_is_far_below_its_ceiling_is_not_blamed_on_its_roof(price: Price, share: float, said: bool) -> None:
    """Check the note on the column roof, which names the memory that sets the ceiling even at a share of 3%."""
    (row,) = rows_of(engine_of(), [alike(1, 4, 3)], price, Said(BOX))
    figures = {name: replace(figure, seconds=figure.floor / share) for name, figure in row.rounds[0].items()}
    page = " ".join(plain(document("tales", [replace(row, rounds=(figures,))], Said(BOX))).split())
    note = (
        "Neither memory nor arithmetic limited what is under 30% of its ceiling (alike: output, prefill, decode). "
        "`ridgeline trace` shows where the time went."
    )
    assert (note in page) == said
    assert ("Neither" in page) == said


def test_rounds_show_their_spread(price: Price) -> None:
    (row,) = rows_of(engine_of(), [alike(1, 4, 3)], price, Said(BOX, BOX), rounds=2)
    page = plain(document("tales", [row], Said(BOX, calibrated=True)))
    assert re.search("measured +share +least +most +roof", page)
    assert "Medians of 2 rounds, with the workloads in turn." in page


def test_a_ceiling_that_was_beaten_cannot_be(price: Price) -> None:
    """Roofs of a slower hour, or of a slower machine."""
    slow = replace(BOX, bandwidth=SLOW)
    (row,) = rows_of(engine_of(), [alike(1, 4, 3)], price, Said(slow, calibrated=True))
    page = " ".join(plain(document("tales", [row], Said(slow, calibrated=True))).split())
    assert "Roofs calibrated, measured on this machine, then: memory 1.00 B/s" in page
    assert "output and prefill and decode exceed the ceiling, which is impossible" in page
    assert "run `ridgeline calibrate` again, or give --probe." in page


def test_preemptions_are_told(price: Price) -> None:
    """Two requests in the memory of one and a half."""
    (row,) = rows_of(engine_of(pages=9), [alike(2, 8, 14)], price, Said(BOX))
    assert row.preemptions > 0
    assert row_json(row, Said(BOX))["preemptions"] == row.preemptions
    assert "alike: KV memory was too small" in plain(document("tales", [row], Said(BOX)))
