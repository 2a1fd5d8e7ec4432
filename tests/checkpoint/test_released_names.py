"""Checkpoints in the released layout fill the parameters of transformers' classes, which name and merge them anew."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from weakref import WeakSet

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from ridgeline.core.checkpoint.converted_checkpoint import ConvertedCheckpoint, convert_checkpoint
from ridgeline.core.checkpoint.folder import Checkpoint, open_checkpoint
from ridgeline.core.checkpoint.weight_loader import load_tensors
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.models.from_transformers.released_names import ReleasedNames
from ridgeline.core.models.from_transformers.text_names import TextNames
from ridgeline.insight.check.tensors import check_tensors
from support.checkpoints import fill_random
from support.class_stand_ins import StandIn, named_family, small_class, small_multimodal, stand_in

# Classes whose released checkpoints differ from their parameters: renamed, stacked, joined, cut or permuted tensors.
CHANGED = (
    "afmoe", "axk1", "bailing_hybrid", "cohere2_moe", "deepseek_v2", "deepseek_v3", "deepseek_v4", "ernie4_5_moe",
    "exaone_moe", "flex_olmo", "fuyu", "gemma3", "glm4_moe", "gpt_neox", "granitemoe", "hrm_text", "hunyuan_v1_moe",
    "hy_v3",
    "inkling2_text", "jamba", "kimi_linear", "lara_mini", "lfm2_moe", "longcat_flash", "minimax", "minimax_m2",
    "mixtral", "nemotron_h", "olmo_hybrid", "olmoe", "phimoe", "qwen2_moe", "qwen3_5_moe_text", "sarvam_moe",
)  # fmt: skip
SAME = (
    "bloom", "dbrx", "falcon", "gemma3n_text", "gpt2", "gpt_oss", "llama4_text", "mamba", "mpt", "opt",
    "prophetnet", "roberta", "zamba",
)  # fmt: skip

FIRST = "model.layers.0.block_sparse_moe.experts.0.w1.weight"
GATE_UP = "model.layers.0.mlp.experts.gate_up_proj"


@dataclass(frozen=True, slots=True)
class Released:
    """A small class's parameters, and the tensors of its checkpoint in the released layout."""

    parameters: Mapping[str, Tensor]
    stored: Mapping[str, Tensor]


@cache
def released(model_type: str) -> Released:
    """Return random parameters of a small class, and the checkpoint that transformers saves."""
    torch.manual_seed(0)
    theirs = small_class(model_type)
    fill_random(theirs, 0)
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        stored = load_file(Path(folder) / "model.safetensors")
    return Released({name: tensor.clone() for name, tensor in theirs.state_dict().items()}, stored)


def load(folder: Path, model_type: str, tensors: Mapping[str, Tensor], dtype: torch.dtype = torch.float32) -> StandIn:
    """Return a stand-in of a class, filled from these tensors."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    model, family = stand_in(model_type, dtype)
    load_tensors(model, open_checkpoint(folder), family)
    return model


def differing(model: StandIn, wanted: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the parameters that are not these, bit for bit."""
    held = dict(model.named_parameters(remove_duplicate=False))
    assert held.keys() == wanted.keys()
    return [name for name, tensor in wanted.items() if not torch.equal(held[name], tensor)]


def refusal(folder: Path, model_type: str, tensors: Mapping[str, Tensor]) -> str:
    """Return the one line with which these tensors are refused, without the folder."""
    with pytest.raises(ModelRefused) as caught:
        load(folder, model_type, tensors)
    message = str(caught.value).replace(str(folder), "FOLDER")
    assert len(message.splitlines()) == 1
    return message


# -- layouts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", [*CHANGED, *SAME])
def test_a_released_checkpoint_fills_every_parameter(model_type: str, tmp_path: Path) -> None:
    """Check that each parameter and persistent buffer is that of the model which transformers saved."""
    given = released(model_type)
    assert (given.stored.keys() <= given.parameters.keys()) == (model_type in SAME)
    assert not differing(load(tmp_path, model_type, given.stored), given.parameters)


@pytest.mark.parametrize("model_type", ["mixtral", "hrm_text", "phimoe", "deepseek_v4", "lara_mini"])
def test_the_class_s_own_names_load_too(model_type: str, tmp_path: Path) -> None:
    """Check that a checkpoint which holds converted tensors is not converted again."""
    given = released(model_type)
    assert not differing(load(tmp_path, model_type, given.parameters), given.parameters)


