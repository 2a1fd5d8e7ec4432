"""What a look inside found, for the terminal: attention, lens, feed-forward memory, experts."""

from collections.abc import Sequence

from rich.text import Text

from ridgeline.trace.experts import RoutedLayer, Routing
from ridgeline.trace.ledger import Ledger
from ridgeline.trace.lens import Lens
from ridgeline.trace.memory import Memory
from ridgeline.trace.tokens import Token
from ridgeline.trace.views import heat

_MAP = 72  # columns of a heat map
_TOP = 3


def show_piece(token: Token, width: int = 0) -> str:
    """A token between marks, so that its spaces show; cut to `width` if there is one."""
    text = f"‹{token.piece}›"
    return text if not width or len(text) <= width else f"{text[: width - 2]}…›"


def attention_view(ledger: Ledger, layer: int | None) -> list[Text]:
    """Whom the token looked at: every layer (its heads averaged), then each head of one layer, by default the last."""
    attention = ledger.attention
    assert attention is not None
    tokens = (*ledger.prompt, *ledger.written)
    chosen = len(attention.weights) - 1 if layer is None else layer
    texts = [
        _title(f"Attention: whom token {attention.position} {show_piece(tokens[attention.position])} looked at"),
        Text(f"{'':10}positions 0 to {attention.position}, each layer's heads averaged; {heat.LEGEND}", style="dim"),
    ]
    for index in range(len(attention.weights)):
        mean = attention.mean(index)
        best = sorted(range(len(mean)), key=lambda position: -mean[position])[:_TOP]
        seen = "  ".join(_looked(tokens, position, mean[position]) for position in best)
        texts.append(Text(f"layer {index:<3} │{heat.heat_row(mean, _MAP)}│ {seen}"))
    texts.append(Text(f"{'':10}each head of layer {chosen}", style="dim"))
    for head, weights in enumerate(attention.weights[chosen]):
        seen = "  ".join(_looked(tokens, position, share) for position, share in attention.top(chosen, head, _TOP))
        texts.append(Text(f"head {head:<4} │{heat.heat_row(weights, _MAP)}│ {seen}"))
    return texts


def _looked(tokens: Sequence[Token], position: int, share: float) -> str:
    return f"{position} {show_piece(tokens[position], 14)} {share:.2f}"


def lens_view(lens: Lens) -> list[Text]:
    """What each layer would have said, and where the model's own word stood there."""
    word = show_piece(lens.word)
    texts = [
        _title(f"Lens: after token {lens.position} the model says {word}; what each layer would have said"),
        Text(f"{'after':11}{f'rank of {word}':>18}{'share':>8}   likeliest", style="dim"),
    ]
    for row in lens.rows:
        name = row.after if row.after == "embedding" else f"layer {row.after}"
        likeliest = "  ".join(f"{show_piece(token, 16)} {share:.1%}" for token, share in row.top[:4])
        text = Text(f"{name:11}{row.rank:18,}{row.share:8.1%}   {likeliest}")
        text.stylize("bold" if row.rank == 1 else "")
        texts.append(text)
    where = lens.settled if lens.settled == "embedding" else f"layer {lens.settled}"
    return [*texts, Text(f"{word} stays first from {where} on", style="dim")]


def memory_view(memory: Memory, layer: int | None) -> list[Text]:
    """The neurons that fired most, layer by layer, and what they promote."""
    texts = [
        _title(f"Memory: the feed-forward neurons that fired most at token {memory.position}"),
        Text(f"{'layer':7}{'neuron':>14}{'activation':>12}   logits that it raises most, by how much", style="dim"),
    ]
    for neurons in memory.layers:
        for neuron in neurons:
            if layer is not None and neuron.layer != layer:
                continue
            name = str(neuron.index) if neuron.expert is None else f"e{neuron.expert}/{neuron.index}"
            words = "  ".join(f"{show_piece(token, 16)} {raised:+.1f}" for token, raised in neuron.promotes)
            texts.append(Text(f"{neuron.layer:<7}{name:>14}{neuron.activation:12.3f}   {words}"))
    return texts


def experts_view(ledger: Ledger, layer: int | None) -> list[Text]:
    """Load of each mixture, the experts of the token asked about, and in one layer those of every token."""
    routing = ledger.experts
    assert routing is not None
    tokens = (*ledger.prompt, *ledger.written)
    here = show_piece(tokens[routing.position])
    count = len(routing.layers[0].picked)
    texts = [
        _title(f"Experts: where {count} tokens were routed, and token {routing.position} {here}"),
        Text(f"{'layer':7}{'hit':>9}{'balanced':>10}{'busiest':>9}   load by expert (of its most)", style="dim"),
    ]
    texts += [_load_line(routed) for routed in routing.layers]
    texts.append(Text(f"{'layer':7}experts of token {routing.position}, by weight", style="dim"))
    texts += [Text(f"{routed.layer:<7}{_picked(routed, routing.position)}") for routed in routing.layers]
    if layer is not None:
        texts += _every_token(routing, layer, tokens)
    return texts


def _load_line(routed: RoutedLayer) -> Text:
    most = max(routed.load)
    hit = f"{routed.hit}/{len(routed.load)}"
    loads = heat.heat_row([tokens / most for tokens in routed.load], _MAP, heat.EVEN)
    return Text(f"{routed.layer:<7}{hit:>9}{routed.expected:10.1f}{routed.imbalance:8.1f}x   │{loads}│")


def _picked(routed: RoutedLayer, position: int) -> str:
    pairs = zip(routed.picked[position], routed.weights[position], strict=True)
    return "  ".join(f"e{expert} {weight:.2f}" for expert, weight in pairs)


def _every_token(routing: Routing, layer: int, tokens: Sequence[Token]) -> list[Text]:
    routed = next((routed for routed in routing.layers if routed.layer == layer), None)
    if routed is None:
        return [Text(f"layer {layer} is dense", style="dim")]
    texts = [Text(f"every token in layer {layer}", style="dim")]
    for position in range(len(routed.picked)):
        texts.append(Text(f"{position:<4}{show_piece(tokens[position], 18):19}{_picked(routed, position)}"))
    return texts


def _title(text: str) -> Text:
    return Text(text, style="bold")
