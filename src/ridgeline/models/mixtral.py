"""Mixtral (arXiv:2401.04088): Mistral whose MLP is a mixture of experts in every layer."""

from typing import Any

from torch import nn

from ridgeline.models.decoder import Block, Decoder
from ridgeline.models.fields import MOST_EXPERTS, Fields
from ridgeline.models.llama import read_settings
from ridgeline.models.mistral import read_window
from ridgeline.models.mixture import Mixture
from ridgeline.models.settings import DecoderSettings, MixtureSettings
from ridgeline.models.storage import Storage


class MixtralBlock(Block):
    """A block whose second half is `block_sparse_moe`."""

    feed_forward_name = "block_sparse_moe"

    def feed_forward(self, s: DecoderSettings, layer: int) -> nn.Module:
        mixture = s.mixtures[layer]
        assert mixture is not None
        return Mixture(s, mixture, ("w1", "w3", "w2"))  # gate, up, down


class Mixtral(Decoder):
    """Mixtral."""

    block = MixtralBlock


def build(fields: Fields, storage: Storage) -> Mixtral:
    """Mixtral 8x7B and 8x22B; weights of the experts picked are always renormalised."""
    count, active = fields.count("num_local_experts", most=MOST_EXPERTS), fields.count("num_experts_per_tok")
    if active > count:
        raise fields.refuse(f"num_experts_per_tok {active} is more than num_local_experts {count}")
    mixture = MixtureSettings(count, active, fields.count("intermediate_size"), renormalise=True)
    own: dict[str, Any] = {"windows": (read_window(fields),) * fields.layers, "mixtures": (mixture,) * fields.layers}
    return Mixtral(read_settings(fields, storage, theta=1_000_000.0, **own))
