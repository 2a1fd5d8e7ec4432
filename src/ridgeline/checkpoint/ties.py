"""The choice of a model's tables of tokens, by the names under which its checkpoint holds them."""

from ridgeline.checkpoint.folder import Checkpoint, open_checkpoint
from ridgeline.checkpoint.source import Source
from ridgeline.models.family import Family
from ridgeline.models.network import Network


def settle_tables(model: Network, family: Family, checkpoint: Checkpoint) -> None:
    """Arrange the tables of tokens of a model on meta as its checkpoint holds them: shared, or one for each use.

    A second call does nothing.
    """
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
    """Arrange the tables of tokens as the checkpoint of a source holds them, before its model is priced.

    A GGUF file says itself whether its head is the embedding. A folder without weights is left to the loader.
    """
    if source.gguf is None and source.folder is not None and source.has_weights and model.tables is not None:
        settle_tables(model, family, open_checkpoint(source.folder))
