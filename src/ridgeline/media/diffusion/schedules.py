"""Schedules: the noise levels that a sampler visits between noise and data, and the denoiser's timesteps.

A noisy latent is a mixture x = alpha * data + sigma * noise. Two families of mixtures are in use:

- flow matching (arXiv:2210.02747): alpha = 1 - sigma, a straight line between data and noise. The denoiser predicts the
  velocity, which is the direction of the line: noise - data.
- variance-preserving (DDPM, arXiv:2006.11239): alpha^2 + sigma^2 = 1, defined by the betas of a thousand training
  steps. The denoiser predicts the noise.

A sampler's formula depends only on the levels, so one sampler serves both families. Levels are Python floats, so the
loop over steps never waits for a device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Prediction = Literal["velocity", "noise"]
"""The output of a denoiser for a noisy latent: noise - data (flow matching), or the noise (DDPM's epsilon)."""

Floats = NDArray[Any]
"""An array of fp32 or fp64: schedules round as in diffusers, which computes some levels in one and some in both."""

TIMESTEP_SCALE = 1000
"""The number of training steps by which every pipeline divides a timestep, whatever its scheduler's config states."""


@dataclass(frozen=True, slots=True)
class NoiseLevel:
    """The mixture of a noisy latent: alpha * data + sigma * noise."""

    alpha: float
    sigma: float

    @property
    def half_log_snr(self) -> float:
        """The level's log(alpha / sigma), infinite for pure data.

        This is the lambda of DPM-Solver and UniPC, the time variable in which their equation is simple.
        """
        return math.log(self.alpha) - math.log(self.sigma) if self.sigma else math.inf


DATA = NoiseLevel(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The noise levels and timesteps of all steps from noise to data."""

    prediction: Prediction
    """The quantity that the denoiser predicts: velocity or noise."""
    timesteps: tuple[float, ...]
    """The denoiser's timestep at each step, in training units: train_steps is noise, 0 is data."""
    levels: tuple[NoiseLevel, ...]
    """The noise levels, one more than steps: step i goes from levels[i] to levels[i + 1], and the last one is data."""
    train_steps: int
    """The number of training steps, 1,000 in all releases."""

    def __post_init__(self) -> None:
        assert len(self.levels) == len(self.timesteps) + 1, (
            "a schedule needs one level before each step and one after the last"
        )
        assert self.levels[-1] == DATA, "a schedule must end at noise level 0"

    @property
    def steps(self) -> int:
        """The number of denoising steps; with guidance the denoiser runs twice in each."""
        return len(self.timesteps)

    def time(self, step: int) -> float:
        """Return the time at a step as this package's denoisers take it: 1 is noise, 0 is data."""
        return self.timesteps[step] / TIMESTEP_SCALE


# -- flow matching ----------------------------------------------------------------------------------------------------


Levels = TypeVar("Levels", float, Floats, torch.Tensor)


def shift_sigmas(sigma: Levels, shift: float) -> Levels:
    """Return one or several noise levels between 0 and 1, moved towards noise if shift > 1; 0 and 1 stay.

    The same noise hides less of an image that has more pixels, so a large image needs more steps at high noise (SD3,
    arXiv:2403.03206, section 5.3.2, equation 23).
    """
    return shift * sigma / (1 + (shift - 1) * sigma)


def dynamically_shifted(sigmas_S: Floats, shift: float) -> Floats:
    """Return noise levels shifted by the formula of dynamic shifting, which rounds differently from `shift_sigmas`."""
    shifted_S: Floats = shift / (shift + (1 / sigmas_S - 1))
    return shifted_S


def euler_flow(sigmas_S: Floats, shift: float, train_steps: int, *, dynamic: bool = False) -> Schedule:
    """Return the flow-matching schedule of FlowMatchEulerDiscreteScheduler for given sigmas, after shifting them.

    The shift is computed in the precision of `sigmas_S` and everything after it in fp32, as in diffusers: the last bit
    of a level is 6e-5 of a radian in a denoiser's sinusoids.

    Args:
        sigmas_S: Noise levels before the shift.
        shift: Factor of the shift.
        train_steps: Number of training steps.
        dynamic: Whether to use the formula of dynamic shifting.
    """
    shifted_S = (dynamically_shifted if dynamic else shift_sigmas)(sigmas_S, shift).astype(np.float32)
    return _flow(shifted_S.tolist(), (shifted_S * np.float32(train_steps)).tolist(), train_steps)


def trained_sigmas(steps: int, shift: float, train_steps: int) -> Floats:
    """Return the sigmas that FlowMatchEulerDiscreteScheduler uses if its pipeline passes none.

    They are evenly spaced from the first training level to the last, both of which are already shifted.
    """
    ends = shift_sigmas(torch.tensor([train_steps, 1], dtype=torch.float32) / train_steps, shift)
    most, least = (end * train_steps for end in ends.tolist())
    return np.linspace(most, least, steps) / train_steps


def unipc_flow(steps: int, shift: float, train_steps: int, *, dynamic: bool = False) -> Schedule:
    """Return the flow-matching schedule of UniPC in Wan's pipeline.

    It has n even steps from 1 towards 1 / train_steps, shifted.
    """
    even_S = np.linspace(1, 1 / train_steps, steps + 1)[:-1]
    sigmas_S = (dynamically_shifted if dynamic else shift_sigmas)(even_S, shift)
    if abs(sigmas_S[0] - 1) < _NEAR_NOISE:
        sigmas_S[0] -= _NEAR_NOISE
    return _flow(sigmas_S.tolist(), _whole(sigmas_S, train_steps), train_steps)


def dpmpp_flow(steps: int, shift: float, train_steps: int) -> Schedule:
    """Return the flow-matching schedule of DPM-Solver++: n even steps from 1 - 1 / train_steps to 0, shifted."""
    sigmas_S = shift_sigmas(1.0 - np.linspace(1, 1 / train_steps, steps + 1), shift)[:0:-1]
    return _flow(sigmas_S.tolist(), _whole(sigmas_S, train_steps), train_steps)


_NEAR_NOISE = 1e-6  # lambda of pure noise is -inf, so diffusers begins this much below it


def _whole(sigmas_S: Floats, train_steps: int) -> list[float]:
    """Return timesteps truncated to integers, as diffusers passes them to the denoiser for every sampler but Euler."""
    whole: list[float] = np.trunc(sigmas_S * train_steps).tolist()
    return whole


def _flow(sigmas: Sequence[float], timesteps: Sequence[float], train_steps: int) -> Schedule:
    """Return a velocity schedule with given sigmas, rounded to fp32 as in diffusers.

    The rounding matters: at 1 - 1e-6 it moves alpha by 1.3 %.
    """
    rounded = [float(np.float32(sigma)) for sigma in sigmas]
    levels = [NoiseLevel(1 - sigma, sigma) for sigma in rounded]
    return Schedule("velocity", tuple(timesteps), (*levels, DATA), train_steps)


# -- variance-preserving ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Betas:
    """The betas of a DDPM training schedule: the noise variance that each of `train_steps` training steps added.

    They go from `start` to `end`. If `scaled` (Stable Diffusion), their square roots are evenly spaced, otherwise
    (PixArt) the betas themselves.
    """

    start: float
    end: float
    scaled: bool
    train_steps: int

    def alphas_cumprod(self) -> list[float]:
        """Return alpha^2 after each training step: the cumulative products of 1 - beta.

        They are computed in fp32, as in training and in diffusers: over a thousand factors the rounding errors show.
        """
        power = 0.5 if self.scaled else 1.0
        roots = torch.linspace(self.start**power, self.end**power, self.train_steps, dtype=torch.float32)
        betas = roots**2 if self.scaled else roots
        kept: list[float] = torch.cumprod(1.0 - betas, dim=0).tolist()
        return kept


Spacing = Literal["linspace", "leading", "trailing"]
"""The spacing of timesteps among the training steps (arXiv:2305.08891, table 2)."""


def discrete_schedule(steps: int, betas: Betas, spacing: Spacing = "linspace", offset: int = 0) -> Schedule:
    """Return a schedule of evenly spaced training steps, for epsilon models under UniPC and DPM-Solver++.

    Args:
        steps: Number of denoising steps.
        betas: Betas of the training.
        spacing: "linspace" divides the range from the last training step to 0 into n parts and omits 0; "leading" takes
            whole multiples, moved by `offset`; "trailing" counts down from the last training step.
        offset: Training steps to add to every timestep; only for "leading".
    """
    kept = betas.alphas_cumprod()
    timesteps = _spaced(steps, betas.train_steps, spacing, offset)
    levels = [_preserving(np.float32(kept[timestep])) for timestep in timesteps]
    return Schedule("noise", tuple(map(float, timesteps)), (*levels, DATA), betas.train_steps)


def _spaced(steps: int, train_steps: int, spacing: Spacing, offset: int) -> list[int]:
    """Return the training timesteps of a schedule with a given spacing, rounded as in diffusers."""
    even: Floats
    if spacing == "linspace":
        even = np.linspace(0, train_steps - 1, steps + 1).round()[:0:-1]
    elif spacing == "leading":
        even = np.arange(steps, 0, -1) * (train_steps // (steps + 1)) + offset
    else:
        even = np.arange(train_steps, 0, -train_steps / steps).round() - 1
    return [int(timestep) for timestep in even]


def _preserving(kept: np.float32) -> NoiseLevel:
    """Return the variance-preserving noise level with a given alpha^2.

    Like diffusers it computes sigma / alpha in fp32 and derives the level from that.
    """
    ratio = float(np.sqrt((np.float32(1) - kept) / kept))
    alpha = 1 / math.sqrt(ratio * ratio + 1)
    return NoiseLevel(alpha, ratio * alpha)


def lcm_schedule(steps: int, betas: Betas, original_steps: int) -> Schedule:
    """Return every k-th of the `original_steps` timesteps on which a latent consistency model was distilled.

    They begin with the noisiest (LCM, arXiv:2310.04378, section 4.3).
    """
    kept = betas.alphas_cumprod()
    stride = betas.train_steps // original_steps
    distilled = [stride * number - 1 for number in range(original_steps, 0, -1)]
    timesteps = [distilled[int(original_steps / steps * step)] for step in range(steps)]
    levels = [NoiseLevel(math.sqrt(kept[timestep]), math.sqrt(1 - kept[timestep])) for timestep in timesteps]
    return Schedule("noise", tuple(map(float, timesteps)), (*levels, DATA), betas.train_steps)
