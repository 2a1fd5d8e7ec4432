"""Greedy, temperature, top-k and top-p sampling, from scratch.

A model computes a number for every token of its vocabulary: the logits. This file turns them into one token in forty
lines of plain Python and compares the result with the engine's sampler: the same uniform number must give the same
token every time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean

from ridgeline.core.text import Tokenizer
from ridgeline.engine import LLM, SamplingParams
from ridgeline.engine.events import StepRecord
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import Sampled
from ridgeline.engine.sampling.uniform import uniform
from ridgeline.util.document.charts import Chart, Series
from ridgeline.util.document.elements import Bullets, Document, DocumentTable, Paragraph, TableRow, columns

SETTINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 0.5": SamplingParams(temperature=0.5),
    "temperature 1.5": SamplingParams(temperature=1.5),
    "top-k 5": SamplingParams(temperature=1.0, top_k=5),
    "top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "all three": SamplingParams(temperature=0.7, top_k=40, top_p=0.9),
}


def likeliest_first(logits: Sequence[float]) -> list[int]:
    """Return all tokens, sorted by descending logit; of equal ones the lower id first."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def probabilities(logits: Sequence[float], tokens: Sequence[int], temperature: float) -> list[float]:
    """Return the probabilities of some tokens: the softmax of their logits divided by the temperature.

    A temperature below 1 makes likely tokens more likely, one above 1 evens them out.
    """
    largest = max(logits[token] for token in tokens)
    weights = [math.exp((logits[token] - largest) / temperature) for token in tokens]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def top_p_of(logits: Sequence[float], ranked: list[int], temperature: float, p: float) -> list[int]:
    """Return the shortest prefix of the ranked tokens whose total probability is at least p."""
    mass = 0.0
    for count, probability in enumerate(probabilities(logits, ranked, temperature), 1):
        mass += probability
        if mass >= p:
            return ranked[:count]
    return ranked


def candidates(logits: Sequence[float], params: SamplingParams) -> list[int]:
    """Return the ids of the tokens that top-k and top-p leave to draw from, in ascending order."""
    ranked = likeliest_first(logits)
    if params.top_k:
        ranked = ranked[: params.top_k]
    if params.top_p < 1:
        ranked = top_p_of(logits, ranked, params.temperature, params.top_p)
    return sorted(ranked)


def draw(logits: Sequence[float], params: SamplingParams, u: float) -> int:
    """Draw a token: the candidates lie side by side, each as wide as its probability, and u in [0, 1) falls on one."""
    if params.temperature == 0:
        return likeliest_first(logits)[0]
    tokens = candidates(logits, params)
    end = 0.0
    for token, probability in zip(tokens, probabilities(logits, tokens, params.temperature), strict=True):
        end += probability
        if u < end:
            return token
    return tokens[-1]  # rounding may leave the total below 1


@dataclass(slots=True)
class ShadowSampler:
    """A sampler that observes an engine: it draws every token a second time, by this file's rules, and compares."""

    runner: Runner
    """The runner of the observed engine."""
    agreed: list[bool] = field(default_factory=list)
    """Whether the engine's sampler and this file's sampler drew the same token, one entry per token."""
    kept: list[int] = field(default_factory=list)
    """The number of candidates that top-k and top-p left for each token; 1 for greedy sampling."""
    first: list[float] = field(default_factory=list)
    """The logits of the first observed token."""

    def __post_init__(self) -> None:
        self.runner.save_states()

    def observe(self, record: StepRecord) -> None:
        """Draw the tokens of an engine step again, from the logits of a second run of the step, and compare them."""
        self.runner.rewind()
        logits_RV = self.runner.forward(record.plan.rerun())
        for logits, row, chosen in zip(logits_RV.tolist(), record.rows, record.outcomes, strict=True):
            (u,) = uniform([row.seed], [row.position], [row.choice])
            assert isinstance(chosen, Sampled)
            self.agreed.append(draw(logits, row.params, u) == chosen.token)
            self.kept.append(1 if row.params.greedy else len(candidates(logits, row.params)))
            self.first = self.first or logits


@dataclass(frozen=True, slots=True)
class Continuation:
    """The text that one sampling setting generated, with a comparison of two samplers for each token."""

    name: str
    """The name of the sampling setting."""
    text: str
    """The text that the sampling setting generated."""
    tokens: list[int]
    """The ids of the tokens that the model generated with this sampling setting."""
    agreed: list[bool]
    """Whether the engine's sampler and this file's sampler drew the same token, one entry per token."""
    kept: list[int]
    """The number of candidates that the sampling setting left for each token; 1 for greedy sampling."""
    logits: list[float]
    """The logits of the first generated token."""


