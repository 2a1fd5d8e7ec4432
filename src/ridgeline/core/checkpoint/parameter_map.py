"""The places in a model on meta that the tensors of its checkpoint fill, found by name."""

import re

import torch

from ridgeline.core.checkpoint.checkpoint_matching import KV_SCALE, match_to_checkpoint, own_name
from ridgeline.core.checkpoint.folder import Checkpoint
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.stored_module import StoredModule


class ParameterMap:
    """The places in a model on meta that the tensors of a checkpoint go to.

    places: the module that takes each tensor, and the tensor's name there.
    """

    def __init__(self, model: PricedModule, family: Family, checkpoint: Checkpoint) -> None:
        with torch.device("meta"):
            model.expand()
        match_to_checkpoint(model, family, checkpoint)
        self._family, self._passed_over, self._tables = family, model.passed_over, model.tables
        self.places: dict[str, tuple[StoredModule, str]] = model.tensors()

    def place(self, name: str) -> str:
        """Return the model's name of a tensor, with the trunk's name added if the checkpoint leaves it out; "" for a
        second copy of a table of tokens.
        """
        own, whole = own_name(self._family, name), own_name(self._family, self._family.trunk + name)
        found = whole if not self._knows(own) and self._knows(whole) else own
        return found if self._tables is None else self._tables.renamed.get(found, found)

    def _knows(self, own: str) -> bool:
        return own in self.places or (self._tables is not None and own in self._tables.names)

    def ignored(self, name: str) -> bool:
        """Whether nothing reads a tensor of the checkpoint: a second copy of a table of tokens, or scales of keys and
        values that are kept in another format than the checkpoint says.
        """
        if not self.place(name):
            return True
        patterns = (*self._family.ignored, *self._passed_over, KV_SCALE.pattern)
        return any(re.fullmatch(pattern, name) for pattern in patterns)
