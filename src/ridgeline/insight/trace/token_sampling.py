"""How a token came to be drawn: its candidates through temperature, top-k, top-p and min-p, and the number that chose.

Sampling is deterministic given that number: it is put through the inverse of the cumulative distribution of what is
left, in the order of the vocabulary (engine/sampling/sampler.py, steps 6 to 10). Read from a run of its own that
reports the whole vocabulary, so that what is measured reports no more than usual.
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
"""Candidates that are kept of a draw."""


@dataclass(frozen=True, slots=True)
class DrawCandidate:
    """A candidate. raw: its probability in the model's own distribution. tempered: after the temperature. drawn: in
    what was drawn from, and start: where its part of [0, 1) begins there; None where it was removed, or nothing is
    drawn. removed: by which rule (top-k, top-p, min-p), "" where it was not.
    """

    token: Token
    raw: float
    tempered: float
    drawn: float | None
    start: float | None
    removed: str


@dataclass(frozen=True, slots=True)
class TokenDraw:
    """One choice. uniform: the number in [0, 1) that chose; None of a greedy one. candidates: the likeliest, and the
    one that was taken, likeliest first. kept: of `vocabulary` tokens, how many could be drawn.
    """

    uniform: float | None
    kept: int
    vocabulary: int
    candidates: tuple[DrawCandidate, ...]
    taken: Token


def plain(params: SamplingParams) -> SamplingParams:
    """Rules without what looks at the tokens before: penalties, biases and forms of output."""
    usual = SamplingParams()
    return replace(
        params,
        repetition_penalty=usual.repetition_penalty,
        frequency_penalty=usual.frequency_penalty,
        presence_penalty=usual.presence_penalty,
        logit_bias={},
        min_tokens=0,
        structured_outputs=None,
        rules=None,
    )


def draws(llm: LLM, ids: Sequence[int], params: SamplingParams, count: int) -> list[TokenDraw]:
    """How the first `count` tokens after a prompt were drawn, by plain rules with a seed. Raises ValueError where the
    request fails.
    """
    assert params.seed is not None, "without one a draw is not to be had again"
    vocabulary = llm.loaded.model.vocabulary
    asked = replace(params, n=1, logprobs=vocabulary, max_tokens=count, ignore_eos=True)
    (completion,) = llm.generate([list(ids)], asked)
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
            Token(token, tokenizer.piece(token)), raw, tempered[at], drawn.get(token), starts.get(token), removed[at]
        )
        for at, (token, raw) in enumerate(ranked)
        if at < MOST or token == sampled.token
    ]
    taken = Token(sampled.token, tokenizer.piece(sampled.token))
    return TokenDraw(point, len(drawn) or 1, len(ranked), tuple(found), taken)


def _tempered(logprobs: Sequence[float], params: SamplingParams) -> list[float]:
    """Probabilities after the temperature; a greedy choice leaves them as they are."""
    divisor = 1.0 if params.greedy else params.temperature
    weights = [math.exp((logprob - logprobs[0]) / divisor) for logprob in logprobs]
    total = sum(weights)
    return [weight / total for weight in weights]


def _starts(drawn: dict[int, float]) -> dict[int, float]:
    """Where the part of each token begins, in the order of the vocabulary."""
    starts, before = dict[int, float](), 0.0
    for token in sorted(drawn):
        starts[token] = before
        before += drawn[token]
    return starts


def _removed(tempered: Sequence[float], kept: Sequence[bool], params: SamplingParams, *, greedy: bool) -> list[str]:
    """Which rule removed each candidate, of all in their order."""
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
