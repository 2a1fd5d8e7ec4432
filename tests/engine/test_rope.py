"""`--rope`: the engine runs with the scaling that model cards tell users to add to config.json."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from engine.folders import write_model
from engine.small_models import LLAMA
from ridgeline.core.checkpoint.source import open_source
from ridgeline.engine import LLM, AsyncLLM, EngineSettings, SamplingParams
from ridgeline.engine.worker.engine_process import EngineStart
from ridgeline.insight.simulate.priced_engine import priced_engine
from ridgeline.price.devices import load_device

CONTEXT, PROMPT, NEW = 48, 70, 60
CONFIG = {**LLAMA, "model_type": "llama", "max_position_embeddings": CONTEXT, "rope_theta": 100.0}
SCALING = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT}
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("rope") / "model", config=CONFIG)


def of_transformers(folder: Path, ids: list[int], **changes: Any) -> list[int]:
    """Return the greedy tokens of transformers with changes of the config, in fp32."""
    config = LlamaConfig(**json.loads((folder / "config.json").read_text()) | changes)
    model = LlamaForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    prompt = torch.tensor([ids])
    out = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), do_sample=False, min_new_tokens=NEW, max_new_tokens=NEW
    )
    return out[0, len(ids) :].tolist()


@pytest.mark.parametrize("ranks", [1, 2])
def test_tokens_past_the_configs_context_are_those_of_transformers(folder: Path, ranks: int) -> None:
    ids = torch.randint(0, 40, (PROMPT,), generator=torch.Generator().manual_seed(3)).tolist()
    expected = of_transformers(folder, ids, rope_scaling=dict(SCALING), max_position_embeddings=4 * CONTEXT)
    assert expected != of_transformers(folder, ids)  # the scaling matters
    llm = LLM(str(folder), EngineSettings(rope="yarn:4", ranks=ranks, kv_bytes=1 << 22))
    assert llm.engine.traits.context == 4 * CONTEXT
    (completion,) = llm.generate([ids], GREEDY)
    assert [each.token for each in completion.choices[0].tokens] == expected


def test_a_scaling_of_the_option_is_one_of_the_config(folder: Path) -> None:
    """Compare the whole config, which also names KV pages that engines exchange."""
    scaled = open_source(str(folder)).with_rope("yarn:4").config.values
    stated = json.loads((folder / "config.json").read_text()) | {
        "rope_scaling": SCALING,
        "max_position_embeddings": 4 * CONTEXT,
    }
    assert scaled == stated


def test_a_context_that_is_too_long_names_the_factor_that_suffices(folder: Path) -> None:
    for rope in (None, "yarn:2"):
        with pytest.raises(ValueError, match=r"give at most that, or extend the context with --rope yarn:4\.17 \(48 "):
            LLM(str(folder), EngineSettings(rope=rope, context=200))
    LLM(str(folder), EngineSettings(rope="yarn:4.17", context=200, kv_bytes=1 << 22))
    with pytest.raises(ValueError, match=r"--rope yarn:10:20 \(20 positions x 10\)"):
        LLM(str(folder), EngineSettings(rope="yarn:5:20", context=200))


def test_engines_of_a_server_have_the_scaled_context(folder: Path) -> None:
    """Check an engine in its own process, and one whose steps are only priced."""
    settings = EngineSettings(rope="yarn:4", kv_bytes=4e6)

    async def context() -> int:
        async with await AsyncLLM.start(str(folder), settings, threads=1) as llm:
            return llm.info.context

    assert asyncio.run(context()) == 4 * CONTEXT
    start = EngineStart(str(folder), settings, device=load_device("l4"))
    assert priced_engine(start).engine.traits.context == 4 * CONTEXT