def compare(llm: LLM, prompt: str, count: int, seed: int) -> list[Continuation]:
    """Run the experiment: every sampling setting continues the same prompt with the same seed."""
    runner = llm.engine.executor
    assert isinstance(runner, Runner)
    found = []
    for name, params in SETTINGS.items():
        second = ShadowSampler(runner)
        llm.engine.on_step = second.observe
        (completion,) = llm.generate(prompt, replace(params, max_tokens=count, seed=seed))
        (one,) = completion.choices
        found.append(Continuation(name, one.text, one.token_ids, second.agreed, second.kept, second.first))
    llm.engine.on_step = None
    return found


# -- the report -------------------------------------------------------------------------------------------------------

_SHOWN, _DRAWN, _RANKS = 10, 24, 100  # rows of the table, points per curve, and the last rank in the figure
_TEXT = 56  # characters of a text in the table
_TEMPERATURES = (0.5, 1.0, 1.5, 2.0)


def document(written: Sequence[Continuation], prompt: str, tokenizer: Tokenizer) -> Document:
    """Return the document with each setting's text, and the first token's distribution at several temperatures."""
    rows = tuple(
        TableRow(
            (o.name, f"{sum(o.agreed)} of {len(o.agreed)}", f"{mean(o.kept):,.1f}", o.text.replace("\n", " ")[:_TEXT])
        )
        for o in written
    )
    logits = written[0].logits
    ranked = likeliest_first(logits)
    shares = {t: probabilities(logits, ranked, t) for t in _TEMPERATURES}
    return Document(
        "Greedy, temperature, top-k and top-p",
        (
            Bullets(_words(written)),
            DocumentTable(columns("setting", "same as engine", "candidates", "text", words=(0, 3)), rows),
            _first(logits, ranked, shares, tokenizer),
            Chart(
                "Probabilities of the first token at several temperatures", "rank of the token by probability",
                "probability", tuple(_line(t, share) for t, share in shares.items()), log_x=True, log_y=True,
            ),
            Paragraph(f"source code of the experiment: {__file__}", "dim"),
        ),
        f"How do logits become the next token after {prompt!r}?",
    )  # fmt: skip


def _line(temperature: float, shares: Sequence[float]) -> Series:
    """Return the curve of probabilities by rank: each of the first ranks, later ones at logarithmic distances."""
    ranks = sorted({round(_RANKS ** (n / _DRAWN)) for n in range(_DRAWN + 1)})
    return Series(
        f"temperature {temperature:g}", tuple((rank, shares[rank - 1]) for rank in ranks if rank <= len(shares))
    )


def as_json(written: Sequence[Continuation], prompt: str) -> dict[str, object]:
    """Return the prompt, and each sampling setting's text, token ids and candidate counts, as JSON data.

    It includes the number of tokens that the engine's sampler and this file's sampler drew alike.
    """
    settings = {
        o.name: {"token_ids": o.tokens, "agreed": sum(o.agreed), "candidates": o.kept, "text": o.text} for o in written
    }
    return {"prompt": prompt, "settings": settings}


def _first(
    logits: Sequence[float], ranked: Sequence[int], shares: Mapping[float, Sequence[float]], tokenizer: Tokenizer
) -> DocumentTable:
    """Return the table of the most likely first tokens and the rules that keep them."""
    rules = {"top-k 5": SamplingParams(top_k=5), "top-p 0.9": SamplingParams(top_p=0.9)}
    kept = {name: set(candidates(logits, params)) for name, params in rules.items()}
    rows = [
        TableRow(
            (
                repr(tokenizer.printable_token(token)),
                f"{logits[token]:.2f}",
                *(f"{share[rank]:.1%}" for share in shares.values()),
                " and ".join(name for name, tokens in kept.items() if token in tokens),
            )
        )
        for rank, token in enumerate(ranked[:_SHOWN])
    ]
    names = ("first token", "logit", *(f"temp. {t:g}" for t in shares), "kept by")
    return DocumentTable(columns(*names, words=(0, len(names) - 1)), tuple(rows))


def _words(written: Sequence[Continuation]) -> tuple[str, ...]:
    agreed, drawn = sum(sum(o.agreed) for o in written), sum(len(o.agreed) for o in written)
    texts = len({o.text for o in written})
    return (
        f"{len(written)} settings, one prompt, one seed: {texts} different text{'s' if texts > 1 else ''}.",
        "Greedy sampling takes the most likely token without randomness, so every run gives the same text.",
        "Temperature divides the logits before the softmax: below 1 it makes likely tokens more likely, above 1 it "
        "makes unlikely tokens more likely. It never changes their order.",
        "top-k keeps the k most likely tokens, whatever their probabilities. top-p keeps the most likely tokens whose "
        "probabilities add up to p: few if the model is sure, many if it is not (see the column `candidates`).",
        "Then a uniform random number u in [0, 1) selects one of the candidates by their cumulative probabilities. It "
        "depends only on the seed, the position and the index of the choice, so the same seed gives the same text, "
        "whatever other requests are in the batch.",
        f"Forty lines of Python and the engine's sampler chose the same token in {agreed:,} of {drawn:,} cases.",
    )
