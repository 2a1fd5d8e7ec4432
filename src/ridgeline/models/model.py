"""Model: the contract between a family and the engine."""

from abc import ABC, abstractmethod

from torch import Tensor, nn

from ridgeline.models.storage import Storage
from ridgeline.ops.attention import KVContext
from ridgeline.ops.experts import Experts
from ridgeline.ops.kv import KVSpec
from ridgeline.ops.op import Op


class Model(nn.Module, ABC):
    """What the engine runs: token ids, positions and a KV context in, logits of the wanted rows out."""

    kv_specs: tuple[KVSpec, ...]
    context: int
    vocabulary: int
    storage: Storage
    tied: bool

    @abstractmethod
    def forward(self, ids_T: Tensor, positions_T: Tensor, kv: KVContext, rows_R: Tensor) -> Tensor:
        """ids_T, positions_T int64 [rows]; rows_R int64: the rows whose logits are wanted -> fp32 [R, vocabulary]."""

    @abstractmethod
    def retie(self) -> None:
        """Point a tied head at the embedding again, after a loader has put a new parameter there."""

    @property
    def windows(self) -> frozenset[int | None]:
        """The window classes of its layers, as Work wants them."""
        return frozenset(spec.window for spec in self.kv_specs)

    def expand(self) -> None:
        """Create the parameters that pricing does without, before a loader fills them."""
        for module in self.modules():
            if isinstance(module, Experts):
                module.expand()

    def ops(self) -> list[tuple[str, Op]]:
        """Every op with its path, in the order of the module tree."""
        return [(path, module) for path, module in self.named_modules() if isinstance(module, Op)]
