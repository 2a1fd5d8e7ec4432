"""Checkpoints in several dtypes, against the numbers that transformers has of the same folders."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from models.configs import CONFIGS
from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.checkpoint_matching import match_to_source
from ridgeline.core.checkpoint.checkpoint_quantiser import quantise_folder
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.weight_loader import load_weights, weight_bytes
from ridgeline.core.models import ModelRefused
from ridgeline.core.models.building import build_to_run
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.models.registry import family_of
from ridgeline.engine.setup import load_engine
from ridgeline.insight.check.tensors import check_tensors
from support.checkpoints import edit_config, parameters_of, random_model, random_tensors, write_folder
from support.engines import uncached_logits

Odd = Callable[[str, Tensor], bool]
FP64, FP32, FP16, BF16 = torch.float64, torch.float32, torch.float16, torch.bfloat16
NORM, GATE = "model.norm.weight", "mlp.gate.weight"


def is_norm(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is a vector, such as a norm, which trainers often keep in fp32."""
    return tensor.dim() == 1


def is_matrix(name: str, tensor: Tensor) -> bool:
    """Whether a tensor is a matrix."""
    return tensor.dim() > 1


def is_any(name: str, tensor: Tensor) -> bool:
    """Return True for every tensor."""
    return True


def mixed(
    folder: Path, family: str, stated: torch.dtype | None, usual: torch.dtype, odd: torch.dtype, is_odd: Odd
) -> Path:
    """Write a small model of a family with some tensors, the odd ones, in a dtype of their own."""
    values = {**CONFIGS[family]}
    tensors = {
        name: tensor.to(odd if is_odd(name, tensor) else usual) for name, tensor in random_tensors(values).items()
    }
    del values["torch_dtype"]
    if stated is not None:
        values["dtype"] = str(stated).removeprefix("torch.")
    return write_folder(folder, values, tensors)


def held(model: Model, family: str) -> dict[str, Tensor]:
    """Return the parameters of a model by the names of the checkpoint's tensors."""
    return {name: parameter.data for name, parameter in parameters_of(model, CONFIGS[family]).items()}


def renamed(name: str) -> str:
    """Return a name of Nemotron-H's checkpoints as transformers has it."""
    return name.replace("backbone.", "model.").replace(".embeddings.", ".embed_tokens.")


MIXES: tuple[tuple[torch.dtype | None, torch.dtype, torch.dtype, Odd], ...] = (
    (BF16, BF16, FP32, is_norm),
    (BF16, BF16, FP32, is_matrix),
    (BF16, BF16, FP16, is_norm),
    (BF16, FP32, FP32, is_any),
    (FP16, FP16, FP32, is_norm),
    (FP16, BF16, FP32, is_norm),
    (FP32, FP32, BF16, is_norm),
    (FP32, BF16, FP16, is_matrix),
    (FP32, FP32, FP64, is_norm),
    (None, BF16, FP32, is_norm),
    (None, FP32, BF16, is_matrix),
)


