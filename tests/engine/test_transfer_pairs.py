"""Prompts computed apart, with what else an answer may have: guesses of a draft model, forms, a model that reads
images. The tokens are those of one engine that has neither a peer nor guesses."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from engine.apart import ASKED, GREEDY, PROMPTS, SAMPLED, SETTINGS, alone, pair
from engine.folders import write_model, write_tokenizer
from engine.small_models import LLAMA, SLIDING
from ridgeline.engine import SamplingParams, StructuredOutputs
from ridgeline.engine.scheduler import Limits
from ridgeline.engine.speculation.config import Speculation
from ridgeline.engine.speculation.draft_model import ModelDrafter
from support.januses import their_janus
from text.tiny_tokenizers import byte_level

FORM = StructuredOutputs(regex=r"[a-f]{2}[^a-m]{4,40}")
FREE = [(prompt, replace(params, max_tokens=24)) for prompt, params in ASKED]
FORMED = [(prompt, replace(params, structured_outputs=FORM, ignore_eos=False)) for prompt, params in FREE]
WAYS: dict[str, list[tuple[list[int], SamplingParams]]] = {"free": FREE, "formed": FORMED}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two models, and one that thinks nearly as the first."""
    root = tmp_path_factory.mktemp("models")
    configs = {"full": LLAMA, "sliding": SLIDING, "near": {**LLAMA, "rms_norm_eps": 0.3}}
    return {name: str(write_model(root / name, config=config)) for name, config in configs.items()}


@pytest.mark.parametrize("asked", WAYS)
@pytest.mark.parametrize("guesses", ["none", "ngram", "draft model"])
@pytest.mark.parametrize("model", ["full", "sliding"])
def test_guesses_and_forms(folders: dict[str, str], tmp_path: Path, model: str, guesses: str, asked: str) -> None:
    """The engine that computes prompts guesses nothing, and knows of no form; a draft model reads each prompt itself,
    in parts."""
    wanted = alone(folders[model], SETTINGS, WAYS[asked])
    speculation = {
        "none": None,
        "ngram": Speculation("ngram", 3, longest=3, shortest=1),
        "draft model": Speculation("draft_model", 3, model=folders["near"]),
    }[guesses]
    settings = replace(SETTINGS, kv_bytes=2**23, speculation=speculation, limits=Limits(tokens=40, requests=6, chunk=9))

    async def run() -> None:
        async with pair(folders[model], tmp_path, settings, replace(settings, speculation=None)) as (prompts, answers):
            assert await answers.all(WAYS[asked]) == wanted
            assert not answers.reasons
            assert len(answers.came) >= len(PROMPTS) // 2
            assert prompts.llm.stats.grammars == prompts.llm.stats.drafts == 0
            stats = answers.llm.stats
            assert (stats.drafts > 0) == (speculation is not None)
            assert (stats.grammars > 0) == (asked == "formed")
            if guesses == "draft model":
                assert stats.draft_tokens > stats.accepted_tokens > 0, "some guesses are right, and some wrong"
                assert answers.engine.speculator is not None
                assert isinstance(answers.engine.speculator.drafter, ModelDrafter)
                assert not answers.engine.speculator.drafter._ledger.tables

    asyncio.run(run())


def test_a_model_that_reads_images(tmp_path: Path) -> None:
    """Requests that engines take in messages have none: their texts are computed apart as any other."""
    folder = tmp_path / "janus"
    folder.mkdir()
    vocabulary = write_tokenizer(folder, byte_level(), None)
    their_janus(folder, seed=1, text_config={"vocab_size": vocabulary})
    asked = [(prompt, replace(params, max_tokens=7)) for prompt in PROMPTS[:3] for params in (GREEDY, SAMPLED)]
    wanted = alone(str(folder), SETTINGS, asked)

    async def run() -> None:
        async with pair(str(folder), tmp_path, SETTINGS) as (_, answers):
            assert await answers.all(asked) == wanted
            assert len(answers.came) >= 2
            assert not answers.reasons

    asyncio.run(run())
