"""Samplers: from noise to data in a few steps, with one prediction of the denoiser per step.

A denoiser's prediction at (x, t) implies a guess of the data, whether it predicts noise or velocity (`predicted_data`).
A small step of x towards the guess gives a sample with slightly less noise; the path of these samples solves an
ordinary differential equation. With the time variable lambda = log(alpha / sigma) it is (DPM-Solver++,
arXiv:2211.01095, proposition 4.1; a step goes from s to t and has the length h = lambda_t - lambda_s)

    x_t = sigma_t / sigma_s * x_s + alpha_t * integral over u in 0..1 of h * e^(-(1 - u) h) * data(lambda_s + u h)

The first term is exact. The only unknown is how the guess of the data changes along the way. Samplers differ in their
assumption about it:

    euler      constant: the latest guess (for velocities: a straight line)
    dpmpp_2m   a line through the latest two guesses
    unipc      as dpmpp_2m; once the next guess is known, the step is repeated with a curve through all of them
    lcm        the guess is used as the data itself, and noise of the next level is added

A constant guess therefore has the weight w_0 = 1 - e^-h, a guess that grows like u the weight w_1, and one that grows
like u^2 the weight w_2 (`_weights`). Each function performs one step: it takes a state and a prediction and returns the
next state, without storing anything else. Latents may have any shape, in fp32 or fp64.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ridgeline.media.diffusion.schedules import NoiseLevel, Prediction, Schedule

Draw = Callable[[], Tensor]
"""A function that returns fresh noise of the latents' shape."""


@dataclass(frozen=True, slots=True)
class SamplerState:
    """The state of a sampler before a step."""

    x: Tensor
    """The latents that the denoiser sees next."""
    data_predictions: tuple[Tensor, ...] = ()
    """The sampler's latest guesses of the data, newest last: at most two, none for single-step samplers."""
    origin: Tensor | None = None
    """The latents at the start of the last step if the corrector repeats it (UniPC), else None."""


class DiffusionSampler(Protocol):
    """A function that performs one sampling step: it maps a state and the prediction for its x to the next state."""

    def __call__(
        self, schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw
    ) -> SamplerState:
        """Return the state of the sampler after a step.

        Only samplers that add noise call `draw`, at most once per step.
        """


def predicted_data(x: Tensor, prediction: Tensor, level: NoiseLevel, kind: Prediction) -> Tensor:
    """Return the data that a prediction implies: x = alpha * data + sigma * noise, solved for data."""
    if kind == "velocity":  # velocity is noise - data, and alpha = 1 - sigma
        return x - level.sigma * prediction
    return (x - level.sigma * prediction) / level.alpha


def euler(schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw) -> SamplerState:
    """Step along the straight path of flow matching by Euler's method: velocity times the change of sigma.

    See arXiv:2210.02747. It equals the step of `dpmpp_2m` with a single guess, and that of DDIM written for velocities.
    """
    assert schedule.prediction == "velocity", "an Euler step needs velocities"
    here, there = schedule.levels[step : step + 2]
    return SamplerState(state.x + (there.sigma - here.sigma) * prediction)


def dpmpp_2m(schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw) -> SamplerState:
    """Step by DPM-Solver++ 2M (arXiv:2211.01095, algorithm 2) in its midpoint form."""
    guess = predicted_data(state.x, prediction, schedule.levels[step], schedule.prediction)
    guesses = (*state.data_predictions, guess)[-2:]
    return SamplerState(_predict(schedule, step, state.x, guesses), guesses)


def unipc(schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw) -> SamplerState:
    """Step by UniPC of order 2 with B2(h) on guesses of the data (arXiv:2302.04867, UniP and UniC of section 3).

    The prediction at the end of one step is also the first one of the next step, where the corrector uses it to repeat
    the step just taken. So every step but the last is corrected without an additional denoiser pass.
    """
    guess = predicted_data(state.x, prediction, schedule.levels[step], schedule.prediction)
    x = state.x if state.origin is None else _correct(schedule, step - 1, state.origin, state.data_predictions, guess)
    guesses = (*state.data_predictions, guess)[-2:]
    return SamplerState(_predict(schedule, step, x, guesses), guesses, origin=x)


