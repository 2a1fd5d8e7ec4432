"""Plain checkpoints that are quantised while they are loaded: every matrix is what numpy makes of the file's numbers,
the model computes with those numbers, memory never holds both forms, and what cannot be is refused in one line."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checkpoint.test_memory import VALUES, write_zeros
from models.configs import CONFIGS
from models.rank import logits_of
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, ModelRefused, build
from ridgeline.core.models.common.recipes import recipe_named, runnable_format_names
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.number_formats import weight_format_named
from ridgeline.engine import LLM, EngineSettings, SamplingParams
from support.checkpoints import random_tensors, write_folder

SMALL = CONFIGS["llama"] | {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "untied": SMALL,
    "tied": SMALL | {"tie_word_embeddings": True},
    "transposed": CONFIGS["gpt2"],
    "experts": CONFIGS["mixtral"],
    "latent": CONFIGS["deepseek_v3"],
}
KEPT = ("norm", "ln_", "embed", "lm_head", "wte", "wpe", "bias", "mlp.gate.weight", "block_sparse_moe.gate")
"""Parts of the names of tensors that stay as they are."""


def bf16(numbers: np.ndarray) -> np.ndarray:
    return torch.from_numpy(numbers).to(torch.bfloat16).double().numpy()


def e4m3(numbers: np.ndarray) -> np.ndarray:
    """To the nearest number of 4 bits of exponent and 3 of mantissa, ties to even."""
    exponent = np.floor(np.log2(np.maximum(np.abs(numbers), 2.0**-6)))
    step = 2.0 ** (exponent - 3)
    return np.clip(np.round(numbers / step) * step, -448, 448)


def rounded(weight: Tensor, name: str) -> Tensor:
    """What a matrix [outputs, inputs] in fp32 becomes, by numpy: scales as wide as the format has them."""
    numbers, stored = weight.double().numpy(), weight_format_named(name)
    group = min(stored.block[1] or numbers.shape[1], numbers.shape[1])
    padded = np.pad(numbers, ((0, 0), (0, -numbers.shape[1] % group))).reshape(len(numbers), -1, group)
    largest = np.abs(padded).max(-1, keepdims=True)
    if name == "fp8":
        scale = (largest / 448).astype(np.float32).astype(float)
        found = e4m3(padded / scale) * scale
    elif name == "int8":
        scale = bf16(largest / 127)
        found = np.clip(np.round(padded / scale), -128, 127) * scale
    else:
        low, high = np.minimum(padded.min(-1, keepdims=True), 0), np.maximum(padded.max(-1, keepdims=True), 0)
        scale = bf16((high - low) / 15)
        zero = np.clip(np.round(-low / scale), 0, 15)
        found = (np.clip(np.round(padded / scale + zero), 0, 15) - zero) * scale
    return torch.from_numpy(found.reshape(len(numbers), -1)[:, : numbers.shape[1]].astype(np.float32))


def write(folder: Path, values: Mapping[str, Any], tensors: Mapping[str, Tensor] | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    return write_folder(folder, values, random_tensors(values) if tensors is None else tensors)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ["int8", "int4-g32", "fp8"])
def test_a_model_computes_with_what_its_weights_become(model: str, name: str, tmp_path: Path) -> None:
    """The logits are those of a checkpoint that holds the rounded numbers in fp32."""
    values = MODELS[model]
    one = write(tmp_path / "plain", values)
    tensors = load_file(one / "model.safetensors")
    changed = 0
    for tensor_name, tensor in tensors.items():
        if tensor.dim() == 2 and not any(part in tensor_name for part in KEPT):
            turned = values["model_type"] == "gpt2"
            new = rounded(tensor.T if turned else tensor, name)
            changed += not torch.equal(new, tensor)
            tensors[tensor_name] = (new.T if turned else new).contiguous()
    assert changed
    other = write(tmp_path / "rounded", values, tensors)
    ours, wanted = logits_of(load_model(str(one), weights=name)), logits_of(load_model(str(other)))
    plain = logits_of(load_model(str(one)))
    assert (ours - wanted).abs().max() < 2e-4 * wanted.abs().max()
    assert (plain - wanted).abs().max() > 1e-3 * wanted.abs().max()


@pytest.mark.parametrize("model", ["untied", "tied"])
def test_the_embedding_and_the_head_too(model: str, tmp_path: Path) -> None:
    """A tied head is the table's codes, held once; rows and logits are of the rounded numbers."""
    values = MODELS[model]
    one = write(tmp_path / "plain", values)
    tensors = load_file(one / "model.safetensors")
    tables = {n: rounded(t, "int4") if "embed" in n or "lm_head" in n else t for n, t in tensors.items()}
    other = write(tmp_path / "rounded", values, tables)
    both, wanted = load_model(str(one), weights="int4+head"), load_model(str(other), weights="int4")
    assert (logits_of(both) - logits_of(wanted)).abs().max() < 2e-4 * logits_of(wanted).abs().max()
    tied = bool(values["tie_word_embeddings"])
    table = next(op.table for _, op in both.ops() if isinstance(op, Embedding))
    assert table is not None
    assert (both.lm_head.matrix.codes.data_ptr() == table.codes.data_ptr()) is tied
    ids_T = torch.tensor([5, 0, 5, 96])
    embedding = next(op for _, op in both.ops() if isinstance(op, Embedding))
    assert torch.equal(embedding(ids_T), table.dense()[ids_T])


