"""The structure of a model on meta that depends on the tensors of its checkpoint: token tables, dtype of routers."""

from collections.abc import Mapping

from ridgeline.checkpoint.folder import Checkpoint, open_checkpoint
from ridgeline.checkpoint.source import Source
from ridgeline.models.family import Family
from ridgeline.models.network import Network
from ridgeline.ops.router import Router


def settle(model: Network, family: Family, checkpoint: Checkpoint) -> None:
    """Give a model on meta the token tables of its checkpoint (shared, or one for each use), and its fp32 routers.

    A second call does nothing.
    """
    stored_names: dict[str, str] = {}  # by the names that the model has for them
    for name in checkpoint.entries:
        for own in (family.own_name(name), family.own_name(family.trunk + name)):
            stored_names.setdefault(own, name)
    _settle_routers(model, checkpoint, stored_names)
    _settle_tables(model, checkpoint, stored_names)


def settle_from_source(model: Network, family: Family, source: Source) -> None:
    """Settle a model as the checkpoint of a source holds it, before the model is priced.

    A GGUF file says itself whether its head is the embedding. A folder without weights is left to the loader.
    """
    if source.gguf is None and source.folder is not None and source.has_weights:
        settle(model, family, open_checkpoint(source.folder))


def _settle_tables(model: Network, checkpoint: Checkpoint, stored_names: Mapping[str, str]) -> None:
    """Arrange the token tables as the checkpoint holds them."""
    tables = model.tables
    if tables is None or tables.settled:
        return
    there = {own: name for own, name in stored_names.items() if own in tables.names}
    dtype = model.storage.dtype
    model.arrange_tables(tables.held(there, lambda a, b: checkpoint.same(there[a], there[b], dtype)), there)


def _settle_routers(model: Network, checkpoint: Checkpoint, stored_names: Mapping[str, str]) -> None:
    """Keep a router's matrix in fp32 if it is stored so and transformers keeps it (`_keep_in_fp32_modules_strict`)."""
    for path, op in model.ops():
        if isinstance(op, Router) and op.rule.wide:
            name = stored_names.get(model.checkpoint_name(f"{path}.matrix.weight"))
            if name is not None and checkpoint.entries[name].dtype == "F32":
                op.widen()