@pytest.mark.parametrize("model_type", ["mixtral", "gpt_neox", "deepseek_v4", "opt"])
def test_the_bare_model_s_names_load_too(model_type: str, tmp_path: Path) -> None:
    """Load a checkpoint of the model without a head, which leaves out the prefix of its names."""
    given, (_, family) = released(model_type), stand_in(model_type)
    bare = {name.removeprefix(family.backbone_prefix): tensor for name, tensor in given.stored.items()}
    assert not differing(load(tmp_path, model_type, bare), given.parameters)


@pytest.mark.parametrize("model_type", ["mixtral", "hrm_text"])
def test_merged_tensors_are_cast_to_the_model_s_dtype(model_type: str, tmp_path: Path) -> None:
    """Check that a bf16 model has the same numbers from a bf16 and from an fp32 checkpoint."""
    given = released(model_type)
    wanted = {name: tensor.bfloat16() for name, tensor in given.parameters.items()}
    narrow = {name: tensor.bfloat16() for name, tensor in given.stored.items()}
    assert not differing(load(tmp_path, model_type, narrow, torch.bfloat16), wanted)
    assert not differing(load(tmp_path, model_type, given.stored, torch.bfloat16), wanted)


# -- tied tensors ------------------------------------------------------------------------------------------------------


def test_a_tied_head_may_be_stored_and_may_differ(tmp_path: Path) -> None:
    """Check that an equal copy of the table is shared and another head is kept, as in transformers."""
    given = released("falcon")
    table = given.parameters["transformer.word_embeddings.weight"]
    assert "lm_head.weight" not in given.stored
    model = load(tmp_path, "falcon", {**given.stored, "lm_head.weight": table.clone()})
    assert model.get_parameter("lm_head.weight") is model.get_parameter("transformer.word_embeddings.weight")
    other = {**given.parameters, "lm_head.weight": table + 1}
    assert not differing(load(tmp_path, "falcon", other), other)


# -- ignored tensors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("mixtral", "model.layers.0.self_attn.rotary_emb.inv_freq"),
        ("gpt_neox", "gpt_neox.layers.0.attention.masked_bias"),
        ("glm4_moe", "model.layers.46.mlp.experts.0.gate_proj.weight"),
        ("qwen3_5_moe_text", "model.visual.blocks.0.norm1.weight"),
        ("qwen3_5_moe_text", "mtp.fc.weight"),
        ("roberta", "lm_head.decoder.bias"),
    ],
)
def test_tensors_that_the_class_ignores_are_left_out(model_type: str, name: str, tmp_path: Path) -> None:
    """Check that buffers of old checkpoints, and layers that predict several tokens, fill nothing."""
    given = released(model_type)
    assert not differing(load(tmp_path, model_type, {**given.stored, name: torch.ones(3)}), given.parameters)


def test_a_text_model_s_class_knows_the_prefix_of_a_multimodal_checkpoint(tmp_path: Path) -> None:
    """Load by the prefix of the language model that transformers names for this class."""
    given = released("qwen3_5_moe_text")
    within = {re.sub(r"^model\.", "model.language_model.", name): tensor for name, tensor in given.stored.items()}
    assert within.keys() != given.stored.keys()
    assert not differing(load(tmp_path, "qwen3_5_moe_text", within), given.parameters)


# -- multimodal checkpoints --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "path", "head"),
    [
        *((each, "model.language_model.", "") for each in ("aria", "gemma3", "inkling_mm_model", "minimax_m3_vl")),
        ("idefics3", "model.text_model.", ""),
        ("llama4", "language_model.model.", "language_model."),
        ("mistral3", "model.language_model.", ""),  # only the whole config ties the head
    ],
)
def test_a_text_model_is_filled_from_a_multimodal_checkpoint(
    model_type: str, path: str, head: str, tmp_path: Path
) -> None:
    """Check that tensors fill it by their other names, and that those of image and audio encoders fill nothing."""
    torch.manual_seed(0)
    theirs = small_multimodal(model_type)
    fill_random(theirs, 0)
    theirs.save_pretrained(tmp_path)
    with torch.device("meta"):
        text = AutoModelForCausalLM.from_config(theirs.config.text_config, dtype=torch.float32)
        names = TextNames(text, small_multimodal(model_type))
    model, checkpoint = StandIn(names.tensors, names.ties, torch.float32), open_checkpoint(tmp_path)
    load_tensors(model, checkpoint, named_family(names))
    held, given = dict(model.named_parameters(remove_duplicate=False)), theirs.state_dict()
    pairs = {name: re.sub(r"^model\.", path, name) for name in held if name.startswith("model.")}
    pairs |= {name: head + name for name in held if name not in pairs}
    assert len(pairs) < len(given)
    assert all(torch.equal(held[name], given[other]) for name, other in pairs.items())
    assert any(names.is_ignored(name) for name in checkpoint.entries)
    usual = {each for name in held for each in names.released_tensors(name) if name not in names.ties}
    assert usual < checkpoint.entries.keys()


