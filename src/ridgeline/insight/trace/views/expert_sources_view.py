"""The report section on expert routing by text, and on the number of experts that batches touch."""

from ridgeline.insight.trace.expert_sources import PIECE, SHUFFLES, ExpertSources, RoutingEffect, SourceLayer
from ridgeline.util.document.elements import (
    AnyCell,
    Column,
    DocumentBlock,
    DocumentTable,
    Heading,
    Heat,
    TableRow,
    columns,
)

_NUMBERED = 16  # up to this number of experts, shares are printed as numbers, otherwise as shades


def sources_view(sources: ExpertSources) -> tuple[DocumentBlock, ...]:
    """Return the report blocks on expert routing: shares by layer and text, their effect size, and experts per batch.

    The effect size is the difference between texts, compared with chance.
    """
    counted = ", ".join(f"{name} {count:,}" for name, count in zip(sources.names, sources.tokens, strict=True))
    experts = len(sources.layers[0].shares[0])
    rows = (TableRow((f"{own.batch}", *map(_two, (own.mixed, own.alone, own.formula)))) for own in sources.touched)
    return (
        Heading(f"Whose experts: percent of the picks of each text ({counted} tokens)"),
        _shares(sources, experts),
        Heading("How differently texts are routed, and by chance"),
        _effects(sources),
        Heading(f"Of {experts} experts a batch touches: on these texts, and of a balanced router"),
        DocumentTable(columns("batch", "all texts", "one text", "E (1 - (1 - k/E)^T)"), tuple(rows)),
    )


def _two(count: float) -> str:
    return f"{count:.2f}"


def _shares(sources: ExpertSources, experts: int) -> DocumentTable:
    written = experts <= _NUMBERED
    names = [f"e{number}" for number in range(experts)] if written else ["share by expert (relative to the maximum)"]
    rows = tuple(row for own in sources.layers for row in _rows(own, sources.names))
    note = (
        f"+ and -: more or less than whenever pieces of {PIECE} tokens were dealt to texts by chance, {SHUFFLES} times"
    )
    return DocumentTable(
        columns("layer", "text", *names, words=(0, 1)), rows, (note,) if written else (), dense=written
    )


def _rows(own: SourceLayer, names: tuple[str, ...]) -> list[TableRow]:
    rows = []
    for number, (name, shares) in enumerate(zip(names, own.shares, strict=True)):
        cells: tuple[AnyCell, ...] = (Heat(tuple(share / max(shares) for share in shares)),)
        if len(shares) <= _NUMBERED:
            cells = tuple(map(_beside_chance, shares, own.least[number], own.most[number]))
        rows.append(TableRow((str(own.layer) if number == 0 else "", name, *cells)))
    return rows


def _beside_chance(share: float, least: float, most: float) -> str:
    return f"{100 * share:.1f}{'+' if share > most else '-' if share < least else ' '}"


def _effects(sources: ExpertSources) -> DocumentTable:
    heads = [
        Column(head, group=group)
        for group in ("total variation distance", "mutual information")
        for head in ("found", "shuffled", "±", "most")
    ]
    rows = (TableRow((str(own.layer), *_effect(own.apart), *_effect(own.information))) for own in sources.layers)
    notes = (
        "total variation distance: of two texts' shares, the mean of all pairs; mutual information: of a pick and its "
        "text, texts weighed alike, of all there is to tell",
        "shuffled, ±, most: mean, standard deviation and largest where pieces are dealt to texts by chance",
    )
    return DocumentTable((Column("layer", words=True), *heads), tuple(rows), notes)


def _effect(effect: RoutingEffect) -> tuple[str, ...]:
    return tuple(f"{value:.3f}" for value in (effect.found, effect.shuffled, effect.deviation, effect.most))
