"""Drawing for a command: what is said, shown and written while pictures come about."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from ridgeline.cli.drawing_models import check_medium, open_drawing
from ridgeline.cli.image_files import PICTURES, DrawnFile, Medium, check_drawn, check_files, numbered
from ridgeline.cli.image_forecast import measured_lines, plan_lines, request_json, skipped_line
from ridgeline.cli.interrupt import interruptible
from ridgeline.cli.options import device_named
from ridgeline.cli.process import INTERRUPTED
from ridgeline.cli.request import read_prompt
from ridgeline.cli.terminal import err, loading_bar, say
from ridgeline.diffusion.clip_autoencoder import ClipAutoencoder
from ridgeline.diffusion.compiled import compile_blocks
from ridgeline.diffusion.decoding import choose_tiling, decode_parts, preview, tiles_of
from ridgeline.diffusion.forecast import STAGES, Forecast, Forecaster
from ridgeline.diffusion.loading import load_pipeline, load_vae
from ridgeline.diffusion.noise import check_draws
from ridgeline.diffusion.pair import Pair, check_divides
from ridgeline.diffusion.pair_process import second_process
from ridgeline.diffusion.pipeline import Pipeline, Step
from ridgeline.diffusion.request import Plan, Request
from ridgeline.diffusion.saved_latents import drawn_path, read_latents
from ridgeline.document.numbers import say_seconds
from ridgeline.host import available_memory, total_memory
from ridgeline.models.autoencoder_kl import AutoencoderKL
from ridgeline.models.tiling import Tiling
from ridgeline.ops.grid import Grid
from ridgeline.trace.doubt import Meanwhile

AUTO, OFF = "auto", "off"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""What a denoiser may be asked to run in, by name."""


@dataclass(frozen=True, slots=True)
class Asked:
    """How pictures or clips are to be drawn, decoded, shown and written. preview: steps between two, 0 for none. tile:
    auto, off, or latents on a side, of pictures. cfg_parallel: the passes of guided steps on two processes.
    compiled: the denoiser's blocks by torch, first."""

    output: Path | None
    force: bool
    tile: str
    keep_latents: bool
    preview: int
    cfg_parallel: bool
    compiled: bool
    as_json: bool
    medium: Medium = PICTURES

    def __post_init__(self) -> None:
        if self.compiled and self.cfg_parallel:
            raise ValueError("--compile is for one process; leave it out, or --cfg-parallel")
        if self.preview < 0:
            raise ValueError(f"--preview is {self.preview}; give the steps between two, 1 or more")
        if self.tile not in (AUTO, OFF) and not (self.tile.isdecimal() and 1 <= int(self.tile) <= 1 << 16):
            raise ValueError(f"--tile is {self.tile!r}; give auto, off, or latents on a side, as 64")

    def tiling(self, autoencoder: AutoencoderKL | ClipAutoencoder, latents: Sequence[int]) -> Tiling | None:
        """How latents of this shape are decoded; those of a clip are, frame by frame, whole. Raises ValueError where
        there is no memory for any way."""
        if self.tile == OFF:
            return None
        assert isinstance(autoencoder, AutoencoderKL), "clips are not decoded in tiles"
        grid = Grid(1, *latents[-2:])
        return choose_tiling(autoencoder, grid, _free()) if self.tile == AUTO else tiles_of(int(self.tile))


def _free() -> float:
    try:
        return available_memory()
    except ValueError:  # this system does not say what is free, but what it has
        return total_memory()


def refuse_drawn(given: Mapping[str, object], request: Request, asked: Asked) -> None:
    """Refuse, where latents are only decoded, what is for what is drawn. given: options by name, None for none. Raises
    ValueError."""
    drawn = {
        **given,
        "--negative": request.negative,
        "--size": request.size,
        "--frames": request.frames,
        "--steps": request.steps,
        "--guidance": request.guidance,
        "--second-guidance": request.second_guidance,
        "--step-cache": request.step_cache,
        "--seed": request.seed,
        "--n": request.images if request.images != 1 else None,
        "--keep-latents": asked.keep_latents or None,
        "--cfg-parallel": asked.cfg_parallel or None,
        "--compile": asked.compiled or None,
    }
    if stated := [name for name, value in drawn.items() if value is not None]:
        raise ValueError(f"{stated[0]} is for what is drawn; with --latents nothing is: leave it out")


