"""Samplers: from noise to data in a few steps, each of which asks the denoiser once.

A denoiser's prediction at (x, t) is a guess of the data, whichever way it is said (`data_of`). Follow the guess a
little way, and x is a sample with slightly less noise; the path is the solution of an ordinary differential equation.
With lambda = log(alpha / sigma) for time it reads (DPM-Solver++, arXiv:2211.01095, proposition 4.1; s is where a step
begins, t where it ends, h = lambda_t - lambda_s its length)

    x_t = sigma_t / sigma_s * x_s + alpha_t * integral over u in 0..1 of h * e^(-(1 - u) h) * data(lambda_s + u h)

The first term is exact, and nothing is unknown but how the guess of the data changes along the way. Samplers differ in
what they take for it:

    euler      it does not change: one guess, the latest (in velocities: go straight on)
    dpmpp_2m   a line through the latest two guesses
    unipc      as dpmpp_2m; then, when the next guess is known, the step is made again with a curve through all of them
    lcm        the guess is taken for the data itself, and noise of the next level is added

So that a guess held constant gets the weight w_0 = 1 - e^-h, one that grows as u the weight w_1, one as u^2 the weight
w_2 (`_weights`). Each function is one step: a state and a prediction in, the next state out, nothing kept elsewhere.
Latents are of any shape, in fp32 or fp64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ridgeline.media.diffusion.schedules import NoiseLevel, Prediction, Schedule

Draw = Callable[[], Tensor]
"""Gives fresh noise of the latents' shape."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """Where a sampler stands before a step.

    Args:
        x: the latents that the denoiser is to be shown.
        data: the latest guesses of the data, the very latest last; at most two, and none for samplers of one step.
        origin: where the last step began, if it is to be made again (UniPC).
    """

    x: Tensor
    data: tuple[Tensor, ...] = ()
    origin: Tensor | None = None


class DiffusionSampler(Protocol):
    """One step of a schedule: from the state before it, and what was predicted for its x, to the state after."""

    def __call__(
        self, schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw
    ) -> SamplerState:
        """`draw` is called only by samplers that add noise, at most once a step."""


def data_of(x: Tensor, prediction: Tensor, level: NoiseLevel, kind: Prediction) -> Tensor:
    """The data that a prediction implies: x = alpha * data + sigma * noise solved for it."""
    if kind == "velocity":  # noise - data, and alpha = 1 - sigma
        return x - level.sigma * prediction
    return (x - level.sigma * prediction) / level.alpha


def euler(schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw) -> SamplerState:
    """Euler's method on the straight path of flow matching (arXiv:2210.02747): velocity times the change of sigma.

    It is the step that `dpmpp_2m` makes with a single guess, and DDIM's, written for velocities.
    """
    assert schedule.prediction == "velocity", "Euler's step follows velocities"
    here, there = schedule.levels[step : step + 2]
    return SamplerState(state.x + (there.sigma - here.sigma) * prediction)


def dpmpp_2m(schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw) -> SamplerState:
    """DPM-Solver++ 2M (arXiv:2211.01095, algorithm 2), in its midpoint form."""
    guess = data_of(state.x, prediction, schedule.levels[step], schedule.prediction)
    guesses = (*state.data, guess)[-2:]
    return SamplerState(_predict(schedule, step, state.x, guesses), guesses)


def unipc(schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw) -> SamplerState:
    """UniPC of order 2 with B2(h), on guesses of the data (arXiv:2302.04867, UniP and UniC of section 3).

    The prediction at the end of a step is the one that the next step begins with; before it does, the corrector makes
    the last step again with it. So each step is corrected but the last, and the denoiser is asked no more often.
    """
    guess = data_of(state.x, prediction, schedule.levels[step], schedule.prediction)
    x = state.x if state.origin is None else _correct(schedule, step - 1, state.origin, state.data, guess)
    guesses = (*state.data, guess)[-2:]
    return SamplerState(_predict(schedule, step, x, guesses), guesses, origin=x)


DATA_DEVIATION = 0.5  # standard deviation of the data that consistency models take for granted (arXiv:2303.01469)


@dataclass(frozen=True, slots=True)
class LatentConsistency:
    """Multistep sampling of a latent consistency model (arXiv:2310.04378), whose every guess is final:
    what is left to do is to add noise of the next level and to guess again.

    scaling: by what timesteps are multiplied in the boundary condition, which makes a guess at timestep 0 return x.
    """

    scaling: float = 10.0

    def __call__(
        self, schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw
    ) -> SamplerState:
        here, there = schedule.levels[step : step + 2]
        time = self.scaling * schedule.timesteps[step] / DATA_DEVIATION
        skip, out = 1 / (time**2 + 1), time / math.sqrt(time**2 + 1)
        final = skip * state.x + out * data_of(state.x, prediction, here, schedule.prediction)
        return _renoised(final, there, draw)


def renoise(schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw) -> SamplerState:
    """Multistep sampling of a consistency model (arXiv:2303.01469, algorithm 1) of flow matching: the guess is final,
    and where there are steps left noise of the next level is added to it. A velocity meets the boundary condition by
    itself: where there is no noise the guess is x. FlowMatchEulerDiscreteScheduler calls it stochastic sampling.
    """
    here, there = schedule.levels[step : step + 2]
    return _renoised(data_of(state.x, prediction, here, schedule.prediction), there, draw)


def _renoised(final: Tensor, level: NoiseLevel, draw: Draw) -> SamplerState:
    """A final guess with the noise of a level, which is drawn where there is any."""
    return SamplerState(level.alpha * final + level.sigma * draw() if level.sigma else final)


# -- the integral -----------------------------------------------------------------------------------------------------


def _weights(h: float) -> tuple[float, float, float]:
    """What constant, linear and quadratic guesses count for in a step of length h: w_k is the integral over u in 0..1
    of h * e^(-(1 - u) h) * u^k, of which integration by parts makes w_k = 1 - k / h * w_(k-1).
    """
    constant = -math.expm1(-h)
    linear = 1 - constant / h
    return constant, linear, 1 - 2 * linear / h


def _guessed_before(schedule: Schedule, step: int) -> float:
    """The u of the guess before the latest, in units of this step: how far before its beginning it lies; negative."""
    earlier, here, there = (level.half_log_snr for level in schedule.levels[step - 1 : step + 2])
    return (earlier - here) / (there - here)


def _carried(schedule: Schedule, step: int, x: Tensor) -> Tensor:
    """The exact term: the noise in x scaled down to the level after this step."""
    here, there = schedule.levels[step : step + 2]
    return there.sigma / here.sigma * x


def _length(schedule: Schedule, step: int) -> float:
    """h, the change of lambda; infinite for the step to data."""
    here, there = schedule.levels[step : step + 2]
    return there.half_log_snr - here.half_log_snr


def _predict(schedule: Schedule, step: int, x: Tensor, guesses: tuple[Tensor, ...]) -> Tensor:
    """The step with what is known at its beginning: the latest guess, and the line through it and the one before.

    Where there is one guess (the first step), and where h is infinite (the last), the guess is held constant. The
    line's slope counts w_0 / 2 and not w_1, as both papers have it at order 2 (the midpoint; B2(h) with a coefficient
    of 1/2): the two differ by h^2 / 12, and the slope itself is of order h.
    """
    there, h = schedule.levels[step + 1], _length(schedule, step)
    constant = -math.expm1(-h)
    held = _carried(schedule, step, x) + there.alpha * constant * guesses[-1]
    if len(guesses) < 2 or math.isinf(h):
        return held
    before, latest = guesses
    slope = (before - latest) / _guessed_before(schedule, step)
    return held + there.alpha * constant / 2 * slope


def _correct(schedule: Schedule, step: int, origin: Tensor, guesses: tuple[Tensor, ...], arrived: Tensor) -> Tensor:
    """The step again, from where it began, with the guess made where it arrived: UniPC's corrector (UniC).

    With one guess from before (u = 0), the line through both counts w_0 / 2, as above. With two (u = 0 and r < 0), the
    parabola through all three is integrated exactly: guess(u) = latest + a u + c u^2, where

        arrived - latest = a + c             at u = 1
        (before - latest) / r = a + c r      at u = r
    """
    there = schedule.levels[step + 1]
    constant, linear, quadratic = _weights(_length(schedule, step))
    latest = guesses[-1]
    held = _carried(schedule, step, origin) + there.alpha * constant * latest
    rise = arrived - latest
    if len(guesses) < 2:
        return held + there.alpha * constant / 2 * rise
    r = _guessed_before(schedule, step)
    slope = (guesses[0] - latest) / r
    c = (rise - slope) / (1 - r)
    return held + there.alpha * (linear * (rise - c) + quadratic * c)
