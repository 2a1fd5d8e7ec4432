"""Classes of transformers without a family here, run by the engine: the logits and tokens are those of transformers.

Each class is a small random model in fp32, saved by `save_pretrained`, which writes the layout of releases. Prompts are
longer than its windows and chunks. Two requests share a batch, their prompts run in chunks, and a third request finds
the first one's prompt in the prefix cache.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from models.comparing import GAP, off
from ridgeline.engine.params import SamplingParams
from ridgeline.engine.scheduler import Limits
from support.engines import RecordingRunner, complete, token_engine
from support.registered_classes import load_class, random_class_model

TYPES = (
    "afmoe", "apertus", "apertus1p5_text", "arcee", "aria_text", "axk1", "beam", "bert", "bert-generation",
    "biogpt", "bitnet", "codegen", "cohere2_moe", "cohere_compass_text", "ctrl", "cwm", "dbrx", "diffllama",
    "dots1", "electra", "emu3", "ernie", "ernie4_5", "ernie4_5_moe", "exaone_moe", "flex_olmo", "flint", "fuyu",
    "gemma", "gemma3n_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text", "glm4_moe",
    "glm4_moe_lite", "got_ocr2", "gpt_bigcode", "gpt_neox", "gptj", "granite_swa", "granitemoe", "granitemoe_swa",
    "granitemoeshared", "helium", "hrm_text", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax", "jais2",
    "jetmoe", "kolibri1", "laguna", "longcat_flash", "mellum", "mimo_v2_flash", "minicpm3", "ministral", "mllama",
    "modernbert-decoder", "moshi", "moss_transcribe_diarize", "nanochat", "nemotron", "olmo", "olmoe", "opt",
    "persimmon", "phi4_multimodal", "phimoe", "roc_bert", "sarvam_moe", "seed_oss", "solar_open", "stablelm",
    "vaultgemma", "youtu",
)  # fmt: skip
"""The registered types whose classes have no family here and run in the engine."""
TESTED_AS = {"gemma3n": "gemma3n_text"}
"""Types of the same text model as another type, with a part that needs a further package (timm)."""
OTHER_TEXT = ("moshi",)
"""Classes whose `generate` gives another text with their cache than without."""
TOLERANCE = 1e-4  # of the largest
PROMPT_LENGTHS = 37, 19
NEW_TOKENS = 6
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)


def prompts_of(model: PreTrainedModel) -> list[list[int]]:
    """Return random prompts without special tokens, which are the last of the vocabulary."""
    generator = torch.Generator().manual_seed(5)
    tokens = model.config.get_text_config().vocab_size - 8
    return [torch.randint(3, tokens, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


def logits_of(model: PreTrainedModel, ids: list[int]) -> Tensor:
    """Return the class's own logits for each position of a text, [positions, vocabulary]."""
    with torch.inference_mode():
        out: Tensor = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return out


def generated(model: Any, prompt: list[int]) -> list[int]:
    """Return the tokens that transformers generates, by its cache."""
    ids_1T = torch.tensor([prompt])
    model.generation_config.eos_token_id = None
    settings = {"do_sample": False, "pad_token_id": 0, "max_new_tokens": NEW_TOKENS}
    out = model.generate(ids_1T, attention_mask=torch.ones_like(ids_1T), **settings)
    tokens: list[int] = out[0].tolist()
    return tokens[len(prompt) :]


def check_tokens(ours: list[int], theirs: list[int], logits_TV: Tensor) -> None:
    """Assert that tokens are equal up to the first one whose two best logits are nearly the same."""
    best = logits_TV.topk(2, dim=-1).values
    for place, (own, other) in enumerate(zip(ours, theirs, strict=True)):
        if float(best[place, 0] - best[place, 1]) <= GAP:
            return
        assert own == other, f"token {place} of the output differs"


def check_class(theirs: PreTrainedModel, folder: Path, *, uncached: bool = False) -> None:
    """Assert that the engine gives the logits and tokens of transformers' model from the folder that it saves.

    uncached: whether only the logits are compared.
    """
    theirs.save_pretrained(folder)
    limits = Limits(tokens=16, chunk=7)
    engine = token_engine(load_class(folder), runner=RecordingRunner, limits=limits, prefix_cache=True)
    first, second = prompts_of(theirs)
    outputs = [*complete(engine, [first, second], GREEDY), *complete(engine, [first], GREEDY)]
    assert isinstance(engine.executor, RecordingRunner)
    recorded = engine.executor.logits
    for request, (prompt, output) in enumerate(zip((first, second, first), outputs, strict=True), start=1):
        ids = (prompt + output)[:-1]
        computed = [position for position in range(len(ids)) if (request, position) in recorded]
        if request < 3:
            assert len(computed) == len(ids)
        else:
            assert NEW_TOKENS <= len(computed) <= len(ids) - 32, "the prefix cache was not used"
        logits_TV = logits_of(theirs, ids)
        ours_TV = torch.stack([recorded[request, position] for position in computed])
        assert off(ours_TV, logits_TV[computed]) <= TOLERANCE
        tokens = output if uncached else generated(theirs, prompt)
        check_tokens(output, tokens, logits_TV[len(prompt) - 1 :])


@pytest.mark.parametrize("model_type", TYPES)
def test_the_engine_gives_what_transformers_gives(model_type: str, tmp_path: Path) -> None:
    """Compare the logits of all positions and the greedy tokens."""
    check_class(random_class_model(model_type, seed=3), tmp_path, uncached=model_type in OTHER_TEXT)


@pytest.mark.parametrize("original", [16, 512])
def test_longrope_by_the_context(original: int, tmp_path: Path) -> None:
    """Compare with the long factors if the context is longer than the original one, otherwise with the short ones."""
    factors = {"short_factor": [1.0 + 0.1 * place for place in range(8)], "long_factor": [4.0] * 4 + [9.0] * 4}
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": original, **factors}
    check_class(random_class_model("seed_oss", seed=3, rope_parameters=rope), tmp_path)


def test_dynamic_rope(tmp_path: Path) -> None:
    """Compare without scaling, which begins after the context."""
    rope = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
    check_class(random_class_model("seed_oss", seed=3, rope_parameters=rope), tmp_path)
