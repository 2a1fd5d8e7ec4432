"""An op's kernels are its cost, divided, and what they do beside it: nothing is lost and nothing is priced twice, in
any mixture of a step."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import replace

import pytest

from ridgeline.backends import priced_backend
from ridgeline.backends.cpu import cpu_launches
from ridgeline.backends.cpu.cpu_coverage import attends
from ridgeline.backends.cpu.recorded_steps import records
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import build
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.backend import REFERENCE
from ridgeline.core.ops.cost import SOFTCAP_FLOPS, Cost
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.linear import MatrixOp
from ridgeline.core.ops.number_formats import INT8, NVFP4
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.router import ExpertRouter
from ridgeline.core.ops.work import TOKENS, StepSegment, Work
from ridgeline.price.device import Cache, Device, Efficiency, HostTime
from ridgeline.price.op_time import op_seconds
from ridgeline.price.price import Price, traced_calls
from ridgeline.price.slowdown import Slowdown
from support.wall_models import wall_model

CPU = priced_backend("cpu")

STEPS = {
    "decode": [(1, 9), (1, 70)],
    "prefill": [(16, 16), (5, 40)],
    "mixed": [(1, 9), (7, 7), (1, 300), (30, 90)],
}
MODELS = ("qwen3-0.6b", "gpt2", "mistral-7b-v0.3", "qwen3-30b-a3b")


def work_of(model: Model, step: Sequence[tuple[int, int]]) -> Work:
    return Work.of([StepSegment(q, kv) for q, kv in step], model.attention_patterns)


def of_rows(op: Op, rows: int) -> tuple[Launch, ...]:
    """Our kernel calls of an op over so many tokens, on a processor."""
    return CPU.launches(op, Work({TOKENS: rows}, 1), TOKENS)


def lane_sums(op: Op, rows: int) -> float:
    """What our products do beside the cost: three instructions for each output and 1,024 inputs of it, of 64 FLOPs in
    bf16 and 32 in fp32."""
    if not isinstance(op, MatrixOp) or any(own.operands is None for own in op.matrices):
        return 0.0
    return sum(
        rows * own.outputs * math.ceil(own.inputs / 1024) * 3 * {2: 64.0, 4: 32.0}[own.spec.dtype.itemsize]
        for own in op.matrices
    )


def rest_of_tiles(op: Op, rows: int) -> float:
    """Return the FLOPs of tiles over rows that do not exist: a tile has 16, and up to four rows have a tile each."""
    if not isinstance(op, MatrixOp) or any(own.operands is None or own.spec.dtype.itemsize != 2 for own in op.matrices):
        return lane_sums(op, rows)
    computed = 16 * rows if rows <= 4 else 16 * math.ceil(rows / 16)
    return sum(2.0 * (computed - rows) * own.outputs * own.inputs for own in op.matrices)


def block_rest(op: Op, work: Work) -> float:
    """FLOPs of our attention over keys that a query does not see, and of what it takes for itself: as of 48 keys."""
    if not isinstance(op, Attention) or not attends(op):
        return 0.0
    each = 2.0 * (op.spec.k_dim + op.value_dim) + (SOFTCAP_FLOPS if op.softcap is not None else 0)
    return 48 * work.attention[op.attention_pattern].total.queries * op.heads * each


@pytest.fixture(autouse=True, params=[False, True], ids=["lanes", "tiles"])
def tiles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Price steps without and with AMX tiles, whatever this processor has."""
    monkeypatch.setattr(cpu_launches, "multiplies_tiles", lambda: request.param)
    return bool(request.param)


