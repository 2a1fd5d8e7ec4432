"""The cost of guidance: the built-in digits model runs with and without it, and its denoiser passes are counted."""

import statistics
import time
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ridgeline.learn.lab.experiment import Experiment, ExperimentOutcome
from ridgeline.media.diffusion.diffusion_request import DiffusionRequest
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.util.document.elements import DocumentTable, TableRow, columns
from ridgeline.util.document.panels import Band, Panel, Panels

PROMPT, STEPS, SEED, ROUNDS = "a handwritten seven", 20, 7, 3
SCALES = (0.0, 3.0)
"""The guidance scales in the convention of this pipeline, in which 0 is no guidance."""
SHOWN = (1, 5, 9, 13, 16, 20)
"""The denoising steps after which the experiment shows the model's guess of the finished image."""


@dataclass(frozen=True, slots=True)
class GuidedDrawing:
    """The generation of one image: denoiser passes, seconds, and predictions of the image after some steps."""

    passes: int
    """The number of denoiser passes for an image; several passes in one call count separately."""
    seconds: float
    """The median seconds of all denoising steps of an image."""
    guesses: dict[int, Tensor]
    """The predictions of the finished image, [H, W] from 0 to 1, keyed by the step after which the model made them."""


def draw(pipeline: Pipeline, scale: float, steps: int) -> GuidedDrawing:
    """Generate the same image several times, and count passes and seconds."""
    passes, seconds, guesses = 0, [], {}

    def count(_: Any, inputs: tuple[Tensor, ...], __: Tensor) -> None:
        nonlocal passes
        passes += len(inputs[0])  # the input has one noise level for each pass in the call

    plan = pipeline.plan(DiffusionRequest(PROMPT, steps=steps, guidance=scale, seed=SEED))
    texts = pipeline.encode(plan)
    handle = pipeline.denoiser.get_submodule("t_embedder").register_forward_hook(count)
    try:
        for _ in range(ROUNDS):
            start = time.perf_counter()
            taken = list(pipeline.denoise(plan, texts))
            seconds.append(time.perf_counter() - start)
    finally:
        handle.remove()
    for step in taken:
        if step.number in SHOWN:
            pixels_HW = pipeline.decode(step.predicted_latents)[0, 0]
            guesses[step.number] = (pixels_HW / 2 + 0.5).clamp(0, 1)
    return GuidedDrawing(passes // ROUNDS, statistics.median(seconds), guesses)


def run() -> ExperimentOutcome:
    """Run the experiment with guidance, without guidance, and with fewer steps."""
    pipeline = load_pipeline("digits", threads=1)
    plain, guided = (draw(pipeline, scale, STEPS) for scale in SCALES)
    few = draw(pipeline, SCALES[1], 8)
    apart = float((plain.guesses[STEPS] - guided.guesses[STEPS]).abs().mean())
    rows = [
        TableRow((name, f"{one.passes}", f"{one.seconds:.2f} s"))
        for name, one in {"no guidance": plain, "guidance 3": guided, "guidance 3, 8 steps": few}.items()
    ]
    return ExperimentOutcome(
        (
            (plain.passes == STEPS and guided.passes == 2 * STEPS, f"{plain.passes} and {guided.passes} passes"),
            (few.passes == 16, f"{few.passes} passes, {1 - few.passes / guided.passes:.0%} fewer"),
            (apart > 0.005, f"pixels differ by {apart:.3f} on average, on a scale from 0 to 1"),
        ),
        (
            DocumentTable(columns(f"{STEPS} steps", "passes", "seconds"), tuple(rows)),
            Panels(
                f"{PROMPT.capitalize()}: the finished image as predicted after each step",
                (_band("Without guidance", plain), _band("With guidance 3", guided)),
            ),
        ),
        {"passes": {"plain": plain.passes, "guided": guided.passes, "few": few.passes}},
    )


def _band(title: str, one: GuidedDrawing) -> Band:
    panels = (
        Panel(f"step {number}", tuple(map(tuple, guess.tolist())), light=True) for number, guess in one.guesses.items()
    )
    return Band(title, tuple(panels), "")


EXPERIMENT = Experiment(
    "guidance",
    "How many denoiser passes does guidance cost?",
    (
        f"{STEPS} steps take {STEPS} passes of the denoiser, and twice as many with guidance.",
        "Eight steps with guidance take 16 passes.",
        "Guidance makes another image from the same noise.",
    ),
    run,
)
