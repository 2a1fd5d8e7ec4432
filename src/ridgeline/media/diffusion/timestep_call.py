"""The call by which a pipeline of diffusers has its scheduler make timesteps.

The same scheduler_config.json gives other timesteps in another pipeline: some pipelines pass sigmas, some pass the mu
of dynamic shifting, some pass neither and leave both to the scheduler.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ridgeline.core.models.common.fields import Fields
from ridgeline.media.diffusion.schedules import Floats

Mu = Callable[[int, int], float]
"""The mu of dynamic shifting, for a latent of so many tokens in so many steps."""


@dataclass(frozen=True, slots=True)
class TimestepCall:
    """The arguments that a class of pipelines gives `set_timesteps` in addition to the number of steps.

    Args:
        pipeline: the class, for errors.
        sigmas: makes the sigmas that it passes; None if it passes none.
        except_flow: whether it passes no sigmas if the scheduler's config says `use_flow_sigmas`.
        mu: reads from the scheduler's config the mu that it passes; None if it passes none.
    """

    pipeline: str
    sigmas: Callable[[int], Floats] | None = None
    except_flow: bool = False
    mu: Callable[[Fields], Mu] | None = None

    def passed_sigmas(self, fields: Fields) -> Callable[[int], Floats] | None:
        """Return what makes the sigmas that it passes to the scheduler of this config, None if it passes none."""
        return None if self.except_flow and fields.flag("use_flow_sigmas", False) else self.sigmas


def flux_sigmas(steps: int) -> Floats:
    """Return the sigmas 1, 1 - 1/n ... 1/n as pipelines of FLUX.1 and FLUX.2 round them."""
    return np.linspace(1.0, 1 / steps, steps).astype(np.float32)


def z_image_sigmas(steps: int) -> Floats:
    """Return the same sigmas as Z-Image's pipeline rounds them: some differ in the last bit."""
    sigmas: Floats = torch.linspace(1.0, 1 / steps, steps, dtype=torch.float32).numpy()
    return sigmas


@dataclass(frozen=True, slots=True)
class TokenMu:
    """A mu that grows with the tokens of the latent, on the line through two points (FLUX.1).

    Args:
        base, most: the points, each (tokens, mu).
    """

    base: tuple[int, float]
    most: tuple[int, float]

    def __call__(self, tokens: int, steps: int) -> float:
        (base_tokens, base_mu), (most_tokens, most_mu) = self.base, self.most
        slope = (most_mu - base_mu) / (most_tokens - base_tokens)
        return tokens * slope + (base_mu - slope * base_tokens)


def token_mu(fields: Fields) -> TokenMu:
    """Read the line of FLUX.1's and Z-Image's pipelines from a scheduler's config. Raises ModelRefused."""
    base, most = fields.count("base_image_seq_len", 256), fields.count("max_image_seq_len", 4096)
    if base >= most:
        raise fields.refuse(f"base_image_seq_len = {base} is not below max_image_seq_len = {most}")
    shifts = fields.positive("base_shift", 0.5), fields.positive("max_shift", 1.15)
    return TokenMu((base, shifts[0]), (most, shifts[1]))


def flux2_mu(tokens: int, steps: int) -> float:
    """Return the mu of FLUX.2's pipelines, which read none from a config.

    It lies on a line in the tokens for 200 steps, on another for 10, and in between by the steps; past 4,300 tokens it
    is that for 200 steps.
    """
    at_200 = 0.00016927 * tokens + 0.45666666
    if tokens > 4300:
        return at_200
    at_10 = 8.73809524e-05 * tokens + 1.89833333
    per_step = (at_200 - at_10) / 190.0
    return per_step * steps + (at_200 - 200.0 * per_step)
