"""Drawing for a command: what is said, shown and written while pictures come about."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import torch
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import Tensor

from ridgeline.cli.image_files import PictureFile, check_files, check_pictures, numbered
from ridgeline.cli.image_forecast import STAGES, Forecaster, measured_lines, plan_lines, request_json
from ridgeline.cli.interrupt import interruptible
from ridgeline.cli.options import device_named
from ridgeline.cli.process import INTERRUPTED
from ridgeline.cli.terminal import err, say
from ridgeline.diffusion.decoding import choose_tiling, decode, preview, tiles_of
from ridgeline.diffusion.loading import load_vae
from ridgeline.diffusion.pipeline import Pipeline, Step
from ridgeline.diffusion.request import Plan, Request
from ridgeline.diffusion.saved_latents import picture_path, read_latents
from ridgeline.host import available_memory, total_memory
from ridgeline.models.autoencoder_kl import AutoencoderKL
from ridgeline.models.tiling import Tiling
from ridgeline.ops.grid import Grid

AUTO, OFF = "auto", "off"


@dataclass(frozen=True, slots=True)
class Asked:
    """How pictures are to be decoded, shown and written. preview: steps between two, 0 for none. tile: auto, off, or
    latents on a side."""

    output: Path | None
    force: bool
    tile: str
    keep_latents: bool
    preview: int
    as_json: bool

    def __post_init__(self) -> None:
        if self.preview < 0:
            raise ValueError(f"--preview is {self.preview}; give the steps between two, 1 or more")
        if self.tile not in (AUTO, OFF) and not (self.tile.isdecimal() and 1 <= int(self.tile) <= 1 << 16):
            raise ValueError(f"--tile is {self.tile!r}; give auto, off, or latents on a side, as 64")

    def tiling(self, autoencoder: AutoencoderKL, latents: Grid) -> Tiling | None:
        """How latents of a picture are decoded. Raises ValueError where there is no memory for any way."""
        if self.tile == OFF:
            return None
        return choose_tiling(autoencoder, latents, _free()) if self.tile == AUTO else tiles_of(int(self.tile))


def _free() -> float:
    try:
        return available_memory()
    except ValueError:  # this system does not say what is free, but what it has
        return total_memory()


def draw(pipeline: Pipeline, model: str, request: Request, asked: Asked) -> None:
    """Draw a request's pictures into files. model: as it was called, for what is said. Raises ValueError."""
    assert isinstance(pipeline.autoencoder, AutoencoderKL), "clips are drawn elsewhere"
    device = device_named("this", torch.get_num_threads())
    forecaster = Forecaster(pipeline, device)
    plan = pipeline.plan(request, forecaster.call if device.calibrated else None)
    paths = numbered(asked.output or Path(f"{Path(pipeline.name).name}-{plan.seed}.png"), request.images)
    if asked.output is None:
        check_files(paths, force=asked.force)
    height, width = plan.geometry.latents[-2:]
    tiling = asked.tiling(pipeline.autoencoder, Grid(1, height, width))
    forecast = forecaster.forecast(plan, tiling)
    for line in plan_lines(pipeline, plan, forecast, tiling):
        say(line)
    files = [PictureFile(path, pipeline.parameters(plan, image)) for image, path in enumerate(paths)]
    drawing = _Drawing(pipeline, model, plan, asked, tiling, files)
    drawing.run()
    for line in measured_lines(forecast, drawing.measured):
        say(line)
    if asked.as_json:
        own = request_json(pipeline, plan, forecast, drawing.measured)
        print(json.dumps({"files": [str(path) for path in paths], **own}))


