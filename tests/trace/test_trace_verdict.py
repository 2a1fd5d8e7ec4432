"""The verdict, the reasons, and how numbers are written."""

from dataclasses import replace

import pytest
from trace_models import DEVICE, TEXT, Maker

from ridgeline.core.ops.cost import Cost
from ridgeline.engine import SamplingParams
from ridgeline.insight.trace.bottleneck import above_roofs, reason, slowest
from ridgeline.insight.trace.run_stats import RunStats, verdict
from ridgeline.insight.trace.trace_ledger import LedgerStep, LedgerTotal, OpRow
from ridgeline.price.roof_share import EXPLAINS
from ridgeline.util.document import humanize


def account_of(tiny: Maker, name: str, tokens: int = 5) -> RunStats:
    llm = tiny(name).llm
    account = RunStats(llm.loaded.price)
    llm.engine.on_step = account.add
    llm.generate([TEXT], SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True))
    llm.engine.on_step = None
    return account


def test_verdict_has_two_lines_from_the_account(tiny: Maker) -> None:
    account = account_of(tiny, "llama")
    decode = account.decode
    decode.seconds = 4e-7 * decode.steps
    first, second = verdict(account, DEVICE)
    floor = max(decode.nbytes / 700e9, decode.flops / 7e12)
    assert first.startswith(f"decode reached {humanize.say(decode.nbytes / decode.seconds, 'B/s')} and ")
    assert f"{humanize.percent(floor / decode.seconds)} of its roof" in first
    assert "; prefill reached" in first
    assert second.startswith("decode is memory-bound (700 GB/s): ")
    assert "are in L2" in second
    assert "not calibrated" in second
    assert "not calibrated" not in verdict(account, replace(DEVICE, calibrated=True))[1]


def test_verdict_names_what_changed_since_the_calibration(tiny: Maker) -> None:
    stale = (
        "the calibration file c.json is out of date: it was measured with torch 1 (now 2); run `ridgeline calibrate`"
    )
    said = verdict(account_of(tiny, "llama"), replace(DEVICE, basis="probe", stale_calibration=stale))[1]
    assert said.endswith(f"; roofs not calibrated: {stale}")


def test_verdict_names_the_memory_and_the_other_roof(tiny: Maker) -> None:
    account = account_of(tiny, "gpt2")
    account.decode.seconds = 1e-9
    assert "are in main memory" in verdict(account, replace(DEVICE, caches=()))[1]
    slow = replace(DEVICE, peaks={"fp32": 1e9})
    assert verdict(account, slow)[1].startswith("decode is compute-bound (fp32, 1.00 GFLOP/s): ")


@pytest.mark.parametrize(("share", "bound"), [(EXPLAINS + 0.01, True), (EXPLAINS - 0.01, False)])
def test_verdict_far_below_both_roofs_blames_neither(tiny: Maker, share: float, bound: bool) -> None:
    """Check that no reader is sent after faster memory at 5% of the bandwidth."""
    account = account_of(tiny, "llama")
    decode = account.decode
    floor, arithmetic = decode.nbytes / 700e9, decode.flops / 7e12
    assert arithmetic < floor
    decode.seconds = floor / share
    said = verdict(account, DEVICE)[1]
    assert said.startswith("decode is memory-bound") == bound
    assert ("bound" in said) == bound
    if not bound:
        assert said.startswith(
            "neither memory nor arithmetic limited decode: 29% of the bandwidth of L2 (700 GB/s), "
            f"{humanize.percent(arithmetic / decode.seconds)} of the arithmetic (fp32, 7.00 TFLOP/s); "
            "`ridgeline trace` shows where the time went; roofs not calibrated"
        )


def test_verdict_far_below_both_roofs_blames_no_slow_arithmetic(tiny: Maker) -> None:
    account, slow = account_of(tiny, "gpt2"), replace(DEVICE, peaks={"fp32": 1e9})
    account.decode.seconds = account.decode.flops / 1e9 / 0.15
    said = verdict(account, slow)[1]
    assert said.startswith("neither memory nor arithmetic limited decode")
    assert "15% of the arithmetic (fp32, 1.00 GFLOP/s)" in said


def test_verdict_of_a_run_without_decode_is_about_its_prefill(tiny: Maker) -> None:
    account = account_of(tiny, "llama", tokens=1)
    account.prefill.seconds = 1e-9
    first, second = verdict(account, DEVICE)
    assert first.startswith("prefill reached")
    assert second.startswith("prefill is")


def test_verdict_on_what_cannot_be(tiny: Maker) -> None:
    account = account_of(tiny, "llama")
    account.decode.seconds = 1e-12
    assert "which is impossible" in verdict(account, DEVICE)[0]


def test_verdict_on_nothing_is_nothing(tiny: Maker) -> None:
    assert verdict(RunStats(tiny("llama").llm.loaded.price), DEVICE) == []


def _step(tiny: Maker) -> LedgerStep:
    return tiny("llama").trace().step("decode")


