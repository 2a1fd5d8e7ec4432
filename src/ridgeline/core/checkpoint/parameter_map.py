"""The mapping from checkpoint tensor names to the parameters of a model on meta."""

import re

import torch

from ridgeline.core.checkpoint.checkpoint_matching import KV_SCALE, match_to_checkpoint, own_name
from ridgeline.core.checkpoint.folder import Checkpoint
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.ops.stored_module import StoredModule


class ParameterMap:
    """A map from the tensors of a checkpoint to the modules of a model on meta that load them."""

    def __init__(self, model: PricedModule, family: Family, checkpoint: Checkpoint) -> None:
        """Create all parameters of a model on meta and match them to a checkpoint's tensors."""
        with torch.device("meta"):
            model.create_parameters()
        match_to_checkpoint(model, family, checkpoint)
        self._family, self._passed_over, self._tables = family, model.ignored_tensors, model.tables
        self.places: dict[str, tuple[StoredModule, str]] = model.tensors()
        """The module that loads each checkpoint tensor, and the tensor's name within the module, by full name."""

    def place(self, name: str) -> str:
        """Return the model's name of a checkpoint tensor, with the backbone prefix if the checkpoint omits it.

        The result is "" for a redundant copy of a token table.
        """
        own, whole = own_name(self._family, name), own_name(self._family, self._family.backbone_prefix + name)
        found = whole if not self._knows(own) and self._knows(whole) else own
        return found if self._tables is None else self._tables.renamed.get(found, found)

    def _knows(self, own: str) -> bool:
        """Return whether the model has a tensor or a token table with this name."""
        return own in self.places or (self._tables is not None and own in self._tables.names)

    def ignored(self, name: str) -> bool:
        """Return whether a checkpoint tensor that fills no parameter may be left out, judged by its name.

        Such tensors are redundant copies of a token table, those that the family or the model does not load, and scales
        of keys and values that the engine stores in another format than the checkpoint declares. A pattern of the
        model may describe the name in the checkpoint or the model's own.
        """
        own = self.place(name)
        if not own:
            return True
        patterns = (*self._passed_over, KV_SCALE.pattern)
        return self._family.ignores(name) or any(
            re.fullmatch(pattern, spelt) for pattern in patterns for spelt in (name, own)
        )