class _Drawing:
    """A plan under way. measured: seconds of each stage so far."""

    def __init__(
        self,
        pipeline: Pipeline,
        model: str,
        plan: Plan,
        asked: Asked,
        tiling: Tiling | None,
        files: Sequence[PictureFile],
    ) -> None:
        self._pipeline, self._model, self._plan, self._asked = pipeline, model, plan, asked
        self._tiling, self._files = tiling, files
        self.measured = dict.fromkeys(STAGES, 0.0)
        self._written: list[Path] = []

    def run(self) -> None:
        """All of it. Raises typer.Exit where somebody has stopped it."""
        with self._clock("encode"):
            texts = self._pipeline.encode(self._plan)
        steps, done = self._pipeline.denoise(self._plan, texts), 0
        with interruptible() as interrupt, _bar(self._plan.steps) as told:
            while (step := self._next(steps)) is not None:
                done += 1
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
        files = [self._files[image] for image in step.images]
        for file, latents in zip(files, step.latents, strict=True):
            file.save_latents(latents)
        for file, latents in zip(files, step.latents, strict=True):
            try:
                with self._clock("decode"):
                    pixels = self._pipeline.decode(latents[None], self._tiling)[0]
                file.write(pixels)
            except BaseException:  # an interrupt too
                say(f"{file.latents} keeps what was drawn: {self._how(file)} decodes it")
                raise
            self._written.append(file.path)
            if not self._asked.as_json:
                print(file.path, flush=True)
            if not self._asked.keep_latents:
                file.latents.unlink()

    def _preview(self, step: Step) -> None:
        """Where one is due, write what the pictures of a group would become."""
        if self._asked.preview and step.number % self._asked.preview == 0:
            assert isinstance(self._pipeline.autoencoder, AutoencoderKL)
            pixels = preview(self._pipeline.autoencoder, step.guess)
            for image, each in zip(step.images, pixels, strict=True):
                self._files[image].write(each, preview=f"step {step.number} of {step.of}")

    def _stop(self, step: Step, done: int) -> None:
        """Say what there is, in a line, and end."""
        said = [f"{_listed(self._written)} {'are' if len(self._written) > 1 else 'is'} drawn"] if self._written else []
        if not step.last:
            files = [self._files[image] for image in step.images]
            for file, guess in zip(files, step.guess, strict=True):
                file.save_latents(guess, stopped=f"step {step.number} of {step.of}")
            said.append(
                f"{_listed([file.latents for file in files])} keeps what would have come of the rest: "
                f"{self._how(files[0])} decodes it"
            )
        say(f"stopped after step {done} of {self._plan.steps}; {'; '.join(said)}")
        raise typer.Exit(INTERRUPTED)

    def _how(self, file: PictureFile) -> str:
        return f"ridgeline image {self._model} --latents {file.latents}"

    @contextmanager
    def _clock(self, stage: str) -> Iterator[None]:
        start = perf_counter()
        try:
            yield
        finally:
            self.measured[stage] += perf_counter() - start


def decode_saved(model: str, latents: Sequence[Path], asked: Asked, threads: int | None) -> None:
    """Decode files of latents into pictures; the latents stay. Raises ValueError, before anything is decoded for
    files that hold none."""
    given = [read_latents(path) for path in latents]
    paths = numbered(asked.output, len(latents)) if asked.output is not None else list(map(picture_path, latents))
    check_pictures(paths, force=asked.force)
    autoencoder = load_vae(model, threads=threads)
    wanted = autoencoder.shape.latents
    for path, (each, _) in zip(latents, given, strict=True):
        if each.shape[0] != wanted:
            raise ValueError(f"{path} holds latents of {each.shape[0]} channels, the model's have {wanted}")
    for path, (each, parameters) in zip(paths, given, strict=True):
        tiling = asked.tiling(autoencoder, Grid(1, *each.shape[1:]))
        pixels: Tensor = decode(autoencoder, each[None], tiling)[0]
        PictureFile(path, parameters).write(pixels)
        if not asked.as_json:
            print(path, flush=True)
    if asked.as_json:
        print(json.dumps({"files": [str(path) for path in paths]}))


def _listed(paths: Sequence[Path]) -> str:
    """Names of files: the first and the last of many."""
    return str(paths[0]) if len(paths) == 1 else f"{paths[0]} to {paths[-1]}"


@contextmanager
def _bar(steps: int) -> Iterator[Callable[[int], None]]:
    """Yields what is told how many steps are done; a bar with the time left where stderr is a terminal."""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("denoise", total=steps)
        yield lambda done: bar.update(task, completed=done)
