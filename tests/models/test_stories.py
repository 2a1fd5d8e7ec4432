"""stories260K, a trained model: its perplexity, its golden text, and what a cache saves."""

from pathlib import Path

import pytest
import torch

from ridgeline.backends.model_loader import load_model
from ridgeline.core.models.common.model import Model
from ridgeline.core.text import Tokenizer, load_tokenizer
from ridgeline.engine import LLM, SamplingParams
from ridgeline.engine.events import StepRecord
from ridgeline.price.price import Price
from support.engines import complete, token_engine, uncached_logits

NATS_A_TOKEN = 1.2664
STORIES, TOKENS = 5, 512
STEPS = 256
START = 1


@pytest.fixture(scope="module")
def folder(data_dir: Path) -> Path:
    """The model's folder."""
    return data_dir / "models" / "stories260K"


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    """The model, loaded."""
    return load_model(str(folder))


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    """Its tokenizer."""
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def golden(data_dir: Path) -> str:
    """The text that the data's README states: temperature 0, 256 steps from the start token."""
    lines = (data_dir / "README.md").read_text(encoding="utf-8").splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("The golden text of stories260K"))
    return "\n".join(line.removeprefix("> ") for line in lines[at:] if line.startswith("> "))


def test_nats_a_token(model: Model, tokenizer: Tokenizer, data_dir: Path) -> None:
    """Over the five stories, each cut at 512 tokens with its start token."""
    text = (data_dir / "text" / "tinystories_sample.txt").read_text(encoding="utf-8")
    stories = [part.strip() for part in text.split("<|endoftext|>") if part.strip()]
    assert len(stories) == STORIES
    losses: list[float] = []
    for story in stories:
        ids = [START, *(i for i in tokenizer.encode(story, parse_special=False) if i != START)][:TOKENS]
        (logits_TV,) = uncached_logits(model, [ids])
        log_probabilities_TV = logits_TV[:-1].log_softmax(dim=-1)
        losses += (-log_probabilities_TV.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]).tolist()
    assert sum(losses) / len(losses) == pytest.approx(NATS_A_TOKEN, abs=0.001)


def test_the_golden_text(folder: Path, model: Model, tokenizer: Tokenizer, golden: str) -> None:
    """Token for token through the engine, each the best one without a cache too; and as text through the LLM."""
    (tokens,) = complete(token_engine(model, page_size=16), [[START]], greedy(STEPS))
    (logits_TV,) = uncached_logits(model, [[START, *tokens[:-1]]])
    assert tokens == logits_TV.argmax(dim=-1).tolist()
    assert tokenizer.decode(tokens).strip() == golden
    (completion,) = LLM(str(folder)).generate([[START]], greedy(STEPS))
    assert completion.choices[0].token_ids == tokens
    assert completion.text.strip() == golden


def greedy(count: int) -> SamplingParams:
    """So many tokens at temperature 0."""
    return SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True)


def test_positions_with_and_without_a_cache(model: Model) -> None:
    """Seed number 15: N tokens take N positions with a cache and N (N + 1) / 2 without; both give the same tokens."""
    count = 100
    with_cache: list[StepRecord] = []
    (tokens,) = complete(token_engine(model, on_step=with_cache.append), [[START]], greedy(count))
    without: list[StepRecord] = []
    engine = token_engine(model, on_step=without.append, prefix_cache=False)
    ids = [START]
    for _ in range(count):
        ids += complete(engine, [ids], greedy(1))[0]
    assert ids[1:] == tokens
    assert len(with_cache) == len(without) == count
    assert sum(record.work.tokens for record in with_cache) == count
    assert sum(record.work.tokens for record in without) == count * (count + 1) // 2
    price = Price(model)
    spent = [sum(price.step(r.work).total_flops for r in records) for records in (with_cache, without)]
    assert spent[1] > 20 * spent[0]
    assert [record.work.logit_rows for record in with_cache + without] == [1] * 2 * count