@pytest.mark.parametrize("model_type", ["gemma3", "minimax_m3_vl"])
def test_a_text_model_s_own_checkpoint_loads_as_well(model_type: str, tmp_path: Path) -> None:
    """Load a text model that was saved alone, as fine-tuned ones often are."""
    with torch.device("meta"):
        whole = small_multimodal(model_type)
        names = TextNames(AutoModelForCausalLM.from_config(whole.config.text_config, dtype=torch.float32), whole)
    theirs = AutoModelForCausalLM.from_config(whole.config.text_config, dtype=torch.float32)
    fill_random(theirs, 0)
    theirs.save_pretrained(tmp_path)
    model = StandIn(names.tensors, names.ties, torch.float32)
    load_tensors(model, open_checkpoint(tmp_path), named_family(names))
    assert not differing(model, theirs.state_dict())


# -- parts that are loaded one by one ----------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["model.", ""])
def test_experts_may_be_loaded_one_by_one(prefix: str, tmp_path: Path) -> None:
    """Check the names for an op that loads each expert's matrix, and its scale, by itself."""
    given = released("mixtral")
    with torch.device("meta"):
        theirs = small_class("mixtral")
    apart = [path for path, _ in theirs.named_modules() if path.endswith(".experts")]
    names = ReleasedNames(theirs, apart)
    assert apart
    single = {name.replace("block_sparse_moe", "mlp"): tensor for name, tensor in given.stored.items()}
    stored = {prefix + name.removeprefix("model."): tensor for name, tensor in given.stored.items()}
    scale = SCALE.replace("block_sparse_moe", "mlp")
    tensors = {**single, scale: torch.ones(1)}
    save_file(stored | {prefix + SCALE.removeprefix("model."): torch.ones(1)}, tmp_path / "model.safetensors")
    model = StandIn(tensors, {}, torch.float32)
    load_tensors(model, open_checkpoint(tmp_path), named_family(names))
    assert not differing(model, tensors)
    assert named_family(names).checkpoint_name(MERGED.removesuffix(".weight")) == FIRST.removesuffix(".weight")


# -- broken checkpoints ------------------------------------------------------------------------------------------------


def without(name: str) -> Callable[[dict[str, Tensor]], object]:
    """Return a change that removes a tensor."""
    return lambda tensors: tensors.pop(name)


def replaced(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    """Return a change that sets a tensor, made from the first part of the first expert."""
    return lambda tensors: tensors.update({name: make(tensors[FIRST])})


BEYOND = FIRST.replace("experts.0", "experts.99")
MERGED = FIRST.replace("block_sparse_moe", "mlp")
SCALE = FIRST.replace("weight", "weight_scale_inv")
CODES = FIRST.replace("weight", "qweight")
OWN_CONFIG = "use the checkpoint's own config.json, or fetch the checkpoint again"
QUANTISED = (
    f"is quantised, and is a part of {GATE_UP}, which is only loaded from plain floats; "
    "price the model (ridgeline plan, show, trace --priced), or use the unquantized checkpoint"
)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without(FIRST), f"FOLDER lacks tensors of the model: {FIRST}; {OWN_CONFIG}"),
        (replaced(BEYOND, torch.clone), f"FOLDER has tensors that the model lacks: {BEYOND}; {OWN_CONFIG}"),
        (
            replaced(MERGED, torch.clone),
            f"tensor {MERGED} is the same part of {GATE_UP} as {FIRST}; fetch the checkpoint again",
        ),
        (replaced(FIRST, lambda first: first.to(torch.float8_e4m3fn)), f"tensor {FIRST} {QUANTISED}"),
        (replaced(SCALE, lambda first: torch.ones(1)), f"tensor {SCALE} {QUANTISED}"),
        (replaced(CODES, lambda first: first.to(torch.int32)), f"tensor {CODES} {QUANTISED}"),
        (replaced(GATE_UP, torch.clone), f"tensor {GATE_UP} is stored, and made from {FIRST} and others too"),
        (
            replaced(FIRST, lambda first: first[1:].clone()),
            f"tensor {FIRST} has shape [O, I], but the other parts of {GATE_UP} have [O, I]; {OWN_CONFIG}",
        ),
    ],
    ids=["missing", "beyond", "twice", "fp8", "scale", "codes", "merged too", "misshapen"],
)
def test_a_broken_mixture_is_refused(
    change: Callable[[dict[str, Tensor]], object], message: str, tmp_path: Path
) -> None:
    """Check that the line names the tensor as it is stored."""
    tensors = dict(released("mixtral").stored)
    change(tensors)
    said = re.sub(r"\[\d+, \d+\]", "[O, I]", refusal(tmp_path, "mixtral", tensors))
    assert said.removeprefix("FOLDER/model.safetensors: ").removeprefix("FOLDER: ").startswith(message)


