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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

Prediction = Literal["velocity", "noise"]
"""What a denoiser says of a noisy latent: noise - data (flow matching), or the noise (DDPM's epsilon)."""

Shift = Callable[[int, int], float]
"""How strongly a schedule leans towards noise, for a latent of so many tokens in so many steps; 1 leans nowhere."""


@dataclass(frozen=True, slots=True)
class Level:
    """How a noisy latent is mixed: alpha * data + sigma * noise."""

    alpha: float
    sigma: float

    @property
    def half_log_snr(self) -> float:
        """log(alpha / sigma), the lambda of DPM-Solver and UniPC: the time in which their equation is simple."""
        return math.log(self.alpha) - math.log(self.sigma) if self.sigma else math.inf


DATA = Level(1.0, 0.0)


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
    levels: tuple[Level, ...]
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
        return self.timesteps[step] / self.train_steps


# -- flow matching ----------------------------------------------------------------------------------------------------


def shifted(sigma: float, shift: float) -> float:
    """A level between 0 and 1 moved towards noise, for shift > 1; both ends stay.

    More pixels show the same picture through more noise, so a large picture needs more steps at high noise (SD3,
    arXiv:2403.03206, section 5.3.2, equation 23).
    """
    return shift * sigma / (1 + (shift - 1) * sigma)


@dataclass(frozen=True, slots=True)
class StaticShift:
    """The same for every size."""

    factor: float

    def __call__(self, tokens: int, steps: int) -> float:
        return self.factor


@dataclass(frozen=True, slots=True)
class TokenShift:
    """One that grows with the tokens of the latent, on the line through two points (FLUX.1).

    Args:
        base, most: the points, each (tokens, mu).
        exponential: the shift is e^mu, as SD3's square root of a ratio of pixels is; else mu itself.
    """

    base: tuple[int, float]
    most: tuple[int, float]
    exponential: bool = True

    def __call__(self, tokens: int, steps: int) -> float:
        (base_tokens, base_mu), (most_tokens, most_mu) = self.base, self.most
        mu = base_mu + (most_mu - base_mu) / (most_tokens - base_tokens) * (tokens - base_tokens)
        return math.exp(mu) if self.exponential else mu


def flux2_shift(tokens: int, steps: int) -> float:
    """What FLUX.2's pipelines take in place of their scheduler's own rule: mu on a line in the tokens for 200 steps,
    on another for 10, in between by the steps; past 4,300 tokens that for 200 steps."""
    at_200 = 0.00016927 * tokens + 0.45666666
    at_10 = 8.73809524e-05 * tokens + 1.89833333
    per_step = (at_200 - at_10) / 190
    return math.exp(at_200 if tokens > 4300 else at_200 + per_step * (steps - 200))


def euler_flow(steps: int, shift: float, train_steps: int, *, dynamic: bool = False) -> Schedule:
    """Flow matching as Z-Image, FLUX.1 and FLUX.2 step through it: sigmas 1, 1 - 1/n ... 1/n, shifted.

    In fp32 from the first operation on, as the reference computes them: the last bit of a level is 6e-5 of a radian of
    a denoiser's sinusoids. dynamic: its formula of a dynamic shift, which rounds otherwise.
    """
    even_S = np.linspace(1.0, 1 / steps, steps).astype(np.float32)
    sigmas_S = shift / (shift + (1 / even_S - 1)) if dynamic else shift * even_S / (1 + (shift - 1) * even_S)
    return _flow(sigmas_S.tolist(), (sigmas_S * train_steps).tolist(), train_steps)


def unipc_flow(steps: int, shift: float, train_steps: int) -> Schedule:
    """Flow matching as Wan's UniPC steps through it: n even steps from 1 towards 1 / train_steps, shifted."""
    stride = (1 / train_steps - 1) / steps
    sigmas = [shifted(1 + stride * step, shift) for step in range(steps)]
    if abs(sigmas[0] - 1) < _NEAR_NOISE:
        sigmas[0] -= _NEAR_NOISE
    return _flow(sigmas, _whole(sigmas, train_steps), train_steps)