DATA_DEVIATION = 0.5  # standard deviation of the data that consistency models assume (arXiv:2303.01469)


@dataclass(frozen=True, slots=True)
class LatentConsistency:
    """The multistep sampler of latent consistency models (arXiv:2310.04378).

    Every guess of the data is final: each further step adds noise of the next level and guesses again.
    """

    scaling: float = 10.0
    """The factor on timesteps in the boundary condition, which makes a guess at timestep 0 return x."""

    def __call__(
        self, schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw
    ) -> SamplerState:
        """Return the state after a step: the final guess, plus noise of the next level if steps remain."""
        here, there = schedule.levels[step : step + 2]
        time = self.scaling * schedule.timesteps[step] / DATA_DEVIATION
        skip, out = 1 / (time**2 + 1), time / math.sqrt(time**2 + 1)
        final = skip * state.x + out * predicted_data(state.x, prediction, here, schedule.prediction)
        return _renoised(final, there, draw)


def renoise(schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: Draw) -> SamplerState:
    """Step by multistep consistency sampling (arXiv:2303.01469, algorithm 1) with flow matching.

    The guess is final; if steps remain, noise of the next level is added to it. A velocity meets the boundary condition
    by itself: without noise the guess is x. FlowMatchEulerDiscreteScheduler calls this stochastic sampling.
    """
    here, there = schedule.levels[step : step + 2]
    return _renoised(predicted_data(state.x, prediction, here, schedule.prediction), there, draw)


def _renoised(final: Tensor, level: NoiseLevel, draw: Draw) -> SamplerState:
    """Return the state with a final guess, to which noise of `level` is added unless that level has none."""
    return SamplerState(level.alpha * final + level.sigma * draw() if level.sigma else final)


# -- the integral -----------------------------------------------------------------------------------------------------


def _weights(h: float) -> tuple[float, float, float]:
    """Return the weights of a constant, a linear and a quadratic guess in a step of length h.

    w_k is the integral over u in 0..1 of h * e^(-(1 - u) h) * u^k. Integration by parts gives w_k = 1 - k / h *
    w_(k-1).
    """
    constant = -math.expm1(-h)
    linear = 1 - constant / h
    return constant, linear, 1 - 2 * linear / h


def _guessed_before(schedule: Schedule, step: int) -> float:
    """Return the time of the previous guess relative to a sampling step, in step lengths from its start (u < 0)."""
    earlier, here, there = (level.half_log_snr for level in schedule.levels[step - 1 : step + 2])
    return (earlier - here) / (there - here)


def _carried(schedule: Schedule, step: int, x: Tensor) -> Tensor:
    """Return the exact part of a sampling step: the latents x scaled down to the noise level after it."""
    here, there = schedule.levels[step : step + 2]
    return there.sigma / here.sigma * x


def _length(schedule: Schedule, step: int) -> float:
    """Return the length h of a sampler step, which is its change of lambda; infinite for the step to data."""
    here, there = schedule.levels[step : step + 2]
    return there.half_log_snr - here.half_log_snr


def _predict(schedule: Schedule, step: int, x: Tensor, guesses: tuple[Tensor, ...]) -> Tensor:
    """Return the latents after a step from what is known at its start: the latest guess and, if any, the one before.

    With a single guess (the first step) or an infinite h (the last step) the guess is held constant. Otherwise a line
    through both guesses is used. The weight of its slope is w_0 / 2 instead of w_1, as in both papers at order 2 (the
    midpoint form; B2(h) with a coefficient of 1/2): the two differ by h^2 / 12, and the slope itself is of order h.
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
    """Repeat a step from its origin with the guess made at its end: the corrector UniC of UniPC.

    With one earlier guess (u = 0), the line through both guesses has the weight w_0 / 2, as above. With two (u = 0 and
    r < 0), the parabola through all three is integrated exactly: guess(u) = latest + a u + c u^2, where

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
