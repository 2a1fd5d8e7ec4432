"""Samplers against diffusers' schedulers over whole schedules, and against an equation whose solution is known."""

import math
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from diffusion.schedulers import CONFIGS, draws, ours, relative, theirs
from ridgeline.media.diffusion.noise import Noise
from ridgeline.media.diffusion.samplers import DiffusionSampler, SamplerState, dpmpp_2m, euler, predicted_data, unipc
from ridgeline.media.diffusion.schedules import (
    Betas,
    NoiseLevel,
    Schedule,
    discrete_schedule,
    dpmpp_flow,
    euler_flow,
    unipc_flow,
)
from ridgeline.media.diffusion.timestep_call import flux_sigmas

SHAPE = (3, 5, 2, 7)
TOKENS = 1000


def no_noise() -> Tensor:
    raise AssertionError("this sampler adds no noise")


def largest_difference(name: str, steps: int, dtype: torch.dtype, seed: int = 0) -> float:
    """Of all states of a run whose denoiser says random things, ours beside theirs."""
    config = CONFIGS[name]
    scheduler, reference = ours(config), theirs(config, steps, TOKENS, exact=dtype == torch.float64)
    schedule = scheduler.schedule(steps, TOKENS)
    draw, generators = Noise(seed, 2, SHAPE), [torch.Generator().manual_seed(seed + image) for image in (0, 1)]
    for generator in generators:
        torch.randn(SHAPE, generator=generator)  # what sampling begins with
    x = draw().to(dtype)
    says = torch.Generator().manual_seed(seed + 100)
    state, expected, worst = SamplerState(x), x, 0.0
    stochastic = {"generator": generators} if draws(name) else {}
    for step, timestep in enumerate(reference.timesteps):
        prediction = torch.randn(x.shape, generator=says, dtype=dtype)
        state = scheduler.sampler(schedule, step, state, prediction, lambda: noise_of(draw, dtype))
        expected = reference.step(prediction, timestep, expected, **stochastic).prev_sample
        worst = max(worst, relative(state.x, expected))
    return worst


def noise_of(draw: Noise, dtype: torch.dtype) -> Tensor:
    """Noise in fp64 is drawn otherwise than in fp32: the reference is made to draw ours."""
    return draw().to(dtype)


@pytest.fixture(autouse=True)
def noise_in_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference's noise in fp32 whatever the latents are, as ours."""
    from diffusers.schedulers import scheduling_flow_match_euler_discrete, scheduling_lcm

    drawn = scheduling_lcm.randn_tensor

    def fp32(shape: tuple[int, ...], *, dtype: torch.dtype, **options: object) -> Tensor:
        return drawn(shape, dtype=torch.float32, **options).to(dtype)

    for module in (scheduling_lcm, scheduling_flow_match_euler_discrete):
        monkeypatch.setattr(module, "randn_tensor", fp32)


@pytest.mark.parametrize("steps", [*range(1, 13), 20, 28, 49, 50])
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_theirs(name: str, steps: int) -> None:
    """Every state of the run, where the reference computes in fp64."""
    assert largest_difference(name, steps, torch.float64, seed=steps) < 1e-6


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 50])
@pytest.mark.parametrize("name", CONFIGS)
def test_in_fp32(name: str, steps: int) -> None:
    """As released pipelines run. The reference computes its coefficients in fp32 too, where some cancel."""
    assert largest_difference(name, steps, torch.float32, seed=steps) < (1e-6 if steps < 50 else 3e-6)


# -- an equation whose solution is known ------------------------------------------------------------------------------

MEAN, DEVIATION = 0.7, 1.0


def normal_guess(x: Tensor, level: NoiseLevel) -> Tensor:
    """The best guess of data that is normal with MEAN and DEVIATION: what a perfect denoiser says."""
    gain = level.alpha * DEVIATION**2 / (level.alpha**2 * DEVIATION**2 + level.sigma**2)
    return MEAN + gain * (x - level.alpha * MEAN)


def normal_end(x: Tensor, first: NoiseLevel) -> Tensor:
    """Where its path ends: at the same place of the distribution."""
    return MEAN + DEVIATION * (x - first.alpha * MEAN) / math.hypot(first.alpha * DEVIATION, first.sigma)


def run(
    sampler: DiffusionSampler, schedule: Schedule, x: Tensor, guess: Callable[[Tensor, NoiseLevel], Tensor]
) -> Tensor:
    """Where a sampler ends with a denoiser that makes these guesses of the data."""
    state = SamplerState(x)
    for step, level in enumerate(schedule.levels[:-1]):
        data = guess(state.x, level)
        noise = (state.x - level.alpha * data) / level.sigma
        prediction = noise - data if schedule.prediction == "velocity" else noise
        assert torch.allclose(predicted_data(state.x, prediction, level, schedule.prediction), data)
        state = sampler(schedule, step, state, prediction, no_noise)
    return state.x


