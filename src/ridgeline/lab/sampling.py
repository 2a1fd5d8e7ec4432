"""Greedy, temperature, top-k and top-p, from scratch.

A model gives a number for every token of its vocabulary: the logits. What follows turns them into one token, in forty
lines of plain Python, and is held against the engine's sampler: the same uniform number, the same token, each time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ridgeline.engine import LLM, SamplingParams
from ridgeline.engine.plan import StepPlan
from ridgeline.engine.runner import Runner
from ridgeline.engine.sampling import RowFailure, Sampled, SampleRow, sample
from ridgeline.engine.sampling.uniform import uniform

SETTINGS = {
    "greedy": SamplingParams(temperature=0.0),
    "temperature 0.5": SamplingParams(temperature=0.5),
    "temperature 1.5": SamplingParams(temperature=1.5),
    "top-k 5": SamplingParams(temperature=1.0, top_k=5),
    "top-p 0.9": SamplingParams(temperature=1.0, top_p=0.9),
    "all three": SamplingParams(temperature=0.7, top_k=40, top_p=0.9),
}


def likeliest_first(logits: Sequence[float]) -> list[int]:
    """All tokens, the one with the largest logit first; of equals the one with the lower id."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def probabilities(logits: Sequence[float], tokens: Sequence[int], temperature: float) -> list[float]:
    """Softmax over some tokens. A temperature under 1 makes the likely ones likelier, one above 1 evens them out."""
    largest = max(logits[token] for token in tokens)
    weights = [math.exp((logits[token] - largest) / temperature) for token in tokens]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def top_p_of(logits: Sequence[float], ranked: list[int], temperature: float, p: float) -> list[int]:
    """The fewest of the likeliest tokens that together have the probability p."""
    mass = 0.0
    for count, probability in enumerate(probabilities(logits, ranked, temperature), 1):
        mass += probability
        if mass >= p:
            return ranked[:count]
    return ranked


def candidates(logits: Sequence[float], params: SamplingParams) -> list[int]:
    """The tokens that may be drawn, in the order of their ids."""
    ranked = likeliest_first(logits)
    if params.top_k:
        ranked = ranked[: params.top_k]
    if params.top_p < 1:
        ranked = top_p_of(logits, ranked, params.temperature, params.top_p)
    return sorted(ranked)


def draw(logits: Sequence[float], params: SamplingParams, u: float) -> int:
    """A token: the candidates lie side by side, each as wide as it is likely, and u in [0, 1) falls on one of them."""
    if params.temperature == 0:
        return likeliest_first(logits)[0]
    tokens = candidates(logits, params)
    end = 0.0
    for token, probability in zip(tokens, probabilities(logits, tokens, params.temperature), strict=True):
        end += probability
        if u < end:
            return token
    return tokens[-1]  # the sum of all may fall short of 1 by a rounding


@dataclass(slots=True)
class SecondSampler:
    """Runs the engine's plans as its runner does, and draws every token a second time."""

    runner: Runner
    agreed: list[bool] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    first: list[float] = field(default_factory=list)

    def execute(self, plan: StepPlan, rows: Sequence[SampleRow]) -> Sequence[Sampled | RowFailure]:
        """As Executor.execute."""
        logits_RV = self.runner.forward(plan)
        theirs = sample(logits_RV, rows)
        for logits, row, chosen in zip(logits_RV.tolist(), rows, theirs, strict=True):
            (u,) = uniform([row.seed], [row.position], [row.choice])
            assert isinstance(chosen, Sampled)
            self.agreed.append(draw(logits, row.params, u) == chosen.token)
            self.kept.append(1 if row.params.greedy else len(candidates(logits, row.params)))
            self.first = self.first or logits
        return theirs


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a setting wrote, and what was seen of each token: whether both samplers drew it, from how many candidates.
    logits: those of the first one."""

    name: str
    text: str
    tokens: list[int]
    agreed: list[bool]
    kept: list[int]
    logits: list[float]


def compare(llm: LLM, prompt: str, count: int, seed: int) -> list[Outcome]:
    """The experiment: every setting continues the same prompt with the same seed."""
    runner = llm.engine.executor
    assert isinstance(runner, Runner)
    found = []
    for name, params in SETTINGS.items():
        llm.engine.executor = second = SecondSampler(runner)
        (completion,) = llm.generate(prompt, replace(params, max_tokens=count, seed=seed))
        (one,) = completion.choices
        found.append(Outcome(name, one.text, one.token_ids, second.agreed, second.kept, second.first))
    llm.engine.executor = runner
    return found
