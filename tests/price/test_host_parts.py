"""The parts of a step that belong to no op: what they cost, and that a price includes them."""

import dataclasses
from dataclasses import replace

import pytest

from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import build
from ridgeline.core.ops.work import LOGITS, TOKENS, StepSegment, Work
from ridgeline.price.device import Device, Efficiency, HostTime
from ridgeline.price.host_parts import HostParts, HostShares, PartTime, SamplingTime
from ridgeline.price.price import Price
from ridgeline.price.slowdown import Slowdown

VOCABULARY = 151_936
PARTS = HostParts(
    schedule=PartTime(1.0, 0.1, 0.01, 0.0, 4.0, 0.5),
    batch=PartTime(2.0, 0.2, 0.02, 8.0, 16.0, 0.3),
    sampling={"greedy": SamplingTime(1.0, 0.5, 1e-5), "top-p": SamplingTime(3.0, 0.7, 4e-5)},
)
REST = HostTime(100.0, 0.0, 7.0, 0.0, 0.0)


def device(host: HostTime | None) -> Device:
    """Return a processor whose kernels are perfect."""
    return Device("x", "x", "cpu", {"bf16": 1e14}, 1e12, 1e11, efficiency={"default": Efficiency(0, 1, 1)}, host=host)


@pytest.fixture(scope="module")
def price() -> Price:
    return Price(build(read_config("qwen3-0.6b")))


def test_a_part_costs_what_the_step_contains() -> None:
    decode, prompt = Work({TOKENS: 3, LOGITS: 3}, 3), Work({TOKENS: 40, LOGITS: 2}, 2)
    assert PARTS.batch.seconds(decode, 0, recorded=True) == pytest.approx(2 + 0.6 + 0.06)
    assert PARTS.batch.seconds(decode, 0, recorded=False) == pytest.approx(2 + 0.6 + 0.06 + 8)
    assert PARTS.batch.seconds(prompt, 2, recorded=False) == pytest.approx(2 + 0.4 + 0.8 + 8 + 16 + 0.6)


def test_sampling_costs_by_row_and_vocabulary_and_nothing_without_either() -> None:
    sampling = PARTS.sampling["top-p"]
    assert sampling.seconds(4, 50_000) == pytest.approx(3 + 4 * (0.7 + 2.0))
    assert sampling.seconds(0, 50_000) == sampling.seconds(4, 0) == 0


def test_a_price_includes_the_parts_and_tells_them_apart(price: Price) -> None:
    work = Work.of([StepSegment(3, 3), StepSegment(1, 8)], price.reaches)
    assert price.vocabulary == VOCABULARY
    before, after = (price.price_step(device(host), work) for host in (REST, replace(REST, parts=PARTS)))
    shares = price.host_shares(device(replace(REST, parts=PARTS)), work)
    schedule, batch = 1 + 0.2 + 0.04 + 4 + 0.5, 2 + 0.4 + 0.08 + 8 + 16 + 0.3
    greedy, drawn = 1 + 2 * (0.5 + 1e-5 * VOCABULARY), 3 + 2 * (0.7 + 4e-5 * VOCABULARY)
    assert shares is not None
    assert dataclasses.astuple(shares) == pytest.approx((schedule, batch, 114.0, greedy))
    assert shares.total == pytest.approx(after.host) == pytest.approx(before.host + schedule + batch + greedy)
    assert after.expected - after.host == pytest.approx(before.expected - before.host)
    other = price.host_shares(device(replace(REST, parts=PARTS)), work, "top-p")
    assert other is not None
    assert other == HostShares(shares.schedule, shares.batch, shares.between, pytest.approx(drawn))


def test_a_device_without_the_constants_has_no_shares(price: Price) -> None:
    work = Work.decode([8], price.reaches)
    assert price.host_shares(device(None), work) is None
    assert price.host_shares(device(REST), work) is None


def test_a_disturbed_machine_takes_longer_for_each_part() -> None:
    slowed = replace(REST, parts=PARTS).slowed_by(Slowdown(2.0, 1.0, 1.0))
    assert slowed.parts is not None
    assert slowed.parts.schedule == PartTime(2.0, 0.2, 0.02, 0.0, 8.0, 1.0)
    assert slowed.parts.batch == PartTime(4.0, 0.4, 0.04, 16.0, 32.0, 0.6)
    assert slowed.parts.sampling["top-p"] == SamplingTime(6.0, 1.4, 8e-5)
    assert REST.slowed_by(Slowdown(2.0, 1.0, 1.0)).parts is None
