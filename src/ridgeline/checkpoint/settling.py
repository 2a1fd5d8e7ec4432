"""Choices about a model on meta that its checkpoint makes: its tables of tokens, and the dtype of its routers."""

from ridgeline.checkpoint.folder import Checkpoint, open_checkpoint
from ridgeline.checkpoint.source import Source
from ridgeline.models.family import Family
from ridgeline.models.network import Network
from ridgeline.ops.router import Router


def settle(model: Network, family: Family, checkpoint: Checkpoint) -> None:
    """Arrange the tables of tokens of a model on meta as its checkpoint holds them: shared, or one for each use. Let
    routers that compute in fp32 keep a matrix that is stored in fp32.

    A second call does nothing.
    """
    there: dict[str, str] = {}
    for name in checkpoint.entries:
        for own in (family.own_name(name), family.own_name(family.trunk + name)):
            there.setdefault(own, name)
    _settle_routers(model, checkpoint, there)
    tables = model.tables
    if tables is None or tables.settled:
        return
    held_there = {own: name for own, name in there.items() if own in tables.names}
    dtype = model.storage.dtype
    held = tables.held(held_there, lambda one, other: checkpoint.same(there[one], there[other], dtype))
    model.arrange_tables(held, held_there)


def settle_by(source: Source, model: Network, family: Family) -> None:
    """Settle a model as the checkpoint of a source holds it, before it is priced.

    A GGUF file says itself whether its head is the embedding. A folder without weights is left to the loader.
    """
    if source.gguf is None and source.folder is not None and source.has_weights:
        settle(model, family, open_checkpoint(source.folder))


def _settle_routers(model: Network, checkpoint: Checkpoint, there: dict[str, str]) -> None:
    """Keep in fp32 the matrices of routers that transformers keeps so (`_keep_in_fp32_modules_strict`)."""
    for path, op in model.ops():
        if isinstance(op, Router) and op.rule.wide:
            name = there.get(model.checkpoint_name(f"{path}.matrix.weight"))
            if name is not None and checkpoint.entries[name].dtype == "F32":
                op.widen()
