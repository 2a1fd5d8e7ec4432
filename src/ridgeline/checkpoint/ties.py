"""The tables of tokens that a checkpoint holds under the names of others: looked at before a model is filled."""

from ridgeline.checkpoint.folder import Checkpoint, open_checkpoint
from ridgeline.checkpoint.source import Source
from ridgeline.models.family import Family
from ridgeline.models.network import Network


def settle_tables(model: Network, family: Family, checkpoint: Checkpoint) -> None:
    """Arrange the tables of tokens of a model on meta as its checkpoint holds them: as one, or each for itself. Does
    nothing the second time."""
    tables = model.tables
    if tables is None or tables.settled:
        return
    there: dict[str, str] = {}
    for name in checkpoint.entries:
        for own in (family.own_name(name), family.own_name(family.trunk + name)):
            if own in tables.names:
                there.setdefault(own, name)
    held = tables.held(there, lambda first, second: checkpoint.same(there[first], there[second]))
    model.arrange_tables(held, there)


def settle_tables_of(source: Source, model: Network, family: Family) -> None:
    """The same for a source, before its model is priced. A GGUF file says itself whether its head is the embedding; a
    folder without weights is left to who loads them."""
    if source.gguf is None and source.folder is not None and source.has_weights and model.tables is not None:
        settle_tables(model, family, open_checkpoint(source.folder))
