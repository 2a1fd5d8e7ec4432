"""The report sections on captured activations: attention, logit lens, feed-forward memory and experts."""

from collections.abc import Iterator, Sequence

from ridgeline.insight.trace.cross_attention import CrossAttentionWeights
from ridgeline.insight.trace.expert_routing import RoutedLayer, Routing
from ridgeline.insight.trace.feed_forward_memory import FeedForwardMemory
from ridgeline.insight.trace.lens import Lens
from ridgeline.insight.trace.token_candidates import Token
from ridgeline.insight.trace.trace_ledger import Ledger
from ridgeline.util.document.elements import (
    UNEVEN,
    Cell,
    DocumentBlock,
    DocumentTable,
    Heading,
    Heat,
    TableRow,
    columns,
)

_TOP = 3
_GRID = 9  # up to this number of columns, a grid has numbers, otherwise shades


def show_piece(token: Token, width: int = 0) -> str:
    """Return a token's text between marks that make its spaces visible, shortened to `width` if that is not 0."""
    text = f"‹{token.piece}›"
    return text if not width or len(text) <= width else f"{text[: width - 2]}…›"


def attention_view(ledger: Ledger, layer: int | None) -> tuple[DocumentBlock, ...]:
    """Return the attention of a token in every layer, as a mean over heads, and in each head of one layer.

    By default, that is the last layer with attention.
    """
    attention = ledger.attention
    assert attention is not None
    tokens = (*ledger.prompt, *ledger.written)
    chosen = max(attention.layers, default=0) if layer is None else layer
    rows: list[TableRow | str] = [
        _looked(f"layer {number}", attention.mean(index), tokens) for index, number in enumerate(attention.layers)
    ]
    if chosen in attention.layers:
        own = attention.weights[attention.layers.index(chosen)]
        rows.append(f"each head of layer {chosen}")
        rows += [_looked(f"head {head}", weights, tokens) for head, weights in enumerate(own)]
    else:
        rows.append(f"layer {chosen} has no attention")
    heads = columns("", f"positions 0 to {attention.position}", "most (layers: mean of heads)", words=(0, 1, 2))
    title = f"Attention: the tokens that token {attention.position} {show_piece(tokens[attention.position])} attends to"
    return Heading(title), DocumentTable(heads, tuple(rows))


def _looked(name: str, weights: Sequence[float], tokens: Sequence[Token]) -> TableRow:
    """Return a table row with a token's attention weights by position, and the positions of the largest."""
    top = sorted(range(len(weights)), key=lambda position: -weights[position])[:_TOP]
    seen = "  ".join(f"{position} {show_piece(tokens[position], 14)} {weights[position]:.2f}" for position in top)
    return TableRow((name, Heat(tuple(weights), UNEVEN), seen))


def cross_view(cross: CrossAttentionWeights, layer: int | None) -> tuple[DocumentBlock, ...]:
    """Return the cross-attention grid of one layer, by default the last: generated tokens by input tokens."""
    chosen = len(cross.weights) - 1 if layer is None else layer
    title = (
        f"Cross-attention of layer {chosen}, mean of its {cross.heads} heads: attention to the input tokens for each "
        "output token"
    )
    narrow = len(cross.sources) <= _GRID
    names = [show_piece(token, 12) for token in cross.sources] if narrow else ["input tokens from left to right"]
    rows = [
        TableRow(
            (show_piece(token), *(_shares(weights) if narrow else (Heat(weights, UNEVEN),)), _most(weights, cross))
        )
        for token, weights in zip(cross.produced, cross.weights[chosen], strict=True)
    ]
    heads = columns("produced", *names, "most", words=(0, *(() if narrow else (1,)), len(names) + 1))
    return Heading(title), DocumentTable(heads, tuple(rows))


def _shares(weights: Sequence[float]) -> tuple[Cell, ...]:
    """Return the cells of a row of weights, with the largest highlighted."""
    return tuple(Cell(f"{weight:.2f}", "strong" if weight == max(weights) else "") for weight in weights)


