"""The page of `lab sampling`."""

from collections.abc import Sequence
from statistics import mean

from ridgeline.engine import SamplingParams
from ridgeline.lab import sampling
from ridgeline.lab.page import Bar, Bars, Page, Table
from ridgeline.lab.sampling import Outcome, candidates, likeliest_first, probabilities
from ridgeline.text import Tokenizer

_SHOWN = 12  # tokens in the picture
_TEXT = 56  # characters of a text in the table


def page(found: Sequence[Outcome], prompt: str, tokenizer: Tokenizer) -> Page:
    """What every setting wrote, and the distribution of the first token with what each rule keeps of it."""
    rows = tuple(
        (o.name, f"{sum(o.agreed)} of {len(o.agreed)}", f"{mean(o.kept):,.1f}", o.text.replace("\n", " ")[:_TEXT])
        for o in found
    )
    return Page(
        "Greedy, temperature, top-k and top-p",
        f"How does a list of numbers become the next token after {prompt!r}?",
        (
            Table(("setting", "same as engine", "candidates", "text"), rows, words=(0, 3)),
            _temperatures(found[0].logits, tokenizer),
        ),
        _picture(found[0].logits, tokenizer),
        _words(found),
        sampling.__file__,
        {
            "prompt": prompt,
            "settings": {
                o.name: {"token_ids": o.tokens, "agreed": sum(o.agreed), "candidates": o.kept, "text": o.text}
                for o in found
            },
        },
    )


def _temperatures(logits: Sequence[float], tokenizer: Tokenizer) -> Table:
    """How likely the likeliest tokens are at three temperatures."""
    ranked = likeliest_first(logits)
    columns = {t: probabilities(logits, ranked, t) for t in (0.5, 1.0, 1.5)}
    rows = [
        (repr(tokenizer.piece(token)), f"{logits[token]:.2f}", *(f"{column[rank]:.1%}" for column in columns.values()))
        for rank, token in enumerate(ranked[:6])
    ]
    return Table(("token", "logit", *(f"at {t:g}" for t in columns)), tuple(rows))


def _picture(logits: Sequence[float], tokenizer: Tokenizer) -> Bars:
    ranked = likeliest_first(logits)
    shares = probabilities(logits, ranked, 1.0)
    rules = {"top-k": SamplingParams(top_k=5), "top-p": SamplingParams(top_p=0.9)}
    kept = {name: set(candidates(logits, params)) for name, params in rules.items()}
    bars = []
    for token, share in list(zip(ranked, shares, strict=True))[:_SHOWN]:
        by = [name for name, tokens in kept.items() if token in tokens]
        bars.append(Bar(repr(tokenizer.piece(token)), share, f"kept by {' and '.join(by)}" if by else "", dim=not by))
    title = f"The first token at temperature 1: top-k 5 keeps 5, top-p 0.9 keeps {len(kept['top-p'])}"
    return Bars(title, "probability", tuple(bars))


def _words(found: Sequence[Outcome]) -> tuple[str, ...]:
    agreed, drawn = sum(sum(o.agreed) for o in found), sum(len(o.agreed) for o in found)
    return (
        "Greedy takes the likeliest token and uses no chance; run it twice, it says the same.",
        "Temperature divides the logits before the softmax: under 1 the likely become likelier, above 1 the unlikely "
        "get their turn. It never changes the order.",
        "top-k keeps the k likeliest whatever they are worth; top-p keeps as many as it takes to reach p: few where "
        "the model is sure, many where it is not (the column of candidates).",
        "Then one number u in [0, 1) decides: the candidates lie side by side, each as wide as it is likely. It is "
        "made from seed, position and choice alone, so the same seed gives the same text, whoever else is served.",
        f"Forty lines of Python and the engine's sampler chose the same token {agreed:,} times out of {drawn:,}.",
    )
