"""The sampling of tokens from logits; sampler.py lists the order of the steps."""

from typing import TYPE_CHECKING

from ridgeline.engine.sampling.sample_row import (
    HiddenStates,
    History,
    Outcome,
    PromptLogprob,
    RowFailure,
    Sampled,
    SampleRow,
    Scored,
)

if TYPE_CHECKING:
    import torch

    from ridgeline.core.ops.backend import Backend
    from ridgeline.engine.sampling.sampler import Sampler

__all__ = [
    "HiddenStates",
    "History",
    "Outcome",
    "PromptLogprob",
    "RowFailure",
    "SampleRow",
    "Sampled",
    "Scored",
    "sampler_of",
]


def sampler_of(backend: "Backend", device: "torch.device") -> "Sampler":
    """Return the sampler for the logits that a backend computes on a device."""
    # The samplers need torch, which the engine's bookkeeping does without.
    from ridgeline.engine.sampling.in_numpy import NumpySampler
    from ridgeline.engine.sampling.native import NativeSampler
    from ridgeline.engine.sampling.on_device import DeviceSampler

    if device.type != "cpu":
        return DeviceSampler(backend)
    kernel = backend.sampling_kernel
    return NumpySampler() if kernel is None else NativeSampler(kernel)
