"""gpt-oss as it is released, its experts in MXFP4: widened as transformers widens them, and run."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from models.comparing import TOLERANCE, off
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.expert_layout import dequantise_mxfp4
from ridgeline.price.plan.scenario import Deployment, ModelCache
from support.checkpoints import random_model
from support.engines import uncached_logits
from support.planned import card

SIZES = {
    "vocab_size": 61, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 128, "num_local_experts": 3,
    "num_experts_per_tok": 2, "sliding_window": 5, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
IDS = [3, 17, 60, 4, 22, 9, 41, 8, 0, 12]


def packed(*shape: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random blocks [..., 16] and scales of rows of so many inputs, the numbers of moderate size."""
    generator = torch.Generator().manual_seed(seed)
    *rows, inputs = shape
    blocks = torch.randint(256, (*rows, inputs // 32, 16), generator=generator, dtype=torch.uint8)
    return blocks, torch.randint(121, 126, (*rows, inputs // 32), generator=generator, dtype=torch.uint8)


def test_every_byte_and_exponent_is_widened_as_transformers_does() -> None:
    """All 256 pairs of numbers, and exponents from 2^-20 to 2^20."""
    blocks = torch.arange(256, dtype=torch.uint8).view(1, 16, 1, 16).repeat(1, 1, 41, 1)
    scales = torch.arange(107, 148, dtype=torch.uint8).expand(1, 16, 41).contiguous()
    theirs = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    ours = dequantise_mxfp4(blocks[0], scales[0], torch.float32)
    assert ours.shape == (16, 41 * 32)
    assert torch.equal(ours, theirs[0].t() if theirs.shape[1:] != ours.shape else theirs[0])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint in the layout of the releases, and transformers' logits of the same numbers beside it."""
    theirs = random_model("gpt_oss", SIZES, 0)
    theirs.save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for layer in range(2):
        experts = theirs.model.layers[layer].mlp.experts
        for name, rows, inputs in (("gate_up_proj", 2 * 96, 64), ("down_proj", 64, 96)):
            path = f"model.layers.{layer}.mlp.experts.{name}"
            blocks, scales = packed(3, rows, inputs, seed=layer)
            del tensors[path]
            tensors |= {f"{path}_blocks": blocks, f"{path}_scales": scales}
            numbers = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
            wanted = getattr(experts, name)
            wanted.data = numbers if numbers.shape == wanted.shape else numbers.transpose(1, 2).contiguous()
    save_file(tensors, file)
    config = tmp_path / "config.json"
    values = json.loads(config.read_text()) | {"quantization_config": {"quant_method": "mxfp4"}}
    config.write_text(json.dumps(values))
    with torch.no_grad():
        torch.save(theirs(torch.tensor([IDS])).logits[0], tmp_path / "logits.pt")
    return tmp_path


def test_a_plan_of_a_processor_has_them_widened(folder: Path) -> None:
    """As they run there; of another card as they are stored, from the same cache."""
    cases = ModelCache(open_source(str(folder)).config)
    here, there = cases.scenario(Deployment(card(kind="cpu"))), cases.scenario(Deployment(card()))
    loaded = load_model(str(folder))
    assert (here.weights, parameter_breakdown(here.model)) == ("fp32", parameter_breakdown(loaded))
    assert [note for note in here.notes if "weights stored in mxfp4 are widened to fp32" in note]
    assert there.weights == "mxfp4"
    assert parameter_breakdown(there.model).nbytes < parameter_breakdown(loaded).nbytes
    assert not [note for note in there.notes if "widened" in note]
    assert cases.scenario(Deployment(card(kind="cpu"), weights="mxfp4")).weights == "mxfp4"


def test_a_released_layout_runs(folder: Path) -> None:
    """Logits of every position are transformers', within rounding."""
    (logits_TV,) = uncached_logits(load_model(str(folder)), [IDS])
    reference_TV = torch.load(folder / "logits.pt")
    assert off(logits_TV, reference_TV) <= TOLERANCE


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t, n: {**t, n: t[n][:, :-1].contiguous()}, "but the config requires"),
        (lambda t, n: {**t, n: t[n].float()}, "has dtype torch.float32, but the config requires torch.uint8"),
        (lambda t, n: {name: own for name, own in t.items() if name != n}, "lacks tensors of the model"),
    ],
    ids=["shape", "dtype", "missing"],
)
def test_what_is_not_such_a_layout_is_refused(change: object, said: str, folder: Path) -> None:
    """In one line that names the tensor."""
    file, name = folder / "model.safetensors", "model.layers.1.mlp.experts.down_proj_scales"
    save_file(change(load_file(file), name), file)  # type: ignore[operator]
    with pytest.raises(ModelRefused, match=said) as caught:
        load_model(str(folder))
    assert "down_proj_" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
