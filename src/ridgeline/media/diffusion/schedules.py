"""Schedules: the noise levels that a sampler passes between noise and data, and what the denoiser is told at each.

A noisy latent is a mixture x = alpha * data + sigma * noise. Two families of mixtures are in use:

- flow matching (arXiv:2210.02747): alpha = 1 - sigma, a straight line between data and noise. The denoiser predicts the
  direction of the line, its velocity: noise - data.
- variance-preserving (DDPM, arXiv:2006.11239): alpha^2 + sigma^2 = 1, told by the betas of a thousand training steps.
  The denoiser predicts the noise.

What a sampler computes depends on levels alone, so that one sampler serves both. Levels are Python floats: nothing in
the loop over steps waits for a device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Prediction = Literal["velocity", "noise"]
"""What a denoiser says of a noisy latent: noise - data (flow matching), or the noise (DDPM's epsilon)."""

Floats = NDArray[Any]
"""An array of fp32 or fp64: schedules round as the reference does, which computes some levels in one, some in both."""

TOLD_STEPS = 1000
"""The steps of training by which every pipeline divides a timestep, whatever its scheduler's config states."""


@dataclass(frozen=True, slots=True)
class NoiseLevel:
    """How a noisy latent is mixed: alpha * data + sigma * noise."""

    alpha: float
    sigma: float

    @property
    def half_log_snr(self) -> float:
        """log(alpha / sigma), the lambda of DPM-Solver and UniPC: the time in which their equation is simple."""
        return math.log(self.alpha) - math.log(self.sigma) if self.sigma else math.inf


DATA = NoiseLevel(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class Schedule:
    """Steps from noise to data.

    Args:
        prediction: what the denoiser is asked for.
        timesteps: what it is told at each step, in the units of its training: train_steps is noise, 0 data.
        levels: one more than steps. Step i goes from levels[i] to levels[i + 1]; the last is data.
        train_steps: steps of training, 1,000 in all releases.
    """

    prediction: Prediction
    timesteps: tuple[float, ...]
    levels: tuple[NoiseLevel, ...]
    train_steps: int

    def __post_init__(self) -> None:
        assert len(self.levels) == len(self.timesteps) + 1, "a level before each step and one after the last"
        assert self.levels[-1] == DATA, "a schedule ends in data"

    @property
    def steps(self) -> int:
        """How often the denoiser is asked, guidance apart."""
        return len(self.timesteps)

    def time(self, step: int) -> float:
        """What denoisers of this package are told at a step: 1 is noise, 0 data."""
        return self.timesteps[step] / TOLD_STEPS


# -- flow matching ----------------------------------------------------------------------------------------------------


Levels = TypeVar("Levels", float, Floats, torch.Tensor)


def shifted(sigma: Levels, shift: float) -> Levels:
    """Return a level between 0 and 1, or several, moved towards noise if shift > 1; both ends stay.

    More pixels show the same picture through more noise, so a large picture needs more steps at high noise (SD3,
    arXiv:2403.03206, section 5.3.2, equation 23).
    """
    return shift * sigma / (1 + (shift - 1) * sigma)


def dynamically_shifted(sigmas_S: Floats, shift: float) -> Floats:
    """Return the same as `shifted` by the formula of dynamic shifting, which rounds otherwise."""
    shifted_S: Floats = shift / (shift + (1 / sigmas_S - 1))
    return shifted_S


def euler_flow(sigmas_S: Floats, shift: float, train_steps: int, *, dynamic: bool = False) -> Schedule:
    """Return flow matching through these levels, shifted, as flow-match Euler steps through it.

    In the precision of `sigmas_S` up to here and in fp32 from here on, as the reference computes: the last bit of a
    level is 6e-5 of a radian of a denoiser's sinusoids. dynamic: by the formula of a dynamic shift.
    """
    shifted_S = (dynamically_shifted if dynamic else shifted)(sigmas_S, shift).astype(np.float32)
    return _flow(shifted_S.tolist(), (shifted_S * np.float32(train_steps)).tolist(), train_steps)


def trained_sigmas(steps: int, shift: float, train_steps: int) -> Floats:
    """Return the levels that flow-match Euler takes where its pipeline passes none: even steps from the first level of
    training to the last, both of which are shifted already.
    """
    ends = shifted(torch.tensor([train_steps, 1], dtype=torch.float32) / train_steps, shift)
    most, least = (end * train_steps for end in ends.tolist())
    return np.linspace(most, least, steps) / train_steps


def unipc_flow(steps: int, shift: float, train_steps: int, *, dynamic: bool = False) -> Schedule:
    """Flow matching as Wan's UniPC steps through it: n even steps from 1 towards 1 / train_steps, shifted."""
    even_S = np.linspace(1, 1 / train_steps, steps + 1)[:-1]
    sigmas_S = (dynamically_shifted if dynamic else shifted)(even_S, shift)
    if abs(sigmas_S[0] - 1) < _NEAR_NOISE:
        sigmas_S[0] -= _NEAR_NOISE
    return _flow(sigmas_S.tolist(), _whole(sigmas_S, train_steps), train_steps)


def dpmpp_flow(steps: int, shift: float, train_steps: int) -> Schedule:
    """Flow matching as DPM-Solver++ steps through it: n even steps from 1 - 1 / train_steps to 0, shifted."""
    sigmas_S = shifted(1.0 - np.linspace(1, 1 / train_steps, steps + 1), shift)[:0:-1]
    return _flow(sigmas_S.tolist(), _whole(sigmas_S, train_steps), train_steps)


_NEAR_NOISE = 1e-6  # lambda of pure noise is -inf; the reference begins this much below it


def _whole(sigmas_S: Floats, train_steps: int) -> list[float]:
    """Timesteps cut to integers: what the reference tells its denoisers where the sampler is not Euler's."""
    whole: list[float] = np.trunc(sigmas_S * train_steps).tolist()
    return whole


def _flow(sigmas: Sequence[float], timesteps: Sequence[float], train_steps: int) -> Schedule:
    """The reference keeps sigmas in fp32, and so do we: at 1 - 1e-6 the rounding moves alpha by 1.3 %."""
    rounded = [float(np.float32(sigma)) for sigma in sigmas]
    levels = [NoiseLevel(1 - sigma, sigma) for sigma in rounded]
    return Schedule("velocity", tuple(timesteps), (*levels, DATA), train_steps)


# -- variance-preserving ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Betas:
    """The noise that each of `train_steps` steps of training added: betas from `start` to `end`, in even steps of their
    square roots if scaled (Stable Diffusion), of themselves if not (PixArt).
    """

    start: float
    end: float
    scaled: bool
    train_steps: int

    def kept(self) -> list[float]:
        """alpha^2 after each step of training: the products of 1 - beta. In fp32, as models were trained and the
        reference computes: over a thousand factors the roundings show.
        """
        power = 0.5 if self.scaled else 1.0
        roots = torch.linspace(self.start**power, self.end**power, self.train_steps, dtype=torch.float32)
        betas = roots**2 if self.scaled else roots
        kept: list[float] = torch.cumprod(1.0 - betas, dim=0).tolist()
        return kept


Spacing = Literal["linspace", "leading", "trailing"]
"""The spacing of timesteps among those of training (arXiv:2305.08891, table 2)."""


def discrete(steps: int, betas: Betas, spacing: Spacing = "linspace", offset: int = 0) -> Schedule:
    """Return training steps at even distances, for epsilon models under UniPC and DPM-Solver++.

    linspace: n + 1 from the last to 0, without 0. leading: whole multiples, `offset` later. trailing: from the last
    one down.
    """
    kept = betas.kept()
    timesteps = _spaced(steps, betas.train_steps, spacing, offset)
    levels = [_preserving(np.float32(kept[timestep])) for timestep in timesteps]
    return Schedule("noise", tuple(map(float, timesteps)), (*levels, DATA), betas.train_steps)


def _spaced(steps: int, train_steps: int, spacing: Spacing, offset: int) -> list[int]:
    """Return the timesteps of a spacing, rounded as the reference rounds them."""
    even: Floats
    if spacing == "linspace":
        even = np.linspace(0, train_steps - 1, steps + 1).round()[:0:-1]
    elif spacing == "leading":
        even = np.arange(steps, 0, -1) * (train_steps // (steps + 1)) + offset
    else:
        even = np.arange(train_steps, 0, -train_steps / steps).round() - 1
    return [int(timestep) for timestep in even]


def _preserving(kept: np.float32) -> NoiseLevel:
    """The level with this alpha^2. The reference keeps sigma / alpha in fp32 and works from there."""
    ratio = float(np.sqrt((np.float32(1) - kept) / kept))
    alpha = 1 / math.sqrt(ratio * ratio + 1)
    return NoiseLevel(alpha, ratio * alpha)


def consistency(steps: int, betas: Betas, original_steps: int) -> Schedule:
    """Every so many of the `original_steps` timesteps that a latent consistency model was distilled on, from the
    noisiest down (LCM, arXiv:2310.04378, section 4.3).
    """
    kept = betas.kept()
    stride = betas.train_steps // original_steps
    distilled = [stride * number - 1 for number in range(original_steps, 0, -1)]
    timesteps = [distilled[int(original_steps / steps * step)] for step in range(steps)]
    levels = [NoiseLevel(math.sqrt(kept[timestep]), math.sqrt(1 - kept[timestep])) for timestep in timesteps]
    return Schedule("noise", tuple(map(float, timesteps)), (*levels, DATA), betas.train_steps)
