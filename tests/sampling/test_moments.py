"""Rules of speech models against transformers' processors: on random logits, after random tokens that may come."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from ridgeline.core.ops.backend import REFERENCE
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.sampling import Sampled, SampleRow
from ridgeline.engine.sampling.on_device import DeviceSampler
from ridgeline.engine.sampling.sampler import apply_timestamp_rule
from ridgeline.engine.token_rules import TimestampRules, TokenRuleProcessor, TokenRules, unpacked
from support.samplers import CPU_SAMPLER

VOCABULARY, FIRST, END, BANNED = 123, 90, 70, 89
PROMPT = (1, 2, 3)
SUPPRESSED, SUPPRESSED_FIRST = (3, 5, 88, 97), (7, END)
GREEDY = SamplingParams(temperature=0.0)


def rules_of(*, moments: bool, most_first: int | None = 5) -> TokenRules:
    """With an opening of two places."""
    own = TimestampRules(FIRST, END, BANNED, most_first) if moments else None
    return TokenRules(((60, 61), (62,)), SUPPRESSED, SUPPRESSED_FIRST, own)


def theirs(logits_1V: Tensor, said: list[int], *, moments: bool, most_first: int | None) -> Tensor:
    """Transformers' logits after the tokens that follow the opening."""
    ids = torch.tensor([[*PROMPT, *said]])
    chain = [
        SuppressTokensAtBeginLogitsProcessor(SUPPRESSED_FIRST, len(PROMPT)),
        SuppressTokensLogitsProcessor(SUPPRESSED),
    ]
    if moments:
        config = SimpleNamespace(
            no_timestamps_token_id=BANNED, eos_token_id=END, bos_token_id=None, max_initial_timestamp_index=most_first
        )
        chain.append(WhisperTimeStampLogitsProcessor(config, begin_index=len(PROMPT)))
    for processor in chain:
        logits_1V = processor(ids, logits_1V.clone())
    return logits_1V[0]


@pytest.mark.parametrize("moments", [True, False])
@pytest.mark.parametrize("most_first", [5, None])
def test_random_logits(moments: bool, most_first: int | None) -> None:
    """The tokens that are left are the same, in 400 cases, and so is the likeliest, by the sampler of each sort."""
    rng, rules = np.random.default_rng(7), rules_of(moments=moments, most_first=most_first)
    outweighed = 0
    for case in range(400):
        said: list[int] = []
        for _ in range(int(rng.integers(0, 8))):
            said.append(int(rng.integers(FIRST, VOCABULARY) if rng.random() < 0.5 else rng.integers(0, END)))
        logits_1V = torch.tensor(rng.standard_normal((1, VOCABULARY)) * rng.choice([0.3, 3.0]), dtype=torch.float32)
        guide = TokenRuleProcessor(rules, VOCABULARY).copy()
        for token in (60, 62, *said):
            guide.take(token)
        row = SampleRow(GREEDY, 0, 9, allowed=guide.allowed(), timestamps=guide.timestamps)
        narrowed = apply_timestamp_rule(logits_1V, [row])[0]
        assert narrowed.allowed is not None
        expected = theirs(logits_1V, said, moments=moments, most_first=most_first)
        assert np.array_equal(unpacked(narrowed.allowed, VOCABULARY), torch.isfinite(expected).numpy()), (case, said)
        outweighed += narrowed is not row
        for sampler in (CPU_SAMPLER, DeviceSampler(REFERENCE)):
            (sampled,) = sampler.sample(logits_1V, [row])
            assert isinstance(sampled, Sampled)
            assert sampled.token == int(expected.argmax())
    assert (outweighed > 20) == moments


def test_the_opening_comes_first() -> None:
    """Each of its places in turn, whatever is suppressed after it; the rules of moments wait."""
    guide = TokenRuleProcessor(rules_of(moments=True), VOCABULARY)
    for allowed in ((60, 61), (62,)):
        assert guide.timestamps is None
        assert tuple(np.flatnonzero(unpacked(guide.allowed(), VOCABULARY))) == allowed
        guide.take(allowed[-1])
    assert guide.timestamps == FIRST
    assert set(np.flatnonzero(unpacked(guide.allowed(), VOCABULARY))) == set(range(FIRST, FIRST + 6)) - set(SUPPRESSED)


def test_rows_without_rules_are_left_alone() -> None:
    """And a row beside them that has some changes nothing of theirs."""
    guide = TokenRuleProcessor(rules_of(moments=True), VOCABULARY)
    guide.take(60), guide.take(62)
    logits_RV = torch.randn(3, VOCABULARY, generator=torch.Generator().manual_seed(1))
    plain = SampleRow(GREEDY, 0, 9)
    ruled = SampleRow(GREEDY, 0, 9, allowed=guide.allowed(), timestamps=guide.timestamps)
    both = CPU_SAMPLER.sample(logits_RV, [plain, ruled, plain])
    assert [both[0], both[2]] == CPU_SAMPLER.sample(logits_RV[[0, 2]], [plain, plain])
    rows = [plain, plain]
    assert apply_timestamp_rule(logits_RV[:2], rows) is rows


def test_rules_that_make_no_sense() -> None:
    """One line each."""
    with pytest.raises(ValueError, match="no token at one of the first positions"):
        TokenRules(((1,), ()))
    with pytest.raises(ValueError, match="rules has the id 123; give token ids from 0 to 122"):
        SamplingParams(rules=TokenRules(suppressed=(123,))).check_vocab(VOCABULARY)