@pytest.mark.parametrize("natively", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("name", MODELS)
def test_kernels_add_up_to_the_cost(name: str, step: str, natively: bool, tiles: bool) -> None:
    model = build(read_config(name))
    work = work_of(model, STEPS[step])
    count = 0
    for _, op, space in traced_calls(model):
        kernels, cost = (CPU if natively else REFERENCE).launches(op, work, space), op.cost(work, space)
        total = sum((kernel.cost for kernel in kernels), Cost())
        rows = work.rows.get(space, 0)
        products = rest_of_tiles(op, rows) if tiles else lane_sums(op, rows)
        beside = products + block_rest(op, work) if natively else 0.0
        assert total.total_flops == pytest.approx(cost.total_flops + beside)
        assert total.memory_bytes == pytest.approx(cost.memory_bytes)
        # What one kernel hands to the next goes through memory; one that does all of a boundary keeps it.
        several = len({kernel.method for kernel in kernels}) > 1
        assert total.activation_bytes > cost.activation_bytes if several else True
        if not several and op.kind != "attention":
            assert total.activation_bytes == cost.activation_bytes
        assert {kernel.method for kernel in kernels} <= {*op.parts, "forward"}
        count += 1
    assert count > 10


def test_ours_are_fewer_and_classes_of_their_own(tiles: bool) -> None:
    """One for all matrices of the same rows, one for a boundary, one attention for whoever asks; what torch computes,
    rows stored the other way say, is torch's there too."""
    model = build(read_config("qwen3-0.6b"))
    names = {}
    for label, step in (*STEPS.items(), ("sixteen", [(1, 9)] * 16), ("alone", [(1, 9)]), ("five", [(1, 9)] * 5)):
        work = work_of(model, step)
        calls = [(op, CPU.launches(op, work, space)) for _, op, space in traced_calls(model)]
        assert {len(kernels) for op, kernels in calls if op.kind == "attention"} == {2}
        assert {len(kernels) for op, kernels in calls if op.kind != "attention"} == {1}
        assert {kernel.calls for _, kernels in calls for kernel in kernels} == {1}
        names[label] = {kernel.name for _, kernels in calls for kernel in kernels}
    everywhere = {"attention.paged.128", "elementwise.rotate.128", "elementwise.angles", "embedding", "norm.rms"}
    assert names["alone"] - everywhere == {"linear.one", "head.one"}
    assert names["five"] - everywhere == {"linear.few", "head.few"}
    two = "diagonal" if tiles else "two"
    assert names["decode"] - everywhere == {f"linear.{two}", f"head.{two}"}
    assert names["sixteen"] - everywhere == {"linear.many", "head.many"}
    assert names["mixed"] - everywhere == {"linear.many", "head.diagonal" if tiles else "head.few"}
    other = build(read_config("gpt2"))
    work = work_of(other, STEPS["decode"])
    found = {k.name for _, op, space in traced_calls(other) for k in CPU.launches(op, work, space)}
    assert {"attention.paged.64", "linear.matrix.transposed", "norm.layer", "elementwise.plain", "head.two"} <= found


def test_a_recorded_step_is_priced_as_one() -> None:
    """Its launches are those of a recording, and nothing lies between its ops; a step that is not recorded, or a card
    that does not run our kernels, has none of that."""
    price = Price(build(read_config("qwen3-0.6b")))
    constants = {"default": Efficiency(1.0, 1.0, 1.0, recorded=0.01)}
    card = device(efficiency=constants, host=HostTime(0.0, 10.0, 0.0, 0.0, 0.0, asked=5.0), native=True)
    torch = dataclasses.replace(card, native=False)
    calls = len(price.calls)
    attends = sum(priced.count for priced in price.ops if priced.op.kind == "attention")

    def expected(on: Device, *segments: StepSegment) -> float:
        return price.price_step(on, Work.of(segments, price.reaches)).expected

    one, chunk = StepSegment(1, 40), StepSegment(2, 40)
    assert expected(card, one) == pytest.approx((calls + attends) * 0.01, rel=0.05)
    assert expected(card, *[one] * 64) == pytest.approx((calls + attends) * 0.01, rel=0.1)
    asked = (calls + attends) + 10 * calls + 5
    for step in ([one] * 65, [one, chunk], [chunk]):
        assert expected(card, *step) == pytest.approx(asked, rel=0.01)
    for queries, recorded in ((2, True), (64, True), (65, False)):  # of a sequence, a guess or more among them
        guessing = Work.of([StepSegment(queries, 80)], price.reaches, queries)
        assert price.recorded(card, guessing) == recorded
        seconds = (calls + attends) * 0.01 if recorded else asked
        assert price.price_step(card, guessing).expected == pytest.approx(seconds, rel=0.1)
    assert expected(torch, one) > asked, "torch has kernels for the parts of a boundary"
    gpt2 = Price(build(read_config("gpt2")))
    assert not gpt2.recorded(card, Work.decode([40], gpt2.reaches))


def test_a_mixture_is_one_call_of_ours() -> None:
    """Of all its experts, of a class by the rows that each has, and by their codes; its router is a product. Experts in
    a format that does not run are torch's, a call each."""
    model = build(read_config("qwen3-30b-a3b"))
    (experts, *_), (router, *_) = ([op for _, op in model.ops() if isinstance(op, c)] for c in (Experts, ExpertRouter))
    for rows, name in ((1, "one"), (8, "one"), (64, "few"), (2048, "many")):
        (kernel,) = of_rows(experts, rows)
        assert (kernel.name, kernel.calls, kernel.cost) == (f"experts.{name}", 1, experts.cost_of(rows))
    assert [kernel.name for kernel in of_rows(router, 1)] == ["linear.one"]
    assert Price(model).recorded(device(native=True), Work.decode([40], model.attention_patterns))
    experts.set_weight_formats(dict.fromkeys(experts.specs, INT8))
    assert [kernel.name for kernel in of_rows(experts, 8)] == ["experts.one.int8"]
    assert records(model)
    experts.set_weight_formats(dict.fromkeys(experts.specs, NVFP4))
    assert of_rows(experts, 8) == experts.launches_of(8)
    assert not records(model)


def test_a_mixed_step_has_one_decode_call_and_a_call_for_each_longer_segment() -> None:
    model = build(read_config("qwen3-0.6b"))
    attention = next(op for _, op in model.ops() if op.kind == "attention")
    _, decode, few, prefill = attention.launches(work_of(model, STEPS["mixed"]))
    assert (decode.name, decode.calls) == ("attention.decode.128", 1)
    assert (few.name, few.calls) == ("attention.prefill.128.few", 1)
    assert (prefill.name, prefill.calls) == ("attention.prefill.128", 1)
    timed = Efficiency(1e-5, 0.5, 0.5)
    card = Device("x", "X", "cpu", {"bf16": 1e12}, 1e11, 1e10, efficiency={"attention.prefill.128/bf16": timed})
    assert card.efficiency_of(few.name, "bf16") is timed, "what nobody has timed is a prefill of such heads"
    only = attention.launches(work_of(model, STEPS["mixed"][0::2]))
    assert [kernel.name for kernel in only] == ["elementwise.rotate.128", "attention.decode.128"]
    assert decode.cost == only[1].cost


def device(**more: object) -> Device:
    return Device("t", "T", "cpu", {"fp32": 1e12, "bf16": 1e12}, 1e11, 1e10, **more)  # type: ignore[arg-type]


def test_a_machine_that_is_disturbed_takes_as_long_as_its_pace_says() -> None:
    """What a roof explains by the pace of the roof, the rest by that of launches; a machine that knows no other pace
    is itself."""
    own, pace = Efficiency(1e-6, 0.4, 0.7, blend=8.0, recorded=1e-7), Slowdown(1.5, 1.1, 1.2)
    quiet = device(efficiency={"default": own}, host=HostTime(1e-4, 1e-5, 2e-6, 3e-7, 4e-12, asked=5e-5, prompts=6e-5))
    slowed = replace(quiet, disturbed=pace).with_calibration_slowdown()
    found = slowed.efficiency["default"]
    for recorded in (False, True):
        launch = 2 * (1e-7 if recorded else 1e-6)
        for compute, memory in ((1e-3, 0.0), (0.0, 1e-3)):
            alone = own.seconds(2, compute, memory, recorded=recorded)
            seconds = launch * 1.5 + (alone - launch) * pace.factor_for(alone - launch, compute, memory)
            assert found.seconds(2, compute, memory, recorded=recorded) == pytest.approx(seconds)
    assert slowed.host is not None
    expected = HostTime(1.5e-4, 1.5e-5, 3e-6, 4.5e-7, 6e-12, asked=7.5e-5, prompts=9e-5)
    assert dataclasses.astuple(slowed.host) == pytest.approx(dataclasses.astuple(expected))
    assert "50%" in slowed.sources["disturbed"]
    assert slowed.with_calibration_slowdown() is slowed
    assert quiet.with_calibration_slowdown() is quiet


def test_the_most_particular_constants_are_used() -> None:
    constants = {
        "linear.vector/bf16": Efficiency(1, 1, 1),
        "linear.vector": Efficiency(2, 1, 1),
        "linear/bf16": Efficiency(3, 1, 1),
        "linear": Efficiency(4, 1, 1),
        "default": Efficiency(5, 1, 1),
    }
    card = device(efficiency=constants)
    asked = [("linear.vector", "bf16"), ("linear.vector", "fp32"), ("linear.matrix", "bf16"), ("linear", ""), ("x", "")]
    assert [card.efficiency_of(*kernel).launch for kernel in asked] == [1, 2, 3, 4, 5]


def test_further_calls_cost_their_share_of_a_launch() -> None:
    model = build(read_config("qwen3-0.6b"))
    attention = next(op for _, op in model.ops() if op.kind == "attention")
    work = Work.of([StepSegment(4, 4)] * 10, model.attention_patterns)
    kernels = attention.launches(work)
    cards = [device(efficiency={"default": Efficiency(2.0, 1.0, 1.0, again=again)}) for again in (0.0, 0.5, 1.0)]
    fused, warm, each = (op_seconds(attention.cost(work), kernels, card, 0).expected for card in cards)
    assert warm - fused == pytest.approx(9.0)
    assert each - fused == pytest.approx(18.0)


def test_the_blend_joins_the_roofs() -> None:
    seconds = {blend: Efficiency(0.5, 0.5, 0.25, blend=blend).seconds(2, 1.5, 1.0) for blend in (1.0, 2.0, 64.0)}
    assert seconds[1.0] == pytest.approx(1.0 + 3.0 + 4.0)
    assert seconds[2.0] == Efficiency(0.5, 0.5, 0.25).seconds(2, 1.5, 1.0) == pytest.approx(1.0 + 5.0)
    assert seconds[64.0] == pytest.approx(1.0 + 4.0)


def test_what_lies_between_ops_is_priced_where_it_is_known() -> None:
    price = Price(build(read_config("qwen3-0.6b")))
    work = Work.of([StepSegment(3, 3), StepSegment(1, 8)], price.reaches)
    cache = Cache("L3", 5e6, 2e11)
    plain = device(efficiency={"default": Efficiency(0, 1, 1)}, caches=(cache,))
    with_host = dataclasses.replace(plain, host=HostTime(1.0, 0.1, 0.01, 0.001, 1e-6))
    host = 1.0 + 0.1 * len(price.calls) + 0.01 * 2 + 0.001 * 4 + 1e-6 * 5e6
    assert price.price_step(with_host, work).host == pytest.approx(host)
    assert price.price_step(with_host, work).expected == pytest.approx(price.price_step(plain, work).expected + host)
    assert price.price_step(plain, work).host == 0


def test_ops_of_an_encoder_cost_the_host_nothing_where_it_does_not_run() -> None:
    """Those are in each of two layers norm, projections, attention, output, norm and the MLP's two, around them tokens,
    positions and a norm; and in each of the decoder's two layers the keys and values of the encoder."""
    price = Price(wall_model("encoder-decoder"))
    on = device(efficiency={"default": Efficiency(0, 1, 1)}, host=HostTime(0.0, 1.0, 0.0, 0.0, 0.0))
    encodes = price.price_step(on, Work.of([StepSegment(1, 4, 3, runs_encoder=True)], price.reaches)).host
    assert encodes == len(price.calls)
    assert price.price_step(on, Work.decode([4], price.reaches, [3])).host == encodes - 2 * 7 - 3 - 2