@pytest.mark.parametrize(
    ("limit", "measured", "bound", "said"),
    [
        ("memory", 2e-3, 1e-3, "memory-bound, 1.00 MB at 500 MB/s, 50% of the bandwidth of L2"),
        ("compute", 2e-3, 1e-3, "compute-bound, 4.00 GFLOP at 2.00 TFLOP/s, 50% of the peak"),
        (
            "memory",
            10e-3,
            1e-3,
            "limited by neither memory nor arithmetic, 1.00 MB at 100 MB/s, 10% of the bandwidth of L2: a better "
            "kernel would help",
        ),
        (
            "compute",
            10e-3,
            1e-3,
            "limited by neither memory nor arithmetic, 4.00 GFLOP at 400 GFLOP/s, 10% of the peak: a better "
            "kernel would help",
        ),
        (
            "memory",
            1e-3,
            1e-6,
            "2 calls of 500 µs for 500 ns of work: most of the time is the overhead of Python and torch's dispatch",
        ),
    ],
)
def test_reasons(tiny: Maker, limit: str, measured: float, bound: float, said: str) -> None:
    total = LedgerTotal(2, Cost({"fp32": 4e9}, weight_bytes=1e6), bound / 2, bound, 2 * bound, measured, limit, 0)
    assert said in reason(total, replace(_step(tiny), recorded=False))


def test_what_is_recorded_has_no_python_to_blame(tiny: Maker) -> None:
    total = LedgerTotal(2, Cost({"fp32": 4e9}, weight_bytes=1e6), 5e-7, 1e-6, 2e-6, 1e-3, "memory", 0)
    said = reason(total, replace(_step(tiny), recorded=True))
    assert "500 ns of work: most of the time is the overhead of kernel launches" in said


def test_the_ops_that_lose_most_time_are_named_the_most_first(tiny: Maker) -> None:
    """By the seconds that a perfect kernel would save, not by shares: a short op far from its roof is nothing."""
    ledger = tiny("llama").trace()
    seconds = {"down_proj": (1.0, 4.0), "attend": (0.1, 1.1), "rotary": (1e-9, 0.5), "o_proj": (2.0, 2.2)}

    def timed(row: OpRow, bound: float, measured: float) -> OpRow:
        entries = {name: replace(entry, bound=bound, measured=measured) for name, entry in row.entries.items()}
        return replace(row, entries=entries)

    rows = tuple(timed(row, *seconds.get(row.path.rpartition(".")[2], (1e-3, 1e-3))) for row in ledger.rows)
    said = above_roofs(replace(ledger, rows=rows), "decode")
    layers, others = ledger.layers, len(rows) - 3 * ledger.layers - 1
    reached = (layers * 3.1 + 1e-3 * others) / (layers * 7.3 + 0.5 + 1e-3 * others)
    assert said.startswith(f"ops in decode reach {humanize.percent(reached)} of their roofs; most time lost: ")
    parts = [part.split(" (at ") for part in said.partition("most time lost: ")[2].split(", ")]
    assert [name.split(" ")[0].split(".")[-1] for name, _ in parts] == ["down_proj", "attend", "o_proj"]
    assert parts[0][1].startswith("25%")
    exact = tuple(timed(row, 1.0, 1.0) for row in rows)
    assert above_roofs(replace(ledger, rows=exact), "decode") == "ops in decode reach 100% of their roofs"


def test_what_lies_between_ops_can_be_slowest(tiny: Maker) -> None:
    ledger = tiny("llama").trace()
    step = ledger.step("decode")
    longest = replace(
        step,
        overheads=tuple(
            replace(overhead, seconds=9.0) for overhead in step.overheads if overhead.name == "between ops"
        ),
    )
    said = slowest(replace(ledger, steps=(ledger.step("prefill"), longest)), "decode")
    assert said.startswith("slowest in decode: between ops, 9.00 s")


@pytest.mark.parametrize(
    ("value", "short", "long"),
    [
        (0, "0", "0 B"),
        (9, "9.0", "9.00 B"),
        (99.7, "100", "99.7 B"),
        (999.7, "1.0k", "1.00 kB"),
        (12345, "12k", "12.3 kB"),
        (6_370_000, "6.4M", "6.37 MB"),
        (3.1e9, "3.1G", "3.10 GB"),
        (0.25, "0.25", "0.250 B"),
    ],
)
def test_counts(value: float, short: str, long: str) -> None:
    assert humanize.scaled(value) == short
    assert humanize.say(value, "B") == long


@pytest.mark.parametrize(
    ("value", "short", "long"),
    [
        (0, "0", "0 s"),
        (1.5, "1.5", "1.50 s"),
        (12e-3, "12m", "12.0 ms"),
        (3.456e-6, "3.5µ", "3.46 µs"),
        (0.9996e-3, "1.0m", "1.00 ms"),
        (71e-9, "71n", "71.0 ns"),
        (4e-12, "4.0p", "4.00 ps"),
    ],
)
def test_seconds(value: float, short: str, long: str) -> None:
    assert humanize.seconds(value) == short
    assert humanize.say_seconds(value) == long


def test_shares_and_differences() -> None:
    assert [humanize.percent(share) for share in (0.0, 0.712, 0.0321, 0.00042)] == ["0%", "71%", "3.2%", "0.04%"]
    assert [humanize.say_difference(share) for share in (None, 0.48, -0.03, 2.0, 11.3)] == [
        "",
        "+48%",
        "-3%",
        "x3.0",
        "x12",
    ]