def _most(weights: Sequence[float], cross: CrossAttentionWeights) -> str:
    """Return the input token with a row's largest weight."""
    peak = max(range(len(weights)), key=lambda column: weights[column])
    return f"{show_piece(cross.sources[peak], 14)} {weights[peak]:.2f}"


def lens_view(lens: Lens) -> tuple[DocumentBlock, ...]:
    """Return the table of each layer's prediction, with the rank of the model's own prediction."""
    word = show_piece(lens.word)
    rows = []
    for row in lens.rows:
        likeliest = "  ".join(f"{show_piece(token, 16)} {share:.1%}" for token, share in row.top[:4])
        cells = (_after(row.after), f"{row.rank:,}", f"{row.share:.1%}", likeliest)
        rows.append(TableRow(cells, "strong" if row.rank == 1 else ""))
    return (
        Heading(f"Lens: after token {lens.position} (counted from 0) the model predicts {word}; predictions by layer"),
        DocumentTable(
            columns("after", f"rank of {word}", "share", "likeliest", words=(0, 3)),
            tuple(rows),
            (f"{word} stays first from {_after(lens.settled)} on",),
        ),
    )


def _after(place: str) -> str:
    return place if place == "embedding" else f"layer {place}"


def memory_view(memory: FeedForwardMemory, layer: int | None) -> tuple[DocumentBlock, ...]:
    """Return the table of the most active neurons by layer, and the tokens that they promote."""
    rows = []
    for neuron in (neuron for neurons in memory.layers for neuron in neurons if layer in (None, neuron.layer)):
        name = str(neuron.index) if neuron.expert is None else f"e{neuron.expert}/{neuron.index}"
        words = "  ".join(f"{show_piece(token, 16)} {raised:+.1f}" for token, raised in neuron.promotes)
        rows.append(TableRow((str(neuron.layer), name, f"{neuron.activation:.3f}", words)))
    heads = columns("layer", "neuron", "activation", "tokens whose logits it raises most", words=(0, 3))
    title = f"Memory: the most active feed-forward neurons at token {memory.position}"
    return Heading(title), DocumentTable(heads, tuple(rows))


def experts_view(ledger: Ledger, layer: int | None) -> tuple[DocumentBlock, ...]:
    """Return the load of each mixture layer, the experts of one token, and for one layer those of every token."""
    routing = ledger.experts
    assert routing is not None
    tokens = (*ledger.prompt, *ledger.written)
    here, count = show_piece(tokens[routing.position]), len(routing.layers[0].picked)
    heads = columns("layer", "hit", "balanced", "busiest", "load by expert (relative to the maximum)", words=(0, 4))
    picked = tuple(TableRow((str(routed.layer), _picked(routed, routing.position))) for routed in routing.layers)
    return (
        Heading(f"Experts: where {count} tokens were routed, and token {routing.position} {here}"),
        DocumentTable(heads, tuple(_load(routed) for routed in routing.layers)),
        DocumentTable(columns("layer", f"experts of token {routing.position}, by weight", words=(0, 1)), picked),
        *([] if layer is None else _every_token(routing, layer, tokens)),
    )


def _load(routed: RoutedLayer) -> TableRow:
    loads = Heat(tuple(tokens / max(routed.load) for tokens in routed.load))
    hit = f"{routed.hit}/{len(routed.load)}"
    return TableRow((str(routed.layer), hit, f"{routed.expected:.1f}", f"{routed.imbalance:.1f}x", loads))


def _picked(routed: RoutedLayer, position: int) -> str:
    pairs = zip(routed.picked[position], routed.weights[position], strict=True)
    return "  ".join(f"e{expert} {weight:.2f}" for expert, weight in pairs)


def _every_token(routing: Routing, layer: int, tokens: Sequence[Token]) -> Iterator[DocumentBlock]:
    routed = next((routed for routed in routing.layers if routed.layer == layer), None)
    if routed is None:
        yield Heading(f"layer {layer} is dense")
        return
    heads = columns("", "token", f"experts of every token in layer {layer}", words=(0, 1, 2))
    pairs = range(len(routed.picked))
    yield DocumentTable(heads, tuple(TableRow((str(p), show_piece(tokens[p], 18), _picked(routed, p))) for p in pairs))
