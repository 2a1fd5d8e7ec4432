"""diffusers' pipelines around a stand-in for the denoiser: their own code makes timesteps and takes steps, without
weights."""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import diffusers
import torch
from torch import Tensor, nn

from diffusion.schedulers import Config

WIDTH = 8


def predicted(x: Tensor, t: float) -> Tensor:
    """What every stand-in predicts: another number for each number of x and each time, without an exploding sum."""
    return torch.cos(3 * x + 5 * t) - 0.3 * x


class Enough(Exception):
    """Ends a run of which no more is asked for."""


@dataclass
class Run:
    """A run of diffusers' pipeline. told: times from 1 for noise to 0 for data. begun: the latents before the first
    step. after: those after each step."""

    told: list[float] = field(default_factory=list)
    begun: Tensor = field(default_factory=lambda: torch.empty(0))
    after: list[Tensor] = field(default_factory=list)
    sigmas: list[float] = field(default_factory=list)
    timesteps: list[float] = field(default_factory=list)

    def watch(self, step: Callable[..., Any], steps: int) -> Callable[..., Any]:
        """The scheduler's step, which notes what comes of it and ends the run after the last one."""

        @functools.wraps(step)
        def watched(*given: Any, **named: Any) -> Any:
            made = step(*given, **named)
            self.after.append(made[0])
            if len(self.after) == steps:
                raise Enough
            return made

        return watched


class StandIn(nn.Module):
    """What pipelines take for a denoiser. time_of: the time of a timestep that the pipeline tells."""

    def __init__(self, run: Run, time_of: Callable[[float], float], sign: float, once: bool, **config: Any) -> None:
        super().__init__()
        self.run, self.time_of, self.sign, self.once = run, time_of, sign, once
        self.config = SimpleNamespace(**config)
        self.dtype, self.device = torch.float32, torch.device("cpu")
        self.in_channels = config["in_channels"]

    @contextlib.contextmanager
    def cache_context(self, *_: Any, **__: Any) -> Iterator[None]:
        """As diffusers' models have it."""
        yield

    def forward(self, hidden_states: Any, *given: Any, timestep: Any = None, **_: Any) -> tuple[Any]:
        """The prediction, after it noted what it was told and shown."""
        pictures = isinstance(hidden_states, list)
        x = torch.stack(hidden_states).squeeze(2) if pictures else hidden_states
        timestep = given[0] if timestep is None else timestep
        t = self.time_of(float(timestep.double().flatten()[0]))
        if not self.run.told:
            self.run.begun = x.clone()
        self.run.told.append(t)
        if self.once:
            raise Enough
        prediction = self.sign * predicted(x, t)
        return (list(prediction.unsqueeze(2)),) if pictures else (prediction,)


def _texts(tokens: int = 3) -> Tensor:
    return torch.zeros(1, tokens, WIDTH)


def _flux(scheduler: Any, stand_in: Callable[..., StandIn]) -> tuple[Any, dict[str, Any]]:
    told = stand_in(lambda t: t, 1.0, in_channels=16, guidance_embeds=False)
    pipeline = diffusers.FluxPipeline(scheduler, None, None, None, None, None, told)
    return pipeline, {"prompt_embeds": _texts(), "pooled_prompt_embeds": torch.zeros(1, WIDTH)}


def _klein(scheduler: Any, stand_in: Callable[..., StandIn]) -> tuple[Any, dict[str, Any]]:
    told = stand_in(lambda t: t, 1.0, in_channels=16)
    pipeline = diffusers.Flux2KleinPipeline(scheduler, None, None, None, told, is_distilled=True)
    return pipeline, {"prompt_embeds": _texts()}


def _z_image(scheduler: Any, stand_in: Callable[..., StandIn]) -> tuple[Any, dict[str, Any]]:
    told = stand_in(lambda t: 1 - t, -1.0, in_channels=4)
    return diffusers.ZImagePipeline(scheduler, None, None, None, told), {
        "prompt_embeds": [_texts()[0]],
        "guidance_scale": 0.0,
    }


def _wan(scheduler: Any, stand_in: Callable[..., StandIn]) -> tuple[Any, dict[str, Any]]:
    told = stand_in(lambda t: t / 1000, 1.0, in_channels=4, patch_size=(1, 2, 2))
    pipeline = diffusers.WanPipeline(None, None, None, scheduler, told)
    return pipeline, {"prompt_embeds": _texts(), "guidance_scale": 1.0, "num_frames": 5}


def _pixart(kind: str) -> Callable[[Any, Callable[..., StandIn]], tuple[Any, dict[str, Any]]]:
    def made(scheduler: Any, stand_in: Callable[..., StandIn]) -> tuple[Any, dict[str, Any]]:
        told = stand_in(lambda t: t / 1000, 1.0, in_channels=4, out_channels=4, sample_size=64)
        pipeline = getattr(diffusers, kind)(None, None, None, told, scheduler)
        given = {"prompt_embeds": _texts(), "prompt_attention_mask": torch.ones(1, 3), "negative_prompt": None}
        return pipeline, {**given, "guidance_scale": 1.0, "use_resolution_binning": False}

    return made


PIPELINES = {
    "FluxPipeline": _flux,
    "Flux2KleinPipeline": _klein,
    "ZImagePipeline": _z_image,
    "WanPipeline": _wan,
    "PixArtSigmaPipeline": _pixart("PixArtSigmaPipeline"),
    "PixArtAlphaPipeline": _pixart("PixArtAlphaPipeline"),
}
"""By the class: a pipeline around a stand-in, and what its call is given."""


def theirs(kind: str, config: Config, steps: int, size: tuple[int, int], *, once: bool = False, seed: int = 0) -> Run:
    """A run of diffusers' pipeline with a scheduler that it loads of this config. once: only up to the first pass.
    seed: of the noise, first what it begins with and then what a sampler adds."""
    run = Run()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scheduler = getattr(diffusers, config["_class_name"]).from_config(dict(config))
        pipeline, given = PIPELINES[kind](scheduler, lambda *arguments, **own: StandIn(run, *arguments, once, **own))
        pipeline.set_progress_bar_config(disable=True)
        torch.manual_seed(seed)  # of what most pipelines' steps draw from
        generator = torch.Generator().manual_seed(seed)
        scheduler.step = run.watch(scheduler.step, steps)
        with contextlib.suppress(Enough):
            pipeline(height=size[0], width=size[1], num_inference_steps=steps, generator=generator, **given)
    run.timesteps = pipeline.scheduler.timesteps.tolist()
    if hasattr(pipeline.scheduler, "sigmas"):
        run.sigmas = pipeline.scheduler.sigmas.tolist()
    return run


def noise_of(kind: str, run: Run, seed: int = 0) -> Callable[[], Tensor]:
    """What draws the noise that a run's sampler added: PixArt's pipelines pass the generator that drew the latents,
    the others leave it to torch's own."""
    generator = torch.Generator().manual_seed(seed)
    if kind.startswith("PixArt"):
        torch.randn(run.begun.shape, generator=generator)
    return lambda: torch.randn(run.begun.shape, generator=generator)


def tokens_of(kind: str, shown: Tensor) -> int:
    """Tokens of latents as a pipeline's denoiser is shown them."""
    if kind in ("FluxPipeline", "Flux2KleinPipeline"):
        return shown.shape[1]
    return shown[0, 0].numel() // 4
