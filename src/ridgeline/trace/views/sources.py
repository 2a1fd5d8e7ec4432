"""Whose experts: the shares of texts, and how many experts batches of their tokens touch."""

from ridgeline.document.page import AnyCell, Block, Heading, Heat, Row, Table, columns
from ridgeline.trace.expert_sources import RUN, SHUFFLES, ExpertSources, SourceLayer

_NUMBERED = 16  # experts whose shares are written out; more are shades


def sources_view(sources: ExpertSources) -> tuple[Block, ...]:
    """Shares by layer and source; how far apart sources are, beside chance; experts touched, beside the formula."""
    counted = ", ".join(f"{name} {count:,}" for name, count in zip(sources.names, sources.tokens, strict=True))
    experts = len(sources.layers[0].shares[0])
    rows = (Row((f"{own.batch}", *map(_two, (own.mixed, own.alone, own.formula)))) for own in sources.touched)
    return (
        Heading(f"Whose experts: percent of the picks of each text ({counted} tokens)"),
        _shares(sources, experts),
        _apart(sources),
        Heading(f"Of {experts} experts a batch touches: on these texts, and of a balanced router"),
        Table(columns("batch", "all texts", "one text", "E (1 - (1 - k/E)^T)"), tuple(rows)),
    )


def _two(count: float) -> str:
    return f"{count:.2f}"


def _shares(sources: ExpertSources, experts: int) -> Table:
    names = [f"e{number}" for number in range(experts)] if experts <= _NUMBERED else ["share by expert (of its most)"]
    rows = tuple(row for own in sources.layers for row in _rows(own, sources.names))
    return Table(columns("layer", "text", *names, words=(0, 1)), rows, dense=experts <= _NUMBERED)


def _rows(own: SourceLayer, names: tuple[str, ...]) -> list[Row]:
    rows = []
    for number, (name, shares) in enumerate(zip(names, own.shares, strict=True)):
        cells: tuple[AnyCell, ...] = tuple(f"{100 * share:.1f}" for share in shares)
        if len(shares) > _NUMBERED:
            cells = (Heat(tuple(share / max(shares) for share in shares)),)
        rows.append(Row((str(own.layer) if number == 0 else "", name, *cells)))
    return rows


def _apart(sources: ExpertSources) -> Table:
    rows = tuple(
        Row((str(own.layer), f"{own.apart:.3f}", f"{own.shuffled:.3f}", f"{own.most:.3f}")) for own in sources.layers
    )
    note = (
        "apart: total variation distance of two texts' shares, the mean of all pairs; shuffled: of runs of "
        f"{RUN} tokens dealt to texts by chance, the mean of {SHUFFLES} times; at most: the largest of them"
    )
    return Table(columns("layer", "apart", "shuffled", "at most"), rows, (note,))
