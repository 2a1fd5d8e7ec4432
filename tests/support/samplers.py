"""The sampler that an engine on this machine's processor has."""

import torch

from ridgeline.backends import backend_of
from ridgeline.engine.sampling import sampler_of

CPU = torch.device("cpu")
CPU_SAMPLER = sampler_of(backend_of(CPU), CPU)
