"""Schedules against diffusers': the levels that a sampler passes, and what the denoiser is told at each."""

import math

import numpy as np
import pytest

from diffusion.schedulers import CONFIGS, ours, theirs
from ridgeline.media.diffusion.schedules import dynamically_shifted, euler_flow, shift_sigmas
from ridgeline.media.diffusion.timestep_call import TokenMu, flux2_mu, flux_sigmas

STEPS = [*range(1, 51), 99, 250]


@pytest.mark.parametrize(
    ("name", "tokens"),
    [(name, tokens) for name in CONFIGS for tokens in (256, 1000, 4096)[: 3 if "shift" in name else 1]],
)
def test_it_is_theirs(name: str, tokens: int) -> None:
    """Timesteps and levels, for every number of steps."""
    scheduler = ours(CONFIGS[name])
    for steps in [steps for steps in STEPS if steps <= scheduler.most_steps]:
        schedule, reference = scheduler.schedule(steps, tokens), theirs(CONFIGS[name], steps, tokens)
        told = [schedule.time(step) * 1000 for step in range(schedule.steps)]
        assert told == pytest.approx(reference.timesteps.tolist(), rel=3e-7), steps
        if hasattr(reference, "sigmas"):
            flow = schedule.prediction == "velocity"
            kept = [level.sigma / (1 if flow else level.alpha) for level in schedule.levels]
            assert kept == pytest.approx(reference.sigmas.tolist(), rel=3e-7), steps
        else:
            kept = [level.alpha**2 for level in schedule.levels[:-1]]
            assert kept == pytest.approx(reference.alphas_cumprod[reference.timesteps].tolist(), rel=1e-12), steps


@pytest.mark.parametrize("name", CONFIGS)
def test_timesteps_are_theirs_exactly(name: str) -> None:
    """For every number of steps: cut to integers one rounding would move a step; Euler's, and its sigmas, have those
    of fp32."""
    scheduler = ours(CONFIGS[name])
    for steps in range(1, min(scheduler.most_steps, 400) + 1):
        schedule, reference = scheduler.schedule(steps, 4096), theirs(CONFIGS[name], steps, 4096)
        assert list(schedule.timesteps) == reference.timesteps.tolist()
        if name.startswith("euler"):
            assert [level.sigma for level in schedule.levels] == reference.sigmas.tolist()


@pytest.mark.parametrize("name", CONFIGS)
def test_levels_fall(name: str) -> None:
    """From noise to data, one by one, also for the most steps that are let through."""
    scheduler = ours(CONFIGS[name])
    for steps in (1, 2, 7, scheduler.most_steps):
        ratios = [level.half_log_snr for level in scheduler.schedule(steps, 4096).levels if level.alpha]
        assert ratios == sorted(set(ratios))


@pytest.mark.parametrize("name", CONFIGS)
def test_steps_that_cannot_be(name: str) -> None:
    scheduler = ours(CONFIGS[name])
    for steps in (0, -1, scheduler.most_steps + 1, 10**6):
        with pytest.raises(ValueError, match=rf"^the number of steps is {steps}; this model takes 1 to \d+$"):
            scheduler.schedule(steps, 4096)


def test_dynamic_shift_is_static_shift_by_tokens() -> None:
    """The reference has two formulas; one is the other with e^mu."""
    mu = TokenMu((256, 0.5), (4096, 1.15))
    assert [mu(tokens, 9) for tokens in (256, 2176, 4096)] == pytest.approx([0.5, 0.825, 1.15])
    levels = np.array([0.1, 0.5, 0.9])
    assert shift_sigmas(levels, math.exp(0.8)) == pytest.approx(dynamically_shifted(levels, math.exp(0.8)))
    assert shift_sigmas(shift_sigmas(levels, 3.0), 1 / 3.0) == pytest.approx(levels)


@pytest.mark.parametrize("tokens", [64, 1024, 4096, 4300, 4301, 16384])
@pytest.mark.parametrize("steps", [1, 4, 28, 50, 200])
def test_flux2s_mu(tokens: int, steps: int) -> None:
    """That of its pipelines."""
    from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

    assert flux2_mu(tokens, steps) == compute_empirical_mu(tokens, steps)


def test_shift_moves_steps_towards_noise() -> None:
    """SD3: with shift 3 the level that was half noise is three quarters."""
    assert shift_sigmas(0.5, 3.0) == 0.75
    plain, leaning = (euler_flow(flux_sigmas(8), shift, 1000).levels for shift in (1.0, 3.0))
    assert all(p.sigma < s.sigma for p, s in zip(plain[1:-1], leaning[1:-1], strict=True))
    assert (plain[0], plain[-1]) == (leaning[0], leaning[-1])
