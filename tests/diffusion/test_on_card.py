"""Pictures that are drawn on a card are those of the processor, but for rounding."""

from time import perf_counter

import torch

from ridgeline.insight.trace.denoise_step import run_to_step
from ridgeline.insight.trace.gpu_measurement import gpu_clock
from ridgeline.insight.trace.image_trace import trace_image
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.price.devices import load_device
from support.cards import needs_card


@needs_card
def test_pictures_of_a_card_are_the_processors() -> None:
    request = DiffusionRequest("a handwritten three", steps=4, seed=3)
    here = load_pipeline("digits-fast", threads=1).draw(request)
    there = load_pipeline("digits-fast", threads=1, device=torch.device("cuda")).draw(request)
    assert there.device.type == "cpu"
    difference = (there - here).abs()  # of -1 to 1, by a denoiser in bf16
    assert difference.max() < 0.15
    assert difference.mean() < 0.005


@needs_card
def test_a_step_of_a_picture_is_traced_on_a_card() -> None:
    """Every stage has ops that take time, together no more than the stage."""
    drawer = load_pipeline("digits", threads=1, device=torch.device("cuda"))
    moment = run_to_step(drawer, drawer.plan(DiffusionRequest("a handwritten three", steps=4, seed=3)), 2)
    ledger = trace_image(moment, load_device("h200"), repeats=3, clock=gpu_clock(perf_counter))
    assert {"encode", "denoise", "decode"} <= ledger.stages.keys()
    for stage in ledger.stages.values():
        for step in stage.steps:
            seconds = [entry.measured for entry in stage.entries(step.name)]
            assert min(seconds) > 0
            assert step.unhooked is not None
            assert sum(seconds) <= 1.05 * step.unhooked