def test_experts_of_another_size_are_refused_by_the_shape_of_the_parameter(tmp_path: Path) -> None:
    """Check the message if all experts agree with each other, but not with the config."""
    tensors = {
        name: tensor[..., 1:].clone() if ".w1." in name or ".w3." in name else tensor
        for name, tensor in released("mixtral").stored.items()
    }
    assert f"tensor {GATE_UP} has shape " in refusal(tmp_path, "mixtral", tensors)


def test_check_reports_a_missing_expert_and_nothing_else(tmp_path: Path) -> None:
    """Check that `ridgeline check` sees the tensors as the loader does."""
    tensors = dict(released("mixtral").stored)
    for name, wanted in ((None, []), (FIRST, [FIRST])):
        tensors.pop(name or "", None)
        save_file(tensors, tmp_path / "model.safetensors")
        model, family = stand_in("mixtral")
        problems = check_tensors(model, open_checkpoint(tmp_path), family)  # type: ignore[arg-type]  # any PricedModule
        assert [name in problem for name, problem in zip(wanted, problems, strict=True)] == [True] * len(wanted)


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ["mixtral", "olmo_hybrid"])
def test_a_merged_tensor_is_filled_source_by_source(
    model_type: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that only one source is in memory next to a merged tensor."""
    save_file(dict(released(model_type).stored), tmp_path / "model.safetensors")
    checkpoint = convert_checkpoint(open_checkpoint(tmp_path), stand_in(model_type)[1])
    assert isinstance(checkpoint, ConvertedCheckpoint)
    alive, counts, read = WeakSet[Tensor](), list[int](), Checkpoint.read

    def watched(stored: Checkpoint, name: str) -> Tensor:
        counts.append(len(alive))
        held = read(stored, name)
        alive.add(held)
        return held

    monkeypatch.setattr(Checkpoint, "read", watched)
    made = [name for name, _ in checkpoint.tensors() if name in checkpoint.conversions]
    assert len(counts) > len(made) > 1
    assert not any(counts)


# -- names of modules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", [*CHANGED, *SAME])
def test_the_usual_names_of_a_parameter_are_those_in_its_checkpoint(model_type: str) -> None:
    """Compare names with those of the checkpoint, which lists of modules in the configs of quantisers use."""
    given, (_, family) = released(model_type), stand_in(model_type)
    for name in family.names().tensors:
        if name not in family.names().ties:
            assert set(family.names().released_tensors(name)) <= given.stored.keys()
    merged = {name for conversion in family.conversions(given.stored) for name in conversion.names}
    for name in given.stored:
        module = name.removesuffix(".weight")
        own = family.names().model_name(name)
        if own.endswith(".weight") and module != name:
            assert module in family.checkpoint_names(own.removesuffix(".weight"))
            assert name in merged or family.model_name(module) == own.removesuffix(".weight")


def test_a_rename_without_a_unique_reverse_hides_no_name() -> None:
    """Find the released names of Kimi K2.5, whose image encoder has `blocks` that are renamed to `layers`."""
    with torch.device("meta"):
        whole = small_multimodal("kimi_k25")
        names = TextNames(AutoModelForCausalLM.from_config(whole.config.text_config), whole)
    attention = "layers.0.self_attn.o_proj"
    assert f"language_model.model.{attention}" in names.checkpoint_names(f"model.{attention}")
