"""The mixture of experts in the place of an MLP: a router and its experts."""

from torch import Tensor, nn

from ridgeline.models.settings import DecoderSettings, MixtureSettings
from ridgeline.ops.collective import all_reduce
from ridgeline.ops.experts import Experts
from ridgeline.ops.linear import Linear


class Mixture(nn.Module):
    """`names`: what the checkpoint calls an expert's gate, up and down matrices."""

    part = "feed-forward"

    def __init__(self, s: DecoderSettings, m: MixtureSettings, names: tuple[str, str, str]) -> None:
        super().__init__()
        self.gate = Linear(s.hidden, m.count, s.dtype)
        self.experts = Experts(
            m.count, m.active, s.hidden, m.width, s.activation, s.dtype,
            renormalise=m.renormalise, names=names, shard=s.shard, stored=s.storage.weights,
        )  # fmt: skip
        self.all_reduce = all_reduce(s.hidden, s.dtype, s.shard)

    def forward(self, x_TD: Tensor) -> Tensor:
        """x_TD [rows, hidden] -> [rows, hidden]."""
        out: Tensor = self.all_reduce(self.experts(x_TD, self.gate(x_TD)))
        return out