@pytest.mark.parametrize("name", [*runnable_format_names(), "int4-g64+head", "int8+head"])
def test_what_is_held_is_what_is_priced(name: str, tmp_path: Path) -> None:
    """Bytes of a plan, of a filled model, of its format's definition; random weights are as many, and finite."""
    values = SMALL | {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    folder = str(write(tmp_path, values))
    model, recipe = load_model(folder, weights=name), recipe_named(name)
    priced = build(Fields(values, "c"), recipe=recipe)
    held = sum(parameter.nbytes for parameter in model.parameters())
    assert held == sum(op.stored_bytes() for _, op in priced.weighted_ops())
    stored = weight_format_named(name.removesuffix("+head"))
    by_format = sum(
        stored.nbytes(*tensor.shape)
        if tensor.dim() == 2 and ("+" in name or not {"embed_tokens", "lm_head"} & set(path.split(".")))
        else tensor.nbytes
        for path, tensor in load_file(tmp_path / "model.safetensors").items()
    )
    assert held == by_format
    random = load_model(folder, weights=name, dummy_weights=True)
    assert sum(parameter.nbytes for parameter in random.parameters()) == held
    logits = logits_of(random)
    assert torch.isfinite(logits).all()
    assert logits.std() > 0


def test_text_in_a_batch_is_that_of_each_alone() -> None:
    """Through the engine, where all prompts share its steps; with an adapter's settings left alone."""
    params = SamplingParams(max_tokens=12, temperature=0)
    llm = LLM("tales", EngineSettings(kv_bytes=16e6), weights="int4-g32")
    prompts = ["Once upon a time", "Lily", "The big dog ran to the"]
    together = [completion.choices[0].text for completion in llm.generate(prompts, params)]
    assert together == [llm.generate(prompt, params)[0].choices[0].text for prompt in prompts]
    assert llm.loaded.weight_bytes < 0.55 * LLM("tales", EngineSettings(kv_bytes=16e6)).loaded.weight_bytes


PEAK = """
import json, sys
from ridgeline.backends.model_loader import load_model

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) * 1024

load_model("tales", weights="int4")  # what torch takes to begin with
before = peak()
model = load_model(sys.argv[1], weights="int4")
print(json.dumps({"held": sum(p.nbytes for p in model.parameters()), "rise": peak() - before}))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not say what a process holds")
def test_memory_never_holds_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the peak what is kept, the tensor that is read and the pieces that are rounded; not the file beside it."""
    sizes = {"vocab_size": 4000, "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    for key, value in (sizes | heads).items():
        monkeypatch.setitem(VALUES, key, value)
    weights = write_zeros(tmp_path)
    done = subprocess.run([sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["held"] < 0.35 * weights
    assert seen["rise"] < seen["held"] + 0.5 * weights


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "why"),
    [
        ("nvfp4", "cannot run yet, only be priced .*; give one of fp8, int8, w8a8, int4, int4-g64, int4-g32"),
        ("q4_k_m", "cannot run yet, only be priced .*; give one of"),
        (
            "int5",
            r"weights is 'int5', an unknown format; use one of fp8, int8, w8a8, int4, int4-g64, int4-g32, optionally",
        ),
        ("q8_0+head", "weights is 'q8_0.head', an unknown format"),
        ("bf16", "the checkpoint's weights are in fp32 and are never converted"),
    ],
)
def test_formats_that_weights_are_not_quantised_to(weights: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=why) as caught:
        load_model(str(write(tmp_path, SMALL)), weights=weights)
    assert len(str(caught.value).splitlines()) == 1


def test_the_checkpoints_own_format_changes_nothing(tmp_path: Path) -> None:
    folder = str(write(tmp_path, SMALL))
    assert torch.equal(logits_of(load_model(folder, weights="fp32")), logits_of(load_model(folder)))


def test_a_quantised_checkpoint_is_not_quantised_again(tmp_path: Path) -> None:
    write_folder(tmp_path, read_config("qwen3-32b-fp8").values)
    with pytest.raises(ModelRefused, match=r"already stored as fp8 128x128 .*; leave --weights int8 out"):
        load_model(str(tmp_path), dummy_weights=True, weights="int8")


def test_a_weight_with_nan_and_one_of_another_shape(tmp_path: Path) -> None:
    write(tmp_path, SMALL)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    for broken, why in ((tensors[name].clone(), "NaN"), (tensors[name][:-1].clone(), "but the config requires")):
        if why == "NaN":
            broken[3, 5] = torch.nan
        save_file(tensors | {name: broken}, tmp_path / "model.safetensors")
        with pytest.raises(ModelRefused, match=f"{name} .*{why}"):
            load_model(str(tmp_path), weights="int8")
