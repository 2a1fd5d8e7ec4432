"""The arguments with which a diffusers pipeline requests timesteps from its scheduler.

The same scheduler_config.json gives different timesteps in different pipelines: some pipelines pass sigmas, some pass
the mu of dynamic shifting, some pass neither and leave both to the scheduler.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ridgeline.core.models.common.fields import Fields
from ridgeline.media.diffusion.schedules import Floats

Mu = Callable[[int, int], float]
"""A function from the latent's tokens and the number of steps to the mu of dynamic shifting."""


@dataclass(frozen=True, slots=True)
class TimestepCall:
    """The arguments that a pipeline class passes to `set_timesteps` in addition to the number of steps."""

    pipeline: str
    """The name of the pipeline class, for errors."""
    sigmas: Callable[[int], Floats] | None = None
    """The function from steps to the noise levels that the pipeline class passes to its scheduler, or None."""
    except_flow: bool = False
    """Whether the pipeline passes no sigmas if the scheduler's config has `use_flow_sigmas`."""
    mu: Callable[[Fields], Mu] | None = None
    """The function that reads the pipeline's mu (of dynamic shifting) from the scheduler's config, or None."""

    def passed_sigmas(self, fields: Fields) -> Callable[[int], Floats] | None:
        """Return the function that computes the sigmas to pass to a scheduler with this config; None if none."""
        return None if self.except_flow and fields.flag("use_flow_sigmas", False) else self.sigmas


def flux_sigmas(steps: int) -> Floats:
    """Return the sigmas 1, 1 - 1/n ... 1/n, rounded as in the pipelines of FLUX.1 and FLUX.2."""
    return np.linspace(1.0, 1 / steps, steps).astype(np.float32)


def z_image_sigmas(steps: int) -> Floats:
    """Return the sigmas 1, 1 - 1/n ... 1/n, rounded as in Z-Image's pipeline.

    Some differ from `flux_sigmas` in the last bit.
    """
    sigmas: Floats = torch.linspace(1.0, 1 / steps, steps, dtype=torch.float32).numpy()
    return sigmas


@dataclass(frozen=True, slots=True)
class TokenMu:
    """A mu that grows linearly with the tokens of the latent (FLUX.1)."""

    base: tuple[int, float]
    """The first point of the line from tokens to mu, as (tokens, mu)."""
    most: tuple[int, float]
    """The second point of the line from tokens to mu, as (tokens, mu)."""

    def __call__(self, tokens: int, steps: int) -> float:
        """Return the dynamic-shifting mu for a latent of `tokens` tokens; it does not depend on the steps."""
        (base_tokens, base_mu), (most_tokens, most_mu) = self.base, self.most
        slope = (most_mu - base_mu) / (most_tokens - base_tokens)
        return tokens * slope + (base_mu - slope * base_tokens)


def token_mu(fields: Fields) -> TokenMu:
    """Return the line for the mu of FLUX.1's and Z-Image's pipelines, read from a scheduler's config.

    Raises:
        ModelRefused: If the first point is not below the second.
    """
    base, most = fields.count("base_image_seq_len", 256), fields.count("max_image_seq_len", 4096)
    if base >= most:
        raise fields.refuse(f"base_image_seq_len = {base} must be below max_image_seq_len = {most}")
    shifts = fields.positive("base_shift", 0.5), fields.positive("max_shift", 1.15)
    return TokenMu((base, shifts[0]), (most, shifts[1]))


def flux2_mu(tokens: int, steps: int) -> float:
    """Return the mu of FLUX.2's pipelines, which does not depend on a config.

    Up to 4,300 tokens it is interpolated between a line in the tokens for 10 steps and another for 200 steps. Above
    that it is the line for 200 steps.
    """
    at_200 = 0.00016927 * tokens + 0.45666666
    if tokens > 4300:
        return at_200
    at_10 = 8.73809524e-05 * tokens + 1.89833333
    per_step = (at_200 - at_10) / 190.0
    return per_step * steps + (at_200 - 200.0 * per_step)