def draw(
    model: str, prompt: str | None, request: Request, asked: Asked, dtype: str | None, threads: int | None
) -> None:
    """Draw a prompt's pictures or clips. request: all of it but the prompt. dtype: one of DTYPES. Raises ValueError."""
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"--dtype is {dtype!r}; give {' or '.join(DTYPES)}")
    if prompt is None:
        raise ValueError("give a prompt (- reads standard input), or --latents with a file of saved latents")
    check_draws(request.seed or 0, request.images)
    request = replace(request, prompt=read_prompt(prompt))
    if asked.output is not None:
        check_files(numbered(asked.output, request.images), asked.medium, force=asked.force)
    source = open_drawing(model, asked.medium)
    check_medium(source, asked.medium)
    with loading_bar(model) as progress:
        pipeline = load_pipeline(source, DTYPES.get(dtype or ""), threads=threads, progress=progress)
    _draw(pipeline, model, request, asked, DTYPES.get(dtype or ""))


def _draw(pipeline: Pipeline, model: str, request: Request, asked: Asked, dtype: torch.dtype | None) -> None:
    """Draw a request's pictures or clips into files. model, dtype: as it was loaded. Raises ValueError."""
    device = device_named("this", torch.get_num_threads())
    forecaster = Forecaster(pipeline, device)
    plan = pipeline.plan(request, forecaster.call if device.calibrated else None)
    medium = asked.medium
    name = Path(f"{Path(pipeline.name).name}-{plan.seed}{medium.suffix}")
    paths = numbered(asked.output or name, request.images)
    if asked.output is None:
        check_files(paths, medium, force=asked.force)
    tiling = asked.tiling(pipeline.autoencoder, plan.geometry.latents)
    forecast = forecaster.forecast(plan, tiling)
    if asked.cfg_parallel:
        check_divides(plan.guidance)
        forecast = _apart(pipeline, plan, forecast)
    for line in plan_lines(pipeline, plan, forecast, tiling, apart=asked.cfg_parallel):
        say(line)
    files = [medium.make(path, pipeline.parameters(plan, image)) for image, path in enumerate(paths)]
    drawing = _Drawing(pipeline, model, plan, asked, tiling, files)
    if asked.cfg_parallel:
        with _halved_threads() as threads, second_process(model, dtype, threads, plan) as pair:
            drawing.run(pair)
    else:
        drawing.run()
    for line in measured_lines(forecast.seconds, drawing.measured, forecast.device, drawing.meanwhile):
        say(line)
    if request.step_cache is not None:
        say(skipped_line(plan, drawing.skipped))
    if asked.as_json:
        own = request_json(pipeline, plan, forecast, drawing.measured, drawing.skipped)
        told: dict[str, Any] = {"files": [str(path) for path in paths], "cfg_parallel": asked.cfg_parallel}
        told["compile_seconds"] = drawing.compiling
        print(json.dumps({**told, **own}))


def _apart(pipeline: Pipeline, plan: Plan, forecast: Forecast) -> Forecast:
    """The same on two processes, each with half of the threads."""
    with _halved_threads() as threads:
        half = Forecaster(pipeline, device_named("this", threads))
    return replace(forecast, seconds={**forecast.seconds, "denoise": half.apart(plan)})


