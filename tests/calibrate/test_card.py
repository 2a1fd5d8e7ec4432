"""Calibrating a card, where there is none."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from ridgeline.backends.model_loader import prepare_on_gpu
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.work import StepSegment, Work
from ridgeline.insight.calibrate import gpu_calibration
from ridgeline.insight.calibrate.calibration import Calibration
from ridgeline.insight.calibrate.fit import FittedConstants
from ridgeline.insight.calibrate.gpu_calibration import HostStep, calibrate_gpu, fit_gpu_host
from ridgeline.insight.calibrate.roofs import MemoryStream
from ridgeline.insight.calibrate.timer import Timer
from ridgeline.insight.calibrate.trials import TRIALS, Trial, decode, prefill
from ridgeline.price.device import Efficiency
from ridgeline.price.op_time import host_seconds
from ridgeline.price.price import Price
from support.cards import events_of_the_processor


class TinyTrial(Trial):
    """A trial whose model is settled as on a card."""

    def model(self, dtype: torch.dtype, device: torch.device) -> Model:
        model = super().model(dtype, device)
        prepare_on_gpu(model, device)
        return model


def test_a_calibration_of_a_card_prices_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every op of the trials is timed, every class that a step has is fitted, and a file holds it all."""
    events_of_the_processor(monkeypatch)
    properties = SimpleNamespace(name="a card", total_memory=80e9)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    read = [MemoryStream(1 << 20, 5e9, 6e9), MemoryStream(1 << 28, 3e9, 4e9), MemoryStream(1 << 29, 3e9, 4e9)]
    monkeypatch.setattr(gpu_calibration, "streams", lambda *_: read)
    monkeypatch.setattr(gpu_calibration, "products", lambda *_: {"bf16": 1e11, "fp32": 5e10})
    tiny = TRIALS[0]
    trials = (TinyTrial("tiny", tiny.config, (decode(1, 40), decode(4, 20), prefill(16), prefill(64)), 1),)
    monkeypatch.setattr(gpu_calibration, "GPU_TRIALS", trials)
    monkeypatch.setattr(gpu_calibration, "HOST_TRIALS", trials)
    monkeypatch.setattr(gpu_calibration, "_DECODES", (1, 3))
    monkeypatch.setattr(gpu_calibration, "_PREFILLS", ((16,),))
    monkeypatch.setattr(gpu_calibration, "_TURNS", range(1, 3))
    said: list[str] = []
    made = calibrate_gpu(Timer(torch.device("cpu"), 1), lambda what, _: said.append(what), 1.0)
    assert said[-1] == "done"
    again = msgspec.convert(made.as_json(), Calibration)
    device = again.device()
    assert (device.kind, device.native, device.bandwidth) == ("gpu", True, 4e9)
    assert {"linear.one/bf16", "linear.few/bf16", "linear.many/bf16", "norm.rms/bf16"} <= device.efficiency.keys()
    assert device.host is not None
    assert device.host.ahead
    price = Price(trials[0].model(torch.bfloat16, torch.device("cpu")))
    assert price.backend_on(device).name == "cuda"
    decodes = Work.decode([20] * 4, price.reaches)
    prompts = {rows: Work.of([StepSegment(rows, rows)], price.reaches) for rows in (16, 17, 32, 4096)}
    assert all(price.recorded(device, step) for step in (decodes, prompts[17]))
    assert not price.recorded(device, prompts[4096])
    assert 0 < price.price_step(device, decodes).expected < 1
    # A step runs as many rows as its bucket has; it does not count as more work for that.
    shares = [
        sum(row.time.expected for row in price.price_step(device, prompts[rows]).rows[:3]) for rows in (16, 17, 32)
    ]
    assert shares[0] < shares[1] == shares[2]
    assert price.price_step(device, prompts[17]).cost == price.step(prompts[17])


def host_step(sequences: int, tokens: int, card_seconds: float, ops: int = 100, **more: Any) -> HostStep:
    """A step of a machine that takes 100 us, 2 us a sequence, 0.1 us a further position and 200 us where prompts run,
    and to ask 300 us for a step and 9 us for an op of it. A launch is 2 us of the card, `saved` of it less in a
    captured step."""
    recorded, launches = more.get("recorded", False), ops * 2e-6
    beside = 100e-6 + 2e-6 * sequences + 0.1e-6 * (tokens - sequences) + (200e-6 if tokens > sequences else 0.0)
    on_card = card_seconds - more.get("saved", 0.0) * launches
    whole = beside + (on_card if recorded else max(card_seconds, 300e-6 + ops * 9e-6))
    work = Work({"tokens": tokens, "logits": sequences}, sequences)
    return HostStep(work, whole, card_seconds, launches, ops, recorded)


@pytest.mark.parametrize("saved", [0.0, 0.6])
def test_what_the_host_takes_is_found_again(saved: float) -> None:
    """Of captured steps, of steps that wait for the host, and of one that takes the card longer than the host."""
    steps = [host_step(n, n, 0.001, recorded=True, saved=saved) for n in (1, 8, 64)]
    steps += [host_step(1, 1, 0.002, ops=300, recorded=True, saved=saved)]
    steps += [host_step(1, n, 0.001, recorded=True, saved=saved) for n in (16, 500)]
    steps += [host_step(1, 16, 0.0001), host_step(4, 64, 0.0002, ops=300), host_step(1, 4000, 0.02)]
    steps += [host_step(1, 32, 0.0009)]  # waits for the host, if not for long
    found = fit_gpu_host(steps)
    host, error = found.host, found.error
    assert found.saved == pytest.approx(saved, abs=1e-3)
    assert host.step == pytest.approx(100e-6, rel=1e-3)
    assert host.op == pytest.approx(9e-6, rel=1e-2)
    assert host.asked == pytest.approx(300e-6, rel=1e-2)
    assert host.token == pytest.approx(0.1e-6, rel=1e-2)
    assert host.prompts == pytest.approx(200e-6, rel=1e-2)
    assert error < 1e-3


def test_a_captured_step_saves_no_more_than_its_launches() -> None:
    """Where steps are faster than what is left without any launch, launches take nothing."""
    steps = [host_step(n, n, 0.001, ops=ops, recorded=True, saved=1.5) for n in (1, 8, 64) for ops in (20, 100)]
    found = fit_gpu_host(steps)
    assert found.saved == 1
    one = found.captured(FittedConstants(Efficiency(2e-6, 0.5, 0.5), (0.0,)))
    assert (one.efficiency.launch, one.efficiency.recorded) == (2e-6, 0)


def test_asking_is_hidden_by_what_runs() -> None:
    """On a card only what takes the host longer than the card counts."""
    from dataclasses import replace

    from ridgeline.core.ops.cost import NO_COST
    from ridgeline.price.device import HostTime
    from ridgeline.price.devices import load_device

    host = HostTime(1e-4, 1e-5, 0.0, 0.0, 0.0, ahead=True)
    device = replace(load_device("h100-sxm"), host=host)
    work = Work({"tokens": 16, "logits": 1}, 1)
    assert host_seconds(work, NO_COST, 100, device, device_seconds=0.0) == pytest.approx(1.1e-3)
    assert host_seconds(work, NO_COST, 100, device, device_seconds=4e-4) == pytest.approx(7e-4)
    assert host_seconds(work, NO_COST, 100, device, device_seconds=5e-3) == pytest.approx(1e-4)
    assert host_seconds(work, NO_COST, 100, device, recorded=True, device_seconds=0.0) == pytest.approx(1e-4)