@pytest.mark.parametrize(("stated", "usual", "odd", "is_odd"), MIXES)
@pytest.mark.parametrize("family", ["llama", "deepseek_v3", "nemotron_h", "gpt2"])
def test_numbers_are_those_of_transformers(
    family: str, stated: torch.dtype | None, usual: torch.dtype, odd: torch.dtype, is_odd: Odd, tmp_path: Path
) -> None:
    """Expect the dtype and the numbers of transformers, also in the tensors that it keeps in fp32."""
    folder = mixed(tmp_path, family, stated, usual, odd, is_odd)
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    model = load_model(str(folder))
    assert model.storage.dtype == theirs.dtype
    reference = {renamed(name): tensor for name, tensor in theirs.state_dict().items()}
    ours = {renamed(name): tensor for name, tensor in held(model, family).items()}
    common = ours.keys() & reference.keys()
    assert len(common) > len(ours) // 3
    for name in common:
        assert torch.equal(ours[name].double(), reference[name].double()), name
        if name.endswith(("gate.weight", "e_score_correction_bias")):  # ours may keep the stored bf16: the same numbers
            assert reference[name].dtype == FP32
        else:
            assert ours[name].dtype == reference[name].dtype == theirs.dtype
    stored = {renamed(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    for name in ours.keys() - common:  # experts, which transformers holds as one tensor of a layer
        assert torch.equal(ours[name], stored[name].to(theirs.dtype)), name


@pytest.mark.parametrize("family", ["qwen3_5_moe_text", "granite", "mixtral", "gemma3_text", "cohere2", "minimax_m2"])
def test_every_family_casts(family: str, tmp_path: Path) -> None:
    """Expect each tensor in the model's dtype, and a correction of expert choices in fp32."""
    folder = mixed(tmp_path, family, BF16, BF16, FP32, is_norm)
    stored = load_file(folder / "model.safetensors")
    for name, parameter in held(load_model(str(folder)), family).items():
        if name in stored and "conv1d" not in name:
            corrected = name.endswith("e_score_correction_bias")
            assert parameter.dtype == (FP32 if corrected else BF16)
            assert torch.equal(parameter, stored[name].to(parameter.dtype)), name


@torch.no_grad()
def test_logits_in_fp32_are_those_of_transformers(tmp_path: Path) -> None:
    """Expect the same function of the same numbers, whatever dtype each was stored in."""
    theirs = random_model("llama", {k: v for k, v in CONFIGS["llama"].items() if k != "model_type"}, seed=3)
    tensors = {n: t.to(BF16) if t.dim() > 1 else t for n, t in theirs.state_dict().items()}
    write_folder(tmp_path, CONFIGS["llama"], tensors)
    prompt = [3, 1, 4, 1, 5]
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")(torch.tensor([prompt])).logits[0]
    (logits,) = uncached_logits(load_model(str(tmp_path)), [prompt])
    assert torch.allclose(logits, reference, atol=1e-5 * float(reference.abs().max()))


def test_a_router_that_transformers_keeps_in_fp32_stays_so(tmp_path: Path) -> None:
    """Expect the matrix as it is stored, and the same price before and after loading."""
    folder = mixed(tmp_path, "deepseek_v3", BF16, BF16, FP32, lambda name, _: name.endswith(GATE))
    stored = load_file(folder / "model.safetensors")
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").state_dict()
    ours = held(load_model(str(folder)), "deepseek_v3")
    gates = [name for name in ours if name.endswith(GATE)]
    assert gates
    for name in gates:
        assert ours[name].dtype == theirs[name].dtype == FP32
        assert torch.equal(ours[name], stored[name])
    model = load_model(str(folder))
    assert parameter_breakdown(model).nbytes == sum(parameter.nbytes for parameter in model.parameters())
    source = open_source(str(folder))
    priced = build_to_run(source.config)
    match_to_source(priced, family_of(source.config), source)
    assert parameter_breakdown(priced).nbytes == parameter_breakdown(model).nbytes
    assert weight_bytes(priced) == weight_bytes(model)


# -- warnings and errors -----------------------------------------------------------------------------------------------


def warnings_of(folder: Path) -> tuple[str, ...]:
    """Load a folder and return the lines about its casts."""
    source = open_source(str(folder))
    loading = load_weights(build_to_run(source.config), source)
    assert loading is not None
    return loading.casts.notes


def test_numbers_that_are_rounded_get_one_line(tmp_path: Path) -> None:
    """Expect the count and both dtypes, and no line if every number is kept."""
    folder = mixed(tmp_path, "llama", BF16, BF16, FP32, is_norm)
    norms = sum(tensor.dtype == FP32 for tensor in load_file(folder / "model.safetensors").values())
    (line,) = (line for line in warnings_of(folder) if "float32" in line)
    assert f"{norms} tensors stored in float32 are cast to bfloat16, the dtype of the model, which rounds" in line
    tensors = load_file(folder / "model.safetensors")
    save_file({name: tensor.bfloat16().float() for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert not [line for line in warnings_of(folder) if "float32" in line]
    edit_config(folder, dtype="float32")
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / "model.safetensors")
    assert not [line for line in warnings_of(folder) if "float" in line]


def test_the_line_is_among_the_warnings_of_an_engine(tmp_path: Path) -> None:
    """Expect the line for the builtin model with its norms in fp32, and none for the model itself."""
    source = open_source("tales")
    assert source.folder is not None
    folder = shutil.copytree(source.folder, tmp_path / "tales")
    tensors = load_file(folder / "model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {BF16}
    save_file({n: t.float() * 1.001 if t.dim() == 1 else t for n, t in tensors.items()}, folder / "model.safetensors")
    assert [line for line in load_engine(str(folder)).warnings if "are cast to bfloat16" in line]
    assert not [line for line in load_engine(source).warnings if "cast" in line]


@pytest.mark.parametrize("name", [NORM, "model.layers.0.mlp.up_proj.weight"])
@pytest.mark.parametrize(
    ("stored", "own", "number", "wider"), [(BF16, FP16, 1e5, "bfloat16"), (FP32, BF16, 3.4e38, "float32")]
)
def test_numbers_beyond_the_range_are_refused(
    name: str, stored: torch.dtype, own: torch.dtype, number: float, wider: str, tmp_path: Path
) -> None:
    """Expect an error with the tensor and the fix; transformers computes with infinities."""
    folder = mixed(tmp_path, "llama", own, own, stored, is_any)
    tensors = load_file(folder / "model.safetensors")
    load_model(str(folder))
    tensors[name].view(-1)[3] = number
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelRefused, match=rf"{name} is stored in .* beyond the range of .*set dtype to {wider}"):
        load_model(str(folder))
    edit_config(folder, dtype=wider)
    load_model(str(folder))


def test_numbers_beyond_the_range_next_to_an_infinity_are_refused(tmp_path: Path) -> None:
    """Expect the same error if the checkpoint has an infinity of its own, such as one in a mask."""
    folder = mixed(tmp_path, "llama", FP16, FP16, FP32, is_matrix)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"].view(-1)[:2] = torch.tensor([float("inf"), 1e5])
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelRefused, match=r"embed_tokens\.weight is stored in float32 .* beyond the range of float16"):
        load_model(str(folder))


def test_quantize_names_the_dtype_whose_range_a_number_exceeds(tmp_path: Path) -> None:
    """Expect the loader's error: the checkpoint is not broken."""
    folder = mixed(tmp_path, "llama", FP16, FP16, BF16, is_any)
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"].view(-1)[3] = 1e5
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        ModelRefused, match=r"up_proj\.weight is stored in bfloat16 .* beyond the range of float16.*set"
    ):
        quantise_folder(open_source(str(folder)), tmp_path / "quantised", "int8")


def test_codes_where_floats_are_wanted_are_refused(tmp_path: Path) -> None:
    """Expect an error, because a cast would make wrong numbers of codes."""
    folder = mixed(tmp_path, "llama", BF16, BF16, torch.float8_e4m3fn, lambda name, _: name.endswith("up_proj.weight"))
    with pytest.raises(
        ModelRefused, match=r"has dtype torch\.float8_e4m3fn, but the config requires torch\.bfloat16; give"
    ):
        load_model(str(folder))


# -- tied heads, quantising, check -------------------------------------------------------------------------------------


def test_a_head_in_another_dtype_that_is_the_embedding(tmp_path: Path) -> None:
    """Expect one table where the cast makes both equal, as transformers has it, and two where it does not."""
    values = CONFIGS["llama"] | {"tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 3001}
    tensors = random_tensors(values)
    embedding = tensors["model.embed_tokens.weight"]
    write_folder(tmp_path, values, tensors | {"lm_head.weight": embedding.float()})
    model = load_model(str(tmp_path))
    head, table = (model.get_parameter(name) for name in ("lm_head.matrix.weight", "model.embed_tokens.weight"))
    assert head.data_ptr() == table.data_ptr()
    other = embedding.float()
    other[-1, -1] += 1
    write_folder(tmp_path, values, tensors | {"lm_head.weight": other})
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto")
    model = load_model(str(tmp_path))
    assert torch.equal(model.get_parameter("lm_head.matrix.weight"), theirs.lm_head.weight)
    assert torch.equal(model.get_parameter("model.embed_tokens.weight"), theirs.model.embed_tokens.weight)


@pytest.mark.parametrize("weights", ["int8", "int4", "fp8"])
def test_a_mixed_checkpoint_is_quantised_as_the_cast_one(weights: str, tmp_path: Path) -> None:
    """Expect the same numbers while it loads, and the same files, as from a checkpoint in one dtype."""
    values = CONFIGS["llama"] | {"torch_dtype": "bfloat16", "hidden_size": 256, "intermediate_size": 256}
    plain, wide = random_tensors(values), ("norm.weight", "up_proj.weight")
    for name, tensors in (
        ("plain", plain),
        ("mixed", {name: tensor.float() if name.endswith(wide) else tensor for name, tensor in plain.items()}),
    ):
        (tmp_path / name).mkdir()
        write_folder(tmp_path / name, values, tensors)
    first, second = (load_model(str(tmp_path / name), weights=weights) for name in ("plain", "mixed"))
    for (name, one), (_, other) in zip(first.named_parameters(), second.named_parameters(), strict=True):
        assert torch.equal(one.view(torch.uint8), other.view(torch.uint8)), name
    made = []
    for name in ("plain", "mixed"):
        quantise_folder(open_source(str(tmp_path / name)), tmp_path / f"{name}-q", weights)
        made.append(load_file(tmp_path / f"{name}-q" / "model.safetensors"))
    for name, tensor in made[0].items():
        assert torch.equal(tensor.double(), made[1][name].double()), name
    load_model(str(tmp_path / "mixed-q"))


def test_check_finds_nothing_wrong(tmp_path: Path) -> None:
    """Expect the loader's rules: floats of any dtype, and no codes."""
    for odd, fine in ((FP32, True), (torch.float8_e4m3fn, False)):
        folder = mixed(tmp_path, "deepseek_v3", BF16, BF16, odd, is_norm)
        source = open_source(str(folder))
        problems = check_tensors(build_to_run(source.config), open_checkpoint(folder), family_of(source.config))
        assert (not problems) == fine