@contextmanager
def _halved_threads() -> Iterator[int]:
    """While it lasts, torch has half of the threads that it had, or one."""
    before = torch.get_num_threads()
    torch.set_num_threads(max(1, before // 2))
    try:
        yield torch.get_num_threads()
    finally:
        torch.set_num_threads(before)


class _Drawing:
    """A plan under way. measured: seconds of each stage so far. skipped: passes that ran the first block alone.
    compiling: seconds that blocks were compiled for; None where they are not. meanwhile: what else happened, where this
    thread did not wait for another process."""

    def __init__(
        self,
        pipeline: Pipeline,
        model: str,
        plan: Plan,
        asked: Asked,
        tiling: Tiling | None,
        files: Sequence[DrawnFile],
    ) -> None:
        self._pipeline, self._model, self._plan, self._asked = pipeline, model, plan, asked
        self._tiling, self._files = tiling, files
        self.measured, self.skipped = dict.fromkeys(STAGES, 0.0), 0
        self.compiling: float | None = None
        self.meanwhile = Meanwhile()
        self._written: list[Path] = []
        self._previewed = 0  # the step that files of the group under way show; 0 for none

    def run(self, pair: Pair | None = None) -> None:
        """All of it. pair: as of `Pipeline.denoise`. Raises typer.Exit where somebody has stopped it."""
        with self._clock("encode"):
            texts = self._pipeline.encode(self._plan)
        if self._asked.compiled:
            start = perf_counter()
            blocks = compile_blocks(self._pipeline, self._plan, texts)
            self.compiling = perf_counter() - start
            say(f"compiled {blocks} blocks of the denoiser in {say_seconds(self.compiling)}, which is in no figure")
        steps, done = self._pipeline.denoise(self._plan, texts, pair), 0
        with interruptible() as interrupt, bar("step", self._plan.steps) as told:
            while (step := self._next(steps)) is not None:
                done += 1
                self.skipped += step.skipped
                told(done)
                if step.last:
                    self._finish(step)
                elif not interrupt.asked:
                    self._preview(step)
                if interrupt.asked and done < self._plan.steps:
                    self._stop(step, done)

    def _next(self, steps: Iterator[Step]) -> Step | None:
        with self._clock("denoise"):
            return next(steps, None)

    def _finish(self, step: Step) -> None:
        """Save the latents of a group, then decode and write its pictures, then let go of the latents."""
        self._previewed = 0
        files = [self._files[image] for image in step.images]
        for file, latents in zip(files, step.latents, strict=True):
            file.save_latents(latents)
        for file, latents in zip(files, step.latents, strict=True):
            try:
                file.write(self._decoded(latents))
            except BaseException:  # an interrupt too
                say(f"{file.latents} keeps what was drawn: {self._how(file)} decodes it")
                raise
            self._written.append(file.path)
            if not self._asked.as_json:
                print(file.path, flush=True)
            if not self._asked.keep_latents:
                file.latents.unlink()

    def _decoded(self, latents: Tensor) -> Iterator[Tensor]:
        """The parts of a picture or a clip, each decoded when it is asked for."""
        parts = self._pipeline.decode_parts(latents, self._tiling)
        while True:
            with self._clock("decode"):
                part = next(parts, None)
            if part is None:
                return
            yield part

    def _preview(self, step: Step) -> None:
        """Where one is due, write what the pictures of a group would become."""
        if self._asked.preview and step.number % self._asked.preview == 0:
            assert isinstance(self._pipeline.autoencoder, AutoencoderKL), "clips have no previews"
            pixels = preview(self._pipeline.autoencoder, step.guess)
            for image, each in zip(step.images, pixels, strict=True):
                self._files[image].write([each], preview=f"step {step.number} of {step.of}")
            self._previewed = step.number

    def _stop(self, step: Step, done: int) -> None:
        """Say what there is, in a line, and end."""
        said = [f"{_listed(self._written)} {'are' if len(self._written) > 1 else 'is'} drawn"] if self._written else []
        if not step.last:
            files = [self._files[image] for image in step.images]
            for file, guess in zip(files, step.guess, strict=True):
                file.save_latents(guess, stopped=f"step {step.number} of {step.of}")
            shown = f", whose step {self._previewed} {_listed([file.path for file in files])} shows"
            said.append(
                f"{_listed([file.latents for file in files])} keeps what would have come of the rest"
                f"{shown if self._previewed else ''}: {self._how(files[0])}{' --force' if self._previewed else ''} "
                "decodes it"
            )
        say(f"stopped after step {done} of {self._plan.steps}; {'; '.join(said)}")
        raise typer.Exit(INTERRUPTED)

    def _how(self, file: DrawnFile) -> str:
        return f"ridgeline {self._asked.medium.command} {self._model} --latents {file.latents}"

    @contextmanager
    def _clock(self, stage: str) -> Iterator[None]:
        with nullcontext() if self._asked.cfg_parallel else self.meanwhile.noted():
            start = perf_counter()
            try:
                yield
            finally:
                self.measured[stage] += perf_counter() - start


def decode_saved(model: str, latents: Sequence[Path], asked: Asked, threads: int | None) -> None:
    """Decode files of latents into pictures or clips; the latents stay. Raises ValueError, before anything is decoded
    for files that hold none."""
    given, medium = [read_latents(path) for path in latents], asked.medium
    beside = [drawn_path(path, medium.suffix) for path in latents]
    paths = beside if asked.output is None else numbered(asked.output, len(latents))
    check_drawn(paths, medium, force=asked.force)
    source = open_drawing(model, medium)
    check_medium(source, medium)
    autoencoder = load_vae(source, threads=threads)
    wanted, dimensions = autoencoder.channels, 3 if medium is PICTURES else 4
    for path, (each, _) in zip(latents, given, strict=True):
        if each.dim() != dimensions:
            raise ValueError(f"{path} holds latents of {list(each.shape)}; this model's have {dimensions} dimensions")
        if each.shape[0] != wanted:
            raise ValueError(f"{path} holds latents of {each.shape[0]} channels, the model's have {wanted}")
    for path, (each, parameters) in zip(paths, given, strict=True):
        parts = decode_parts(autoencoder, each, asked.tiling(autoencoder, each.shape))
        medium.make(path, parameters).write(parts)
        if not asked.as_json:
            print(path, flush=True)
    if asked.as_json:
        print(json.dumps({"files": [str(path) for path in paths]}))


def _listed(paths: Sequence[Path]) -> str:
    """Names of files: the first and the last of many."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"


@contextmanager
def bar(what: str, count: int) -> Iterator[Callable[[int], None]]:
    """Yields what is told how many of so many are done; a bar with the time left where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    columns = (TextColumn(what), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as shown:
        task = shown.add_task(what, total=count)
        yield lambda done: shown.update(task, completed=done)