def dpmpp_flow(steps: int, shift: float, train_steps: int) -> Schedule:
    """Flow matching as DPM-Solver++ steps through it: n even steps from 1 - 1 / train_steps to 0, shifted."""
    stride = (1 / train_steps - 1) / steps
    alphas = [1 / train_steps, *(1 + stride * step for step in range(steps - 1, 0, -1))]
    sigmas = [shifted(1 - alpha, shift) for alpha in alphas]
    return _flow(sigmas, _whole(sigmas, train_steps), train_steps)


_NEAR_NOISE = 1e-6  # lambda of pure noise is -inf; the reference begins this much below it


def _whole(sigmas: Sequence[float], train_steps: int) -> list[float]:
    """Timesteps cut to integers: what the reference tells its denoisers where the sampler is not Euler's."""
    return [float(int(sigma * train_steps)) for sigma in sigmas]


def _flow(sigmas: Sequence[float], timesteps: Sequence[float], train_steps: int) -> Schedule:
    """The reference keeps sigmas in fp32, and so do we: at 1 - 1e-6 the rounding moves alpha by 1.3 %."""
    rounded = [float(np.float32(sigma)) for sigma in sigmas]
    levels = [Level(1 - sigma, sigma) for sigma in rounded]
    return Schedule("velocity", tuple(timesteps), (*levels, DATA), train_steps)


# -- variance-preserving ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Betas:
    """The noise that each of `train_steps` steps of training added: betas from `start` to `end`, in even steps of their
    square roots if scaled (Stable Diffusion), of themselves if not (PixArt)."""

    start: float
    end: float
    scaled: bool
    train_steps: int

    def kept(self) -> list[float]:
        """alpha^2 after each step of training: the products of 1 - beta. In fp32, as models were trained and the
        reference computes: over a thousand factors the roundings show."""
        power = 0.5 if self.scaled else 1.0
        roots = torch.linspace(self.start**power, self.end**power, self.train_steps, dtype=torch.float32)
        betas = roots**2 if self.scaled else roots
        kept: list[float] = torch.cumprod(1.0 - betas, dim=0).tolist()
        return kept


def discrete(steps: int, betas: Betas) -> Schedule:
    """n + 1 training steps at even distances, the last one left out: epsilon models under UniPC and DPM-Solver++."""
    kept = betas.kept()
    stride = (betas.train_steps - 1) / steps
    timesteps = [round(stride * step) for step in range(steps, 0, -1)]
    levels = [_preserving(np.float32(kept[timestep])) for timestep in timesteps]
    return Schedule("noise", tuple(map(float, timesteps)), (*levels, DATA), betas.train_steps)


def _preserving(kept: np.float32) -> Level:
    """The level with this alpha^2. The reference keeps sigma / alpha in fp32 and works from there."""
    ratio = float(np.sqrt((np.float32(1) - kept) / kept))
    alpha = 1 / math.sqrt(ratio * ratio + 1)
    return Level(alpha, ratio * alpha)


def consistency(steps: int, betas: Betas, original_steps: int) -> Schedule:
    """Every so many of the `original_steps` timesteps that a latent consistency model was distilled on, from the
    noisiest down (LCM, arXiv:2310.04378, section 4.3)."""
    kept = betas.kept()
    stride = betas.train_steps // original_steps
    distilled = [stride * number - 1 for number in range(original_steps, 0, -1)]
    timesteps = [distilled[int(original_steps / steps * step)] for step in range(steps)]
    levels = [Level(math.sqrt(kept[timestep]), math.sqrt(1 - kept[timestep])) for timestep in timesteps]
    return Schedule("noise", tuple(map(float, timesteps)), (*levels, DATA), betas.train_steps)
