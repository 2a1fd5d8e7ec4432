"""The generation of images and videos by a command: messages, progress, previews and output files."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import typer
from torch import Tensor

from ridgeline.cli.console import counting_bar, loading_bar, print_json, say
from ridgeline.cli.image_files import MediaFile, Medium, check_media_outputs, numbered
from ridgeline.cli.image_forecast import measured_lines, plan_lines, request_json, skipped_line
from ridgeline.cli.interrupt import interruptible
from ridgeline.cli.media_flags import MediaRunFlags
from ridgeline.cli.options import device_at, device_named
from ridgeline.cli.process_setup import INTERRUPTED
from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.engine.placement import synchronize
from ridgeline.insight.trace.interference import Interference
from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair, check_divides
from ridgeline.media.diffusion.cfg_parallel_process import second_process
from ridgeline.media.diffusion.decoding import preview
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.forecast import STAGES, Forecast, Forecaster
from ridgeline.media.diffusion.pipeline import DenoiseOutput, Pipeline, compile_blocks
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.util.document.humanize import say_seconds


def draw(source: ModelSource, medium: Medium, request: DiffusionRequest, run: MediaRunFlags) -> None:
    """Generate the images or videos of a request with a diffusion pipeline, into files.

    Raises:
        ValueError: If an option is invalid or a file cannot be written.
    """
    dtype = run.denoiser_dtype
    if run.output is not None:
        check_media_outputs(numbered(run.output, request.images), medium, force=run.force, latents=True)
    with loading_bar(source.name) as progress:
        pipeline = load_pipeline(source, dtype, threads=run.threads, progress=progress, device=run.place)
    device = device_at(run.place)
    forecaster = Forecaster(pipeline, device)
    plan = pipeline.plan(request, forecaster.call if device.calibrated else None)
    paths = numbered(run.output or Path(f"{Path(pipeline.name).name}-{plan.seed}{medium.suffix}"), request.images)
    check_media_outputs(paths, medium, force=run.force, latents=True)
    tiling = run.tiling(pipeline.autoencoder, plan.geometry.latents)
    forecast = forecaster.forecast(plan, tiling)
    if run.cfg_parallel:
        check_divides(plan.guidance)
        forecast = _apart(pipeline, plan, forecast)
    for line in plan_lines(pipeline, plan, forecast, tiling, apart=run.cfg_parallel):
        say(line)
    files = [medium.make(path, pipeline.parameters(plan, image)) for image, path in enumerate(paths)]
    diffusion_run = _DiffusionRun(
        pipeline, plan, run, tiling, files, f"ridgeline {medium.command} {source.name} --latents"
    )
    if run.cfg_parallel:
        with _halved_threads() as threads, second_process(source.name, dtype, threads, plan) as pair:
            diffusion_run.run(pair)
    else:
        diffusion_run.run()
    for line in measured_lines(forecast.seconds, diffusion_run.measured, forecast.device, diffusion_run.meanwhile):
        say(line)
    if request.step_cache is not None:
        say(skipped_line(plan, diffusion_run.skipped))
    if run.as_json:
        own = request_json(pipeline, plan, forecast, diffusion_run.measured, diffusion_run.skipped)
        report: dict[str, Any] = {"files": [str(path) for path in paths], "cfg_parallel": run.cfg_parallel}
        print_json({**report, "compile_seconds": diffusion_run.compiling, **own})


def _apart(pipeline: Pipeline, plan: DiffusionPlan, forecast: Forecast) -> Forecast:
    """Return the forecast for two processes that share the passes of a step, each with half of the threads."""
    with _halved_threads() as threads:
        half = Forecaster(pipeline, device_named("this", threads))
    return replace(forecast, seconds={**forecast.seconds, "denoise": half.cfg_parallel_seconds(plan)})


@contextmanager
def _halved_threads() -> Iterator[int]:
    """Halve torch's number of threads inside the context, to at least one."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // 2))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


