"""The generation of images and videos by a command: messages, progress, previews and output files."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import typer
from torch import Tensor

from ridgeline.cli.console import counting_bar, loading_bar, say
from ridgeline.cli.diffusion_models import check_medium, open_media_source
from ridgeline.cli.diffusion_settings import DiffusionSettings, denoiser_dtype
from ridgeline.cli.image_files import MediaFile, check_files, numbered
from ridgeline.cli.image_forecast import measured_lines, plan_lines, request_json, skipped_line
from ridgeline.cli.interrupt import interruptible
from ridgeline.cli.options import device_at, device_named
from ridgeline.cli.process_setup import INTERRUPTED
from ridgeline.cli.text_request import read_prompt
from ridgeline.core.models.common.tiling import Tiling
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.engine.placement import synchronize
from ridgeline.insight.trace.interference import Interference
from ridgeline.media.diffusion.cfg_parallel import CFGParallelPair, check_divides
from ridgeline.media.diffusion.cfg_parallel_process import second_process
from ridgeline.media.diffusion.decoding import preview
from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.forecast import STAGES, Forecast, Forecaster
from ridgeline.media.diffusion.noise import check_draws
from ridgeline.media.diffusion.pipeline import DenoiseOutput, Pipeline, compile_blocks
from ridgeline.media.diffusion.pipeline_loader import load_pipeline
from ridgeline.util.document.humanize import say_seconds


def draw(
    model: str,
    prompt: str | None,
    request: DiffusionRequest,
    settings: DiffusionSettings,
    dtype: str | None,
    threads: int | None,
) -> None:
    """Generate the images or videos of a prompt.

    Args:
        model: The model.
        prompt: The prompt; None raises an error that explains what to give.
        request: The request without its prompt.
        settings: The output settings.
        dtype: The name of the denoiser's dtype, as `denoiser_dtype` accepts it.
        threads: The number of threads; None for a default.

    Raises:
        ValueError: If an option is invalid or a file cannot be written.
    """
    runs_in = denoiser_dtype(dtype)
    if prompt is None:
        raise ValueError("give a prompt (- reads standard input), or --latents with a file of saved latents")
    check_draws(request.seed or 0, request.images)
    request = replace(request, prompt=read_prompt(prompt))
    if settings.output is not None:
        check_files(numbered(settings.output, request.images), settings.medium, force=settings.force)
    source = open_media_source(model, settings.medium)
    check_medium(source, settings.medium)
    with loading_bar(model) as progress:
        pipeline = load_pipeline(source, runs_in, threads=threads, progress=progress, device=settings.place)
    _draw(pipeline, model, request, settings, runs_in)


def _draw(
    pipeline: Pipeline, model: str, request: DiffusionRequest, settings: DiffusionSettings, dtype: torch.dtype | None
) -> None:
    """Generate the images or videos of a request into files.

    Args:
        pipeline: The loaded pipeline.
        model: The name under which it was loaded.
        request: The request.
        settings: The output settings.
        dtype: The dtype with which it was loaded; None for the stored one.

    Raises:
        ValueError: If an option is invalid or a file cannot be written.
    """
    device = device_at(settings.place)
    forecaster = Forecaster(pipeline, device)
    plan = pipeline.plan(request, forecaster.call if device.calibrated else None)
    medium = settings.medium
    name = Path(f"{Path(pipeline.name).name}-{plan.seed}{medium.suffix}")
    paths = numbered(settings.output or name, request.images)
    if settings.output is None:
        check_files(paths, medium, force=settings.force)
    tiling = settings.tiling(pipeline.autoencoder, plan.geometry.latents)
    forecast = forecaster.forecast(plan, tiling)
    if settings.cfg_parallel:
        check_divides(plan.guidance)
        forecast = _apart(pipeline, plan, forecast)
    for line in plan_lines(pipeline, plan, forecast, tiling, apart=settings.cfg_parallel):
        say(line)
    files = [medium.make(path, pipeline.parameters(plan, image)) for image, path in enumerate(paths)]
    diffusion_run = _DiffusionRun(pipeline, model, plan, settings, tiling, files)
    if settings.cfg_parallel:
        with _halved_threads() as threads, second_process(model, dtype, threads, plan) as pair:
            diffusion_run.run(pair)
    else:
        diffusion_run.run()
    for line in measured_lines(forecast.seconds, diffusion_run.measured, forecast.device, diffusion_run.meanwhile):
        say(line)
    if request.step_cache is not None:
        say(skipped_line(plan, diffusion_run.skipped))
    if settings.as_json:
        own = request_json(pipeline, plan, forecast, diffusion_run.measured, diffusion_run.skipped)
        report: dict[str, Any] = {"files": [str(path) for path in paths], "cfg_parallel": settings.cfg_parallel}
        report["compile_seconds"] = diffusion_run.compiling
        print(json.dumps({**report, **own}))


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
        self,
        pipeline: Pipeline,
        model: str,
        plan: DiffusionPlan,
        settings: DiffusionSettings,
        tiling: Tiling | None,
        files: Sequence[MediaFile],
    ) -> None:
        self._pipeline, self._model, self._plan, self._settings = pipeline, model, plan, settings
        self._tiling, self._files = tiling, files
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
        if self._settings.compiled:
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
                say(f"the latents are saved in {file.latents}; decode them with: {self._how(file)}")
                raise
            self._written.append(file.path)
            if not self._settings.as_json:
                print(file.path, flush=True)
            if not self._settings.keep_latents:
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
        if self._settings.preview and step.number % self._settings.preview == 0:
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
                f"{self._how(files[0])}{' --force' if self._previewed else ''}"
            )
        say(f"stopped after step {done} of {self._plan.steps}; {'; '.join(message)}")
        raise typer.Exit(INTERRUPTED)

    def _how(self, file: MediaFile) -> str:
        return f"ridgeline {self._settings.medium.command} {self._model} --latents {file.latents}"

    @contextmanager
    def _clock(self, stage: str) -> Iterator[None]:
        with nullcontext() if self._settings.cfg_parallel else self.meanwhile.recording():
            start = perf_counter()
            try:
                yield
                synchronize(self._settings.place)
            finally:
                self.measured[stage] += perf_counter() - start


def _listed(paths: Sequence[Path]) -> str:
    """Return file names as text; of several the first and the last."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"
