"""Checkpoints that are written in compressed-tensors' layout: numpy unpacks what --weights makes while it loads;
config, shards and what lies beside them; whole or not at all."""

import json
from collections import namedtuple
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from checkpoint.test_quantised_loading import MODELS, SMALL, write
from models.rank import logits_of
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import checkpoint_quantiser, open_source, read_config
from ridgeline.core.checkpoint.checkpoint_quantiser import quantise_folder
from ridgeline.core.checkpoint.compressed_tensors_writer import compressed, quantization_config
from ridgeline.core.models import Fields, ModelRefused, build, family_of
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.models.common.recipes import read_recipe
from ridgeline.core.ops.matrix import MatrixSpec, QuantisedMatrix
from ridgeline.core.ops.number_formats import WeightFormat
from support.checkpoints import write_folder

BF16 = SMALL | {"torch_dtype": "bfloat16"}
ROUNDING = {"float32": 1e-5, "bfloat16": 0.03}
SIZES = ("hidden_size", "intermediate_size", "head_dim", "num_attention_heads")
EXPERTS = {**MODELS["experts"], **{size: SMALL[size] for size in SIZES}}


def unpacked(words: Tensor, bits: int, count: int) -> np.ndarray:
    """Codes [rows, count] of int32 words [rows, words]: the first in the lowest bits."""
    unsigned = words.numpy().view(np.uint32).astype(np.uint64)
    places = np.arange(32 // bits, dtype=np.uint64) * np.uint64(bits)
    return ((unsigned[:, :, None] >> places) & np.uint64(2**bits - 1)).reshape(len(words), -1)[:, :count].astype(float)


def stands_for(tensors: Mapping[str, Tensor], base: str, bits: int) -> np.ndarray:
    """A matrix as the specification of pack-quantized and float-quantized has it."""
    scale = tensors[f"{base}.weight_scale"].double().numpy()
    if f"{base}.weight" in tensors:
        codes = tensors[f"{base}.weight"]
        assert codes.dtype in (torch.float8_e4m3fn, torch.int8)
        return codes.double().numpy() * scale
    outputs, inputs = tensors[f"{base}.weight_shape"].tolist()
    signed = unpacked(tensors[f"{base}.weight_packed"], bits, inputs) - 2 ** (bits - 1)
    zero = np.zeros(scale.shape)
    if f"{base}.weight_zero_point" in tensors:
        zero = unpacked(tensors[f"{base}.weight_zero_point"].T.contiguous(), bits, outputs).T - 2 ** (bits - 1)
    group = np.arange(inputs) // (inputs // scale.shape[1])
    return (signed - zero[:, group]) * scale[:, group]


@pytest.mark.parametrize("values", [SMALL, BF16, MODELS["tied"], EXPERTS], ids=["fp32", "bf16", "tied", "experts"])
@pytest.mark.parametrize(("name", "bits"), [("int8", 8), ("int4-g32", 4), ("fp8", 8), ("w8a8", 8)])
def test_what_is_written_is_what_is_made_while_loading(
    name: str, bits: int, values: Mapping[str, Any], tmp_path: Path
) -> None:
    """Number by number, matrix by matrix; all else is copied; the config's section names what is left."""
    folder, out = write(tmp_path / "plain", values), tmp_path / "out"
    done = quantise_folder(open_source(str(folder)), out, name)
    before, after = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    model, checked = load_model(str(folder), weights=name), set[str]()
    for path, matrix in model.named_modules():
        if isinstance(matrix, QuantisedMatrix):
            base = family_of(Fields(values, "c")).checkpoint_name(model.module_name(path))
            ours = matrix.dense().double().numpy()  # made in fp32
            assert np.abs(stands_for(after, base, bits) - ours).max() < 1e-6 * np.abs(ours).max(), base
            checked.add(base)
    assert len(checked) == done.matrices
    rest = {n: t for n, t in before.items() if n.removesuffix(".weight") not in checked}
    assert all(torch.equal(after[n], t) for n, t in rest.items())
    assert {n for n in after if n.endswith(".bias") or n.rpartition(".")[0] not in checked} == set(rest)
    assert sum(t.nbytes for t in after.values()) == done.after < done.before
    assert {"lm_head", "model.embed_tokens"} <= set(done.kept)
    again, made = logits_of(load_model(str(out))), logits_of(model)
    assert (again - made).abs().max() <= ROUNDING[values["torch_dtype"]] * made.abs().max()
    read = read_recipe(open_source(str(out)).config)
    assert read.bits == bits
    assert not read.unread
    if values is BF16 and name not in ("fp8", "w8a8"):  # their scales are of 32 bits, which a section does not say
        assert parameter_breakdown(build(open_source(str(out)).config)).nbytes == done.after


def test_shards_and_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is in one file, which the index names; what lies beside a model is copied, weights are not."""
    folder, out = write(tmp_path / "plain", SMALL), tmp_path / "out"
    for name in ("tokenizer.json", "LICENSE", "README.md", "vocab.txt", "pytorch_model.bin", "notes.py"):
        (folder / name).write_text(f"{name} of the model")
    quantise_folder(open_source(str(folder)), tmp_path / "whole", "int8")
    monkeypatch.setattr(checkpoint_quantiser, "_SHARD", 20_000)
    told: list[tuple[int, int]] = []
    quantise_folder(open_source(str(folder)), out, "int8", progress=lambda *done: told.append(done))
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(out.glob("*.safetensors"))
    assert len(files) > 2
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert index["weight_map"] == {name: file.name for file in files for name in load_file(file)}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    assert whole.keys() == found.keys()
    assert all(torch.equal(whole[name], tensor) for name, tensor in found.items())
    assert told[-1][0] == told[-1][1]
    for name in ("tokenizer.json", "LICENSE", "vocab.txt"):
        assert (out / name).read_text() == f"{name} of the model"
    assert (out / "README-unquantised.md").read_text() == "README.md of the model"
    assert "int8" in (out / "README.md").read_text()
    assert not [*out.glob("*.bin"), *out.glob("*.py"), *tmp_path.glob(".*")]


def test_int8_beside_rows_of_int8_is_not_packed() -> None:
    """As the readers of W8A8 want it: signed bytes, scales of 32 bits, and rows rounded as they come."""
    stored = WeightFormat("w8a8", 8, (1, None), 32, activations="int8", code="int8")
    weight = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    tensors = compressed("x", QuantisedMatrix(MatrixSpec(40, 6, torch.float32), stored), weight)
    scale = weight.double().abs().amax(1, keepdim=True) / 127
    assert torch.allclose(tensors["x.weight_scale"].double(), scale, rtol=1e-6)
    assert tensors["x.weight"].dtype == torch.int8
    assert (tensors["x.weight"] * scale - weight).abs().max() <= scale.max() * 0.5001
    (group,) = quantization_config(stored, ())["config_groups"].values()
    assert (group["weights"]["type"], group["input_activations"]["type"]) == ("int", "int")
    assert quantization_config(stored, ())["format"] == "int-quantized"


def test_a_matrix_without_whole_groups_stays(tmp_path: Path) -> None:
    """The readers of groups want whole ones: a row of 64 is none of 128, one of 256 is two."""
    out = tmp_path / "out"
    values = SMALL | {"intermediate_size": 256}
    done = quantise_folder(open_source(str(write(tmp_path / "plain", values))), out, "int4")
    assert done.matrices == 2
    assert "model.layers.1.mlp.up_proj" in done.kept
    assert "model.layers.1.mlp.down_proj" not in done.kept
    with pytest.raises(ModelRefused, match="no matrices whose inputs divide into groups of 128; give --weights int8"):
        quantise_folder(open_source(str(write(tmp_path / "small", SMALL))), tmp_path / "other", "int4")


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_places_that_are_taken(tmp_path: Path) -> None:
    """A folder that is there, but for a model's with --force; the model itself and what it lies in; no folder above."""
    folder = write(tmp_path / "plain", SMALL)
    source, own = open_source(str(folder)), tmp_path / "own"
    own.mkdir()
    (own / "thesis.txt").write_text("years of work")
    for out, force, why in (
        (own, False, "exists already; name another folder, or replace it with --force"),
        (own, True, "is not the folder of a model, so --force does not replace it"),
        (folder, True, "holds the model to quantize"),
        (tmp_path, True, "holds the model to quantize"),
        (tmp_path / "no" / "out", False, "there is no folder"),
    ):
        with pytest.raises(ValueError, match=why):
            quantise_folder(source, out, "int8", force=force)
    assert (own / "thesis.txt").read_text() == "years of work"
    quantise_folder(source, tmp_path / "out", "int8")
    quantise_folder(source, tmp_path / "out", "fp8", force=True)
    assert "float-quantized" in (tmp_path / "out" / "config.json").read_text()


def test_a_full_disk_and_a_broken_weight_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "plain", SMALL)
    with monkeypatch.context() as patched:
        usage = namedtuple("usage", "free")
        patched.setattr(checkpoint_quantiser.shutil, "disk_usage", lambda _: usage(1000))
        with pytest.raises(ValueError, match=r"would take .*, but its disk has .* free"):
            quantise_folder(open_source(str(folder)), tmp_path / "out", "int8")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.weight"][0, 0] = torch.inf
    write_folder(folder, SMALL, tensors)
    with pytest.raises(ModelRefused, match=r"up_proj\.weight holds NaN or infinity"):
        quantise_folder(open_source(str(folder)), tmp_path / "out", "int8")
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]


def test_models_and_formats_that_have_no_such_layout(tmp_path: Path) -> None:
    fp8 = tmp_path / "fp8"
    fp8.mkdir()
    write_folder(fp8, read_config("qwen3-32b-fp8").values)
    plain, gpt2 = write(tmp_path / "plain", SMALL), write(tmp_path / "gpt2", MODELS["transposed"])
    for folder, name, why in (
        (fp8, "int8", "already stored as fp8 128x128"),
        (gpt2, "int8", r"stores .*c_attn\.weight \[in, out\]"),
        (plain, "int8+head", r"leave \+head out"),
        (plain, "nvfp4", "cannot run yet, only be priced"),
        (plain, "q4_k_m", "cannot run yet, only be priced"),
        (plain, "fp32", "the format in which the checkpoint is stored"),
        ("llama-3-8b", "int8", "without weights"),
    ):
        with pytest.raises(ValueError, match=why) as caught:
            quantise_folder(open_source(str(folder)), tmp_path / "out", name)
        assert len(str(caught.value).splitlines()) == 1
