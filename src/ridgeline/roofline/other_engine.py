"""The kernels of other engines, as a price knows them."""

from ridgeline.ops.backend import Backend


class OtherEngine(Backend):
    """An engine whose kernels are priced and not run, such as vLLM.

    It launches a kernel for each part of an op, as PyTorch does. The constants of the device say how fast they are.
    """

    name = "other engine"


OTHER_ENGINE = OtherEngine()