def error(sampler: DiffusionSampler, schedule: Schedule) -> float:
    """Of a run whose end is known."""
    x = torch.linspace(-2, 2, 9, dtype=torch.float64)
    return float((run(sampler, schedule, x, normal_guess) - normal_end(x, schedule.levels[0])).abs().max())


def flow(steps: int) -> Schedule:
    return dpmpp_flow(steps, 1.0, 1000)


def preserving(steps: int) -> Schedule:
    return discrete_schedule(steps, Betas(0.0001, 0.02, False, 1000))


@pytest.mark.parametrize(("sampler", "least"), [(euler, 1.9), (dpmpp_2m, 3.5), (unipc, 4.0)])
def test_order(sampler: DiffusionSampler, least: float) -> None:
    """Twice the steps halve Euler's error, of order 1, and divide that of order 2 by 4, the last step's apart."""
    errors = [error(sampler, flow(steps)) for steps in (50, 100, 200, 400)]
    for coarse, fine in pairwise(errors):
        assert coarse / fine > least, errors


@pytest.mark.parametrize("schedules", [flow, preserving])
def test_better_samplers_are_better(schedules: Callable[[int], Schedule]) -> None:
    """A line through guesses beats a constant, a parabola beats a line."""
    constant = error(dpmpp_first, schedules(50))
    line, parabola = error(dpmpp_2m, schedules(50)), error(unipc, schedules(50))
    assert constant > 10 * line > 10 * parabola


def two_bumps(x: Tensor, level: NoiseLevel) -> Tensor:
    """The best guess of data that lies about -1 or about 1, within 0.25: far from noise it has to make up its mind."""
    spread = level.alpha**2 * 0.25**2 + level.sigma**2
    means = torch.tensor([-1.0, 1.0], dtype=x.dtype)
    off = x[:, None] - level.alpha * means
    chances = (-(off**2) / (2 * spread)).softmax(1)
    return (chances * (means + level.alpha * 0.25**2 / spread * off)).sum(1)


def test_the_table_of_the_page() -> None:
    """docs/diffusion.md: how far from the path's end samplers stop on average, by steps."""
    x = torch.linspace(-2.5, 2.5, 100, dtype=torch.float64)  # no start lies between the two
    end = run(unipc, flow(999), x, two_bumps)
    samplers = {"Euler": euler, "DPM++ 2M": dpmpp_2m, "UniPC": unipc}
    page = (Path(__file__).parents[2] / "docs" / "diffusion.md").read_text(encoding="utf-8")
    steps = [int(count) for count in re.findall(r"^\| steps \|(.*)\|$", page, re.MULTILINE)[0].split("|")]
    for name, sampler in samplers.items():
        row = re.findall(rf"^\| {re.escape(name)} \|(.*)\|$", page, re.MULTILINE)[0].split("|")
        off = [float((run(sampler, flow(count), x, two_bumps) - end).abs().mean()) for count in steps]
        assert [f"{value:.4f}" for value in off] == [cell.strip() for cell in row], (name, off)


def dpmpp_first(schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: object) -> SamplerState:
    """DPM-Solver++ that forgets: its guess is held constant at each step, as Euler's and DDIM's."""
    return SamplerState(dpmpp_2m(schedule, step, SamplerState(state.x), prediction, no_noise).x)


def test_euler_is_the_solver_that_forgets() -> None:
    """Along the flow the two are one step, written twice."""
    for steps in (1, 2, 9):
        schedule = flow(steps)
        assert error(euler, schedule) == pytest.approx(error(dpmpp_first, schedule), rel=1e-12)


def test_unipc_without_its_corrector_is_dpmpp_2m() -> None:
    """Of order 2 with B2(h) the predictors agree."""

    def uncorrected(
        schedule: Schedule, step: int, state: SamplerState, prediction: Tensor, draw: object
    ) -> SamplerState:
        after = unipc(schedule, step, SamplerState(state.x, state.data_predictions), prediction, no_noise)
        return SamplerState(after.x, after.data_predictions)

    for steps in (1, 2, 3, 11):
        assert error(uncorrected, preserving(steps)) == error(dpmpp_2m, preserving(steps))


@pytest.mark.parametrize(
    "schedule", [euler_flow(flux_sigmas(1), 3.0, 1000), unipc_flow(1, 3.0, 1000), flow(1), preserving(1)]
)
def test_one_step_is_the_guess(schedule: Schedule) -> None:
    """From noise to data at once: what the denoiser says of the data."""
    x, prediction = torch.randn(2, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).unbind()
    expected = predicted_data(x, prediction, schedule.levels[0], schedule.prediction)
    for sampler in (dpmpp_2m, unipc) if schedule.prediction == "noise" else (euler, dpmpp_2m, unipc):
        if schedule.levels[0].alpha or sampler is euler:  # lambda of pure noise is -inf
            assert torch.allclose(sampler(schedule, 0, SamplerState(x), prediction, no_noise).x, expected, rtol=1e-9)
