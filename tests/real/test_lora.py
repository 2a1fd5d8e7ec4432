"""LoRA adapters that PEFT itself makes for SmolLM2, against PEFT's model: three and the base in one batch.

The base is a GGUF file for us and the dequantised model for PEFT.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from real.references import assert_greedy
from real.texts import PROMPTS
from ridgeline.engine import LLM, EngineSettings, SamplingParams

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("exact_products")]

TOLERANCE = 1e-3  # nats
ADAPTERS: Mapping[str, dict[str, Any]] = {
    "every matrix": {"r": 8, "lora_alpha": 16, "target_modules": "all-linear"},
    "queries and values, rank-stabilised": {
        "r": 5,
        "lora_alpha": 4,
        "target_modules": ["q_proj", "v_proj"],
        "use_rslora": True,
    },
    "other ranks in other layers": {
        "r": 3,
        "lora_alpha": 6,
        "target_modules": r"model\.layers\.(0|7|29)\.mlp\.(gate|down)_proj",
        "rank_pattern": {r"layers\.7\.mlp\.down_proj": 6},
        "alpha_pattern": {"gate_proj": 12},
    },
}


@pytest.fixture(scope="module")
def peft() -> Any:
    return pytest.importorskip("peft", reason="make real installs peft")


@pytest.fixture(scope="module")
def adapted(
    peft: Any, theirs: PreTrainedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, dict[str, str]]]:
    """The PEFT model with all adapters, and the folders that it saved them in. PEFT begins with a zero in the place of
    each second matrix; these are drawn anew."""
    torch.manual_seed(1)  # PEFT draws the first matrices; of seed 0, one adapter is too weak to change a greedy text
    generator, names = torch.Generator().manual_seed(0), list(ADAPTERS)
    model: Any = None
    for name in names:
        config = peft.LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name])
        if model is None:
            model = peft.get_peft_model(theirs, config, adapter_name=name)
        else:
            model.add_adapter(name, config)
    for own_name, parameter in model.named_parameters():
        if "lora_B" in own_name:
            std = 0.05 if names[0] in own_name else 0.3  # the fewer matrices, the larger
            parameter.data = torch.randn(parameter.shape, generator=generator) * std
    folder = tmp_path_factory.mktemp("adapters")
    model.save_pretrained(folder)
    yield model.eval(), {name: str(folder / name) for name in names}
    model.unload()


@pytest.fixture(scope="module")
def llm(smollm2: Path, adapted: tuple[Any, dict[str, str]], exact_products: None) -> LLM:
    return LLM(str(smollm2), EngineSettings(kv_bytes=1e9, adapters=adapted[1]), threads=1)


def their_logits(model: Any, name: str, ids: list[int]) -> Tensor:
    """Return the logits of PEFT's model with one adapter, or with none for ""."""
    with torch.inference_mode():
        if not name:
            with model.disable_adapter():
                return model(torch.tensor([ids]), use_cache=False).logits[0]
        model.set_adapter(name)
        return model(torch.tensor([ids]), use_cache=False).logits[0]


def test_a_batch_of_all_adapters_is_pefts(llm: LLM, adapted: tuple[Any, dict[str, str]]) -> None:
    """The base and every adapter score prompts and write 48 tokens side by side."""
    names = ["", *ADAPTERS]
    prompts = [llm.encode(prompt) for prompt in PROMPTS[:3]]
    asked = [(prompt, name) for prompt in prompts for name in names]
    params = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True, logprobs=0, prompt_logprobs=0)
    completions = llm.generate([prompt for prompt, _ in asked], params, adapter=[name for _, name in asked])
    texts = set()
    for (prompt, name), completion in zip(asked, completions, strict=True):
        (choice,) = completion.choices
        whole = [*prompt, *choice.token_ids]
        logits_TV = their_logits(adapted[0], name, whole)
        assert_greedy(logits_TV, prompt, choice.token_ids)
        expected_T = torch.log_softmax(logits_TV[:-1].double(), dim=1)[range(len(whole) - 1), whole[1:]]
        assert completion.prompt_logprobs is not None
        scored = [each.logprob for each in completion.prompt_logprobs if each is not None]
        found_T = torch.tensor([*scored, *(each.logprob for each in choice.tokens)], dtype=torch.float64)
        assert float((found_T - expected_T).abs().max()) <= TOLERANCE
        texts.add(choice.text)
    assert len(texts) == len(asked), "every adapter says something else"