class _DiffusionRun:
    """A running image or video generation, with its progress and measurements."""

    def __init__(
        self, pipeline: Pipeline, plan: DiffusionPlan, flags: MediaRunFlags, tiling: Tiling | None,
        files: Sequence[MediaFile], decode_command: str,
    ) -> None:  # fmt: skip
        """Store the settings of the run.

        Args:
            pipeline: Loaded pipeline.
            plan: Plan to run.
            flags: Options of the run.
            tiling: Tiling of the decoding; None for none.
            files: Output files.
            decode_command: Command that decodes saved latents, without their file.
        """
        self._pipeline, self._plan, self._flags, self._tiling = pipeline, plan, flags, tiling
        self._files, self._decode = files, decode_command
        self.measured, self.skipped = dict.fromkeys(STAGES, 0.0), 0
        self.compiling: float | None = None
        """The seconds that compiling the blocks took; None if they are not compiled."""
        self.meanwhile = Interference()
        """The interference by other processes; it is not recorded if a second process shares the passes of a step."""
        self._written: list[Path] = []
        self._previewed = 0  # the step of the current group's latest preview; 0 for none

    def run(self, pair: CFGParallelPair | None = None) -> None:
        """Generate the images or videos of the plan: encode the prompt, denoise, decode and write the files.

        Args:
            pair: The second process for guided steps, as in `Pipeline.denoise`; None for none.

        Raises:
            typer.Exit: If the user interrupted the command.
        """
        with self._clock("encode"):
            texts = self._pipeline.encode(self._plan)
        if self._flags.compiled:
            start = perf_counter()
            blocks = compile_blocks(self._pipeline, self._plan, texts)
            self.compiling = perf_counter() - start
            say(
                f"compiled {blocks} blocks of the denoiser in {say_seconds(self.compiling)}, which no other figure "
                "includes"
            )
        steps, done = self._pipeline.denoise(self._plan, texts, pair), 0
        with interruptible() as interrupt, counting_bar("step", self._plan.steps) as on_step:
            while (step := self._next(steps)) is not None:
                done += 1
                self.skipped += step.skipped
                on_step(done)
                if step.last:
                    self._finish(step)
                elif not interrupt.requested:
                    self._preview(step)
                if interrupt.requested and done < self._plan.steps:
                    self._stop(step, done)

    def _next(self, steps: Iterator[DenoiseOutput]) -> DenoiseOutput | None:
        with self._clock("denoise"):
            return next(steps, None)

    def _finish(self, step: DenoiseOutput) -> None:
        """Save the latents of a group, then decode and write its images or videos.

        The latents are deleted afterwards unless the user wants to keep them.
        """
        self._previewed = 0
        files = [self._files[image] for image in step.images]
        for file, latents in zip(files, step.latents, strict=True):
            file.save_latents(latents)
        for file, latents in zip(files, step.latents, strict=True):
            try:
                file.write(self._decoded(latents))
            except BaseException:  # including KeyboardInterrupt
                say(f"the latents are saved in {file.latents}; decode them with: {self._decode} {file.latents}")
                raise
            self._written.append(file.path)
            if not self._flags.as_json:
                print(file.path, flush=True)
            if not self._flags.keep_latents:
                file.latents.unlink()

    def _decoded(self, latents: Tensor) -> Iterator[Tensor]:
        """Yield the parts of an image or video, each decoded on demand."""
        parts = self._pipeline.decode_parts(latents, self._tiling)
        while True:
            with self._clock("decode"):
                part = next(parts, None)
            if part is None:
                return
            yield part

    def _preview(self, step: DenoiseOutput) -> None:
        """Write previews of a group's images if they are due."""
        if self._flags.preview and step.number % self._flags.preview == 0:
            assert isinstance(self._pipeline.autoencoder, AutoencoderKL), "videos have no previews"
            pixels = preview(self._pipeline.autoencoder, step.predicted_latents)
            for image, each in zip(step.images, pixels, strict=True):
                self._files[image].write([each], preview=f"step {step.number} of {step.total_steps}")
            self._previewed = step.number

    def _stop(self, step: DenoiseOutput, done: int) -> None:
        """Save the current estimate of an unfinished group as latents, report what exists, and exit."""
        message = (
            [f"{_listed(self._written)} {'are' if len(self._written) > 1 else 'is'} finished"] if self._written else []
        )
        if not step.last:
            files = [self._files[image] for image in step.images]
            for file, guess in zip(files, step.predicted_latents, strict=True):
                file.save_latents(guess, stopped=f"step {step.number} of {step.total_steps}")
            shown = f" (preview of step {self._previewed}: {_listed([file.path for file in files])})"
            message.append(
                "the latents of the unfinished rest are saved in "
                f"{_listed([file.latents for file in files])}{shown if self._previewed else ''}; decode them with: "
                f"{self._decode} {files[0].latents}{' --force' if self._previewed else ''}"
            )
        say(f"stopped after step {done} of {self._plan.steps}; {'; '.join(message)}")
        raise typer.Exit(INTERRUPTED)

    @contextmanager
    def _clock(self, stage: str) -> Iterator[None]:
        with nullcontext() if self._flags.cfg_parallel else self.meanwhile.recording():
            start = perf_counter()
            try:
                yield
                synchronize(self._flags.place)
            finally:
                self.measured[stage] += perf_counter() - start


def _listed(paths: Sequence[Path]) -> str:
    """Return file names as text; of several the first and the last."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
