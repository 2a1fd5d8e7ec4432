"""Fitting: constants that are known are found again, with noise, and where nothing says what they are."""

import dataclasses
import re

import numpy as np
import pytest

from ridgeline.cli.calibrate import calibrate as command
from ridgeline.core.ops.work import LOGITS, TOKENS, Work
from ridgeline.insight import calibrate
from ridgeline.insight.calibrate.fit import Observation, fit, fit_all
from ridgeline.insight.calibrate.overhead import StepOverhead, fit_host
from ridgeline.price.device import Efficiency, HostTime


def synthetic(true: Efficiency, noise: float = 0.0, *, same: bool = True) -> list[Observation]:
    """What kernels with these constants take in 14 steps of 6 kernels each, from launch-bound to deep under a roof; all
    of two calls, or of one to three."""
    random = np.random.default_rng(1)
    found = []
    for step in range(14):
        compute, memory = (10 ** random.uniform(-9, -3 - step % 4, 6) for _ in range(2))
        calls = 2.0 if same else float(1 + step % 3)
        seconds = sum(true.seconds(true.launches(calls), c, m) for c, m in zip(compute, memory, strict=True))
        seconds *= 1 + noise * random.uniform(-1, 1)
        found.append(Observation(f"step {step}", seconds, (calls,) * 6, tuple(compute), tuple(memory)))
    return found


@pytest.mark.parametrize("blend", [1.0, 2.0, 8.0])
@pytest.mark.parametrize("constants", [(30e-6, 0.7, 0.5), (200e-6, 0.2, 0.9), (0.0, 0.03, 1.0), (100e-6, 1.0, 0.01)])
def test_known_constants_are_found_again(constants: tuple[float, float, float], blend: float) -> None:
    true = Efficiency(*constants, again=1.0, blend=blend)
    found = fit(synthetic(true))
    assert abs(found.worst_error) < 0.02
    assert found.efficiency.blend == blend
    assert found.efficiency.launch == pytest.approx(true.launch, rel=0.15, abs=2e-6)
    assert found.efficiency.compute == pytest.approx(true.compute, rel=0.12)
    assert found.efficiency.memory == pytest.approx(true.memory, rel=0.12)


def test_a_launch_is_another_where_it_is_recorded() -> None:
    """The shares are those of all steps; where only one sort of step ran, its launch is all there is."""
    true = Efficiency(30e-6, 0.4, 0.7, again=1.0)
    steps = []
    for number, step in enumerate(synthetic(true)):
        recorded = number % 3 == 0
        saved = sum(step.calls) * (true.launch - 2e-6) if recorded else 0.0
        steps.append(dataclasses.replace(step, seconds=step.seconds - saved, recorded=recorded))
    found = fit(steps).efficiency
    assert found.launch == pytest.approx(true.launch, rel=0.05)
    assert found.recorded == pytest.approx(2e-6, rel=0.3, abs=2e-7)
    assert found.compute == pytest.approx(true.compute, rel=0.05)
    asked = [step for step in steps if not step.recorded]
    assert fit(asked).efficiency.recorded is None
    only = fit([step for step in steps if step.recorded]).efficiency
    assert only.launch == only.recorded


@pytest.mark.parametrize("again", [0.0, 0.2, 0.5, 1.0])
def test_what_a_further_call_costs_is_found_where_calls_differ(again: float) -> None:
    true = Efficiency(100e-6, 0.3, 0.6, again=again)
    found = fit(synthetic(true, same=False)).efficiency
    assert found.again == again
    assert found.launch == pytest.approx(true.launch, rel=0.1)


def test_noise_stays_noise() -> None:
    found = fit(synthetic(Efficiency(30e-6, 0.7, 0.5, again=1.0), noise=0.1))
    assert 0.01 < found.median_error < 0.1
    assert abs(found.worst_error) < 0.2


def test_shares_are_shares_whatever_was_measured() -> None:
    impossible = [Observation("x", 1e-6, (1.0,), (1e-3,), (1e-3,)), Observation("y", 2e-6, (1.0,), (2e-3,), (0.0,))]
    found = fit(impossible).efficiency
    assert found.compute == found.memory == 1.0
    assert found.launch == 0.0


def test_a_class_without_arithmetic_has_no_share_of_it() -> None:
    copies = [Observation(str(n), 5e-6 + n * 1e-6 / 0.4, (1.0,), (0.0,), (n * 1e-6,)) for n in range(1, 9)]
    found = fit(copies)
    assert found.efficiency.compute == 1.0
    assert found.efficiency.memory == pytest.approx(0.4, rel=0.02)


def test_classes_that_nobody_observed_have_a_general_one() -> None:
    slow, fast = synthetic(Efficiency(1e-3, 0.5, 0.5)), synthetic(Efficiency(1e-5, 0.5, 0.5))
    found = fit_all({("linear.vector", "bf16"): slow, ("linear.matrix", "bf16"): fast, ("norm", ""): fast})
    assert set(found) == {"linear.vector/bf16", "linear.matrix/bf16", "linear.vector", "linear.matrix", "linear",
                          "norm", "default"}  # fmt: skip
    assert len(found["linear"].errors) == 28
    assert len(found["default"].errors) == 42


def test_what_is_said_of_the_constants_counts_all_of_them() -> None:
    count = ["no", "one", "two", "three", "four", "five", "six"][len(dataclasses.fields(Efficiency))]
    for said in (calibrate.__doc__, command.__doc__):
        assert re.search(rf"\b{count}\s+constants", said or "")


def test_host_constants_are_found_again() -> None:
    true = HostTime(1e-3, 2e-5, 1e-4, 3e-6, 4e-11, asked=5e-4, prompts=7e-4)
    overheads = []
    for mib, (count, sequences, tokens) in enumerate(
        (
            (40, 1, 1),
            (90, 1, 1),
            (40, 4, 4),
            (40, 1, 64),
            (90, 16, 16),
            (90, 2, 300),
            (40, 8, 8),
            (90, 3, 3),
            (40, 1, 9),
        )
    ):
        nbytes, recorded = float(mib % 3 << 20), mib % 4 == 2
        work = Work({TOKENS: tokens, LOGITS: sequences}, sequences)
        seconds = true.step + true.sequence * sequences + true.token * tokens + true.byte * nbytes
        seconds += 0 if recorded else true.asked + true.op * count
        seconds += 0 if work.is_verify else true.prompts
        overheads.append(StepOverhead(work, count, nbytes, seconds, 10 * seconds, recorded))
    found, error = fit_host(overheads)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(true))
    assert error == pytest.approx(0.0, abs=1e-9)


def test_host_constants_are_never_negative() -> None:
    overheads = [StepOverhead(Work({TOKENS: n, LOGITS: 1}, 1), 50, 0.0, 1e-3 / n, 1e-2) for n in (1, 2, 4, 8)]
    found, _ = fit_host(overheads)
    assert min(getattr(found, name) for name in ("step", "op", "sequence", "token", "byte", "asked", "prompts")) >= 0
    assert found.token == 0
