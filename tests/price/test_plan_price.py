"""The fast path of Price: what it keeps between steps changes no figure."""

from collections.abc import Hashable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridgeline.core.ops.attention import Attention
from ridgeline.core.ops.cost import Cost
from ridgeline.core.ops.op import Launch, Op
from ridgeline.core.ops.work import CAUSAL, AttentionPattern, StepSegment, Work, sliding_window
from ridgeline.price import bounded_cache as module
from ridgeline.price.device import Device
from ridgeline.price.devices import load_device
from ridgeline.price.op_time import compute_seconds, floor_seconds, host_seconds, op_seconds
from ridgeline.price.price import Price, StepPrice
from support.planned import TINY, TINY_MIXTURE, TINY_SLIDING, card, case

CONFIGS = {"full": TINY, "sliding": TINY_SLIDING, "mixture": TINY_MIXTURE}
PRICES = {(name, n): case(config, devices=n).price for name, config in CONFIGS.items() for n in (1, 2)}
# One with caches, in which a small model lives, and kernels of many classes; one that fuses nothing.
DEVICES = (load_device("h100-sxm"), load_device("xeon-8480-plus"), card())

segments = st.lists(
    st.tuples(st.integers(1, 300), st.integers(0, 5000)).map(lambda p: StepSegment(p[0], p[0] + p[1])),
    min_size=1,
    max_size=9,
)


def slow(price: Price, device: Device, work: Work) -> StepPrice:
    """Every op evaluated anew: those that do not read the context first, as the sums are made."""
    order = sorted(price.ops, key=lambda priced: priced.op.reads_context)
    total = Cost()
    for priced in order:
        total += priced.cost(work) * priced.count
    nbytes = total.memory_bytes
    bound = expected = 0.0
    for priced in order:
        time = op_seconds(priced.cost(work), priced.launches(work), device, nbytes, price.devices)
        bound += time.bound * priced.count
        expected += time.expected * priced.count
    host = host_seconds(work, total, len(price.calls), device)
    return StepPrice(total, floor_seconds(total, device, nbytes), bound, expected + host, nbytes, (), host)


@settings(max_examples=150)
@given(st.sampled_from(sorted(PRICES)), st.sampled_from(DEVICES), segments, st.integers(0, 3))
def test_fast_equals_slow_exactly(key: tuple[str, int], device: Device, parts: list[StepSegment], more: int) -> None:
    price = PRICES[key]
    if price.devices > 1 and device.link is None:
        return
    work = Work.of(parts, price.reaches, len(parts) + more)
    fast, anew = price.price_step(device, work), slow(price, device, work)
    figures = ("cost", "floor", "bound", "expected", "working_set", "host")
    assert {name: getattr(fast, name) for name in figures} == {name: getattr(anew, name) for name in figures}
    assert price.step(work) == anew.cost


@given(st.sampled_from(sorted(PRICES)), segments)
def test_the_rows_are_the_sum(key: tuple[str, int], parts: list[StepSegment]) -> None:
    price = PRICES[key]
    step = price.price_step(DEVICES[0], Work.of(parts, price.reaches))
    assert [row.priced for row in step.rows] == list(price.ops)
    assert sum(row.cost.total_flops * row.priced.count for row in step.rows) == pytest.approx(step.cost.total_flops)
    assert sum(row.time.bound * row.priced.count for row in step.rows) == pytest.approx(step.bound)
    assert sum(row.time.expected * row.priced.count for row in step.rows) + step.host == pytest.approx(step.expected)


@given(
    st.lists(st.integers(1, 3000), min_size=1, max_size=40),
    st.sampled_from([(CAUSAL,), (CAUSAL, sliding_window(100)), (sliding_window(7),)]),
)
def test_decode_work_is_that_of_its_segments(contexts: list[int], reaches: tuple[AttentionPattern, ...]) -> None:
    assert Work.decode(contexts, reaches) == Work.of([StepSegment(1, n) for n in contexts], reaches)
    alike = Work.of([StepSegment(1, contexts[0])] * len(contexts), reaches)
    assert Work.decode(contexts[:1], reaches) * len(contexts) == alike


def test_only_attention_reads_the_context() -> None:
    for price in PRICES.values():
        assert all(priced.op.reads_context == isinstance(priced.op, Attention) for priced in price.ops)


def test_an_op_that_reads_the_context_without_saying_so_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Attention, "reads_context", False)
    price = case(TINY).price
    with pytest.raises(KeyError):
        price.step(Work.of([StepSegment(1, 10)]))


def test_what_is_kept_does_not_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_KEPT", 10)
    price: Any = case(TINY).price
    for tokens in range(1, 60):
        work = Work.of([StepSegment(tokens, tokens)])
        assert price.price_step(DEVICES[0], work).expected == slow(price, DEVICES[0], work).expected
        assert len(price._standing) <= 10
        assert len(price._times) <= 10


def test_devices_of_one_id_are_not_mixed_up() -> None:
    """A card made for one question and dropped may leave its id to the next one."""
    price, work = case(TINY).price, Work.of([StepSegment(1, 10)])
    seen: dict[Hashable, float] = {}
    for factor in range(1, 200):
        bound = price.price_step(card(bandwidth=factor * 1e12), work).bound
        assert bound == slow(price, card(bandwidth=factor * 1e12), work).bound
        seen[factor] = bound
    assert len(set(seen.values())) > 100


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("weights", ["fp8", "int4", "fp32"])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_model_in_other_formats_makes_the_same_calls(config: dict[str, Any], weights: str, devices: int) -> None:
    plain, model = case(config, devices=devices).price, case(config, devices=devices, weights=weights).model
    traced, reused = Price(model, devices), Price(model, devices, plain)
    assert reused.ops == traced.ops != plain.ops
    assert reused.calls == traced.calls


def test_every_op_of_a_model_is_priced() -> None:
    planned = case(TINY_MIXTURE)
    ops = [module for module in planned.model.modules() if isinstance(module, Op)]
    assert sum(priced.count for priced in planned.price.ops) == len(ops)


def test_formats_with_units_of_their_own_overlap_in_the_floor() -> None:
    """A second of matrices and half a second of norms could run at once: 1 s; the bound of two ops is 1.5 s."""
    matrices, norms = Cost(flops={"bf16": 312e12}), Cost(flops={"fp32": 9.75e12})
    assert floor_seconds(matrices + norms, card(), 0) == pytest.approx(1.0)
    ops = [op_seconds(c, (Launch("linear", n, 1, c),), card(), 0) for n, c in (("bf16", matrices), ("fp32", norms))]
    assert sum(op.bound for op in ops) == pytest.approx(1.5)
    assert compute_seconds(Cost(), card()) == 0
