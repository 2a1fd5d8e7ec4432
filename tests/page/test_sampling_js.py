"""What the page says is drawn from is what the engine's sampler draws from."""

import math
import random

import pytest
import torch

from page.modules import Modules
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling.in_numpy import NumpySampler
from ridgeline.engine.sampling.sample_row import Sampled, SampleRow

VOCABULARY = 16


@pytest.mark.parametrize("seed", range(40))
def test_chances_are_those_of_the_sampler(seed: int) -> None:
    random.seed(seed)
    rules = {
        "temperature": random.choice([0.0, 0.3, 0.8, 1.0, 1.7]),
        "top_k": random.choice([0, 1, 3, 7, VOCABULARY]),
        "top_p": random.choice([0.05, 0.5, 0.9, 1.0]),
        "min_p": random.choice([0.0, 0.0, 0.2]),
    }
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    params = SamplingParams(**rules, logprobs=VOCABULARY)  # type: ignore[arg-type]
    (sampled,) = NumpySampler().sample(logits, [SampleRow(params, seed, 0)])
    assert isinstance(sampled, Sampled)
    candidates = [{"token": token, "logprob": logprob} for token, logprob in sampled.top_raw]
    said = Modules("sampling.js").call("sampling.js", "chances", candidates, rules)
    shares = {each["token"]: share for each, share in zip(candidates, said["shares"], strict=True)}
    assert math.isclose(sum(shares.values()), 1.0, rel_tol=1e-12)
    if rules["temperature"] == 0.0:
        assert shares[sampled.token] == 1.0
        return
    assert said["exact"] == (rules["top_k"] > 0)
    wanted = {token: math.exp(logprob) for token, logprob in sampled.top}
    assert {token for token, share in shares.items() if share > 0} == set(wanted)
    for token, share in wanted.items():
        assert shares[token] == pytest.approx(share, rel=1e-5)
