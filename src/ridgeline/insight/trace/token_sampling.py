"""A view of how tokens were sampled: candidates through temperature, top-k, top-p and min-p, and the random number.

Sampling is deterministic given that number: it indexes the cumulative distribution of the remaining candidates in
vocabulary order (engine/sampling/sampler.py, steps 6 to 10). The data comes from a separate run that reports the whole
vocabulary, so measured runs report no more than usual.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ridgeline.core.text import Tokenizer
from ridgeline.engine.llm import LLM
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import Sampled
from ridgeline.engine.sampling.uniform import uniform
from ridgeline.insight.trace.token_candidates import Token

MOST = 20
"""The maximum number of candidate tokens that a trace shows for each sampled token, besides the sampled one itself."""


@dataclass(frozen=True, slots=True)
class DrawCandidate:
    """A candidate token of a sampling step, with its probability after each sampling rule."""

    token: Token
    raw: float
    """The token's probability in the model's own distribution."""
    tempered: float
    """The token's probability after the temperature."""
    drawn: float | None
    """The token's probability in the distribution that was sampled from.

    It is None if the token was removed or sampling is greedy.
    """
    start: float | None
    """The start of the token's interval in [0, 1); None if it cannot be sampled or sampling is greedy."""
    removed: str
    """The rule that removed the token (top-k, top-p or min-p), or ""."""


@dataclass(frozen=True, slots=True)
class TokenDraw:
    """One sampling step with its candidates, the random number and the sampled token."""

    uniform: float | None
    """The random number in [0, 1) that selected the token; None for greedy sampling."""
    kept: int
    """The number of tokens of the vocabulary that could be sampled."""
    vocabulary: int
    candidates: tuple[DrawCandidate, ...]
    """The most likely candidates and the sampled one, most likely first."""
    taken: Token


def plain(params: SamplingParams) -> SamplingParams:
    """Return sampling parameters without rules that depend on earlier tokens: penalties, biases, constraints."""
    usual = SamplingParams()
    return replace(
        params,
        repetition_penalty=usual.repetition_penalty,
        frequency_penalty=usual.frequency_penalty,
        presence_penalty=usual.presence_penalty,
        logit_bias={},
        min_tokens=0,
        structured_outputs=None,
        thinking_token_budget=None,
        rules=None,
    )


def draws(llm: LLM, ids: Sequence[int], params: SamplingParams, count: int) -> list[TokenDraw]:
    """Return how the first `count` tokens after a prompt are sampled, by seeded, history-free parameters.

    Parameters are history-free if they have no penalties, biases or constraints (`plain`).

    Raises:
        ValueError: If the request fails.
    """
    assert params.seed is not None, "without a seed a draw cannot be repeated"
    vocabulary = llm.loaded.model.vocabulary
    all_tokens = replace(params, n=1, logprobs=vocabulary, max_tokens=count, ignore_eos=True)
    (completion,) = llm.generate([list(ids)], all_tokens)
    choice = completion.choices[0]
    if choice.error is not None:
        raise ValueError(f"the request failed: {choice.error}")
    points = uniform([params.seed] * count, [len(ids) + i for i in range(count)], [0] * count)
    return [
        _draw(one, None if params.greedy else float(point), params, llm.tokenizer)
        for one, point in zip(choice.tokens, points, strict=True)
    ]


def _draw(sampled: Sampled, point: float | None, params: SamplingParams, tokenizer: Tokenizer) -> TokenDraw:
    ranked = [(token, math.exp(logprob)) for token, logprob in sampled.top_raw]
    tempered = _tempered([logprob for _, logprob in sampled.top_raw], params)
    drawn = {} if point is None else {token: math.exp(logprob) for token, logprob in sampled.top}
    starts = _starts(drawn)
    removed = _removed(tempered, [token in drawn for token, _ in ranked], params, greedy=point is None)
    found = [
        DrawCandidate(
            Token(token, tokenizer.printable_token(token)),
            raw,
            tempered[at],
            drawn.get(token),
            starts.get(token),
            removed[at],
        )
        for at, (token, raw) in enumerate(ranked)
        if at < MOST or token == sampled.token
    ]
    taken = Token(sampled.token, tokenizer.printable_token(sampled.token))
    return TokenDraw(point, len(drawn) or 1, len(ranked), tuple(found), taken)


def _tempered(logprobs: Sequence[float], params: SamplingParams) -> list[float]:
    """Return probabilities after the temperature; greedy sampling leaves them unchanged."""
    divisor = 1.0 if params.greedy else params.temperature
    weights = [math.exp((logprob - logprobs[0]) / divisor) for logprob in logprobs]
    total = sum(weights)
    return [weight / total for weight in weights]


def _starts(drawn: dict[int, float]) -> dict[int, float]:
    """Return the start of each token's interval, in vocabulary order."""
    starts, before = dict[int, float](), 0.0
    for token in sorted(drawn):
        starts[token] = before
        before += drawn[token]
    return starts


def _removed(tempered: Sequence[float], kept: Sequence[bool], params: SamplingParams, *, greedy: bool) -> list[str]:
    """Return the rule that removed each candidate, in the order of the candidates."""
    if greedy:
        return [""] * len(tempered)
    most = params.top_k or len(tempered)
    target = params.top_p * sum(tempered[:most])
    reasons, before = list[str](), 0.0
    for at, (share, inside) in enumerate(zip(tempered, kept, strict=True)):
        unlikely = params.min_p > 0 and share < params.min_p * tempered[0]
        if inside:
            reasons.append("")
        elif at >= most:
            reasons.append("top-k")
        elif params.top_p < 1 and (before >= target or not unlikely):
            reasons.append("top-p")
        else:
            reasons.append("min-p")
        before += share
    return reasons
