"""How weights are stored, as configs say: bytes against transformers' modules, quantisers' tensors and published sizes;
which matrices, in which arithmetic; what is refused."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, FineGrainedFP8Config
from transformers.integrations.fbgemm_fp8 import FbgemmFp8Linear
from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
from transformers.integrations.mxfp4 import Mxfp4GptOssExperts

from models.configs import CONFIGS
from ridgeline.cli.show import show
from ridgeline.core.checkpoint import read_config
from ridgeline.core.models import Fields, ModelRefused, build, build_to_run
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.models.common.recipes import Recipe, read_recipe, recipe_named, recipe_names, runnable_format_names
from ridgeline.core.ops.embedding import Embedding
from ridgeline.core.ops.experts import Experts
from ridgeline.core.ops.linear import LMHead
from ridgeline.core.ops.norm import Norm
from ridgeline.core.ops.number_formats import MXFP4, WeightFormat
from ridgeline.core.ops.shard import Shard
from ridgeline.core.ops.weight_slot import WeightSlot
from ridgeline.core.ops.work import CAUSAL, StepSegment, Work
from ridgeline.price.price import Price

PACKED = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
NVFP4 = {"num_bits": 4, "type": "float", "symmetric": True, "strategy": "tensor_group", "group_size": 16}


def compressed(weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A compressed-tensors section with one group of all linear modules."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, "ignore": ["lm_head"], **more}


AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
BLOCK_FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
W4A16 = compressed(PACKED, format="pack-quantized")
W8A8_FP8 = compressed(FLOAT8, {"num_bits": 8, "type": "float"}, format="float-quantized")
W8A8_INT8 = compressed(INT8, {"num_bits": 8, "type": "int"}, format="int-quantized")
W4A4 = compressed(NVFP4, NVFP4, format="nvfp4-pack-quantized")

SMALL: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 500, "hidden_size": 256,
    "intermediate_size": 640, "num_hidden_layers": 3, "num_attention_heads": 8, "num_key_value_heads": 2,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip
EXPERTS: dict[str, Any] = SMALL | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "head_dim": 32, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 128, "decoder_sparse_step": 1, "norm_topk_prob": True,
}  # fmt: skip


def quantised(section: dict[str, Any], values: dict[str, Any] = SMALL) -> Fields:
    """A config with a section."""
    return Fields({**values, "quantization_config": section}, "config.json")


def recipe_of(section: dict[str, Any]) -> Recipe:
    """What a section says."""
    return read_recipe(quantised(section))


def places(model: Model, recipe: Recipe) -> dict[str, str]:
    """The format of each matrix and table, by its name in the checkpoint; "" for the model's dtype."""
    found: dict[str, str] = {}
    choose = recipe.choice(model)

    def note(place: WeightSlot) -> WeightFormat | None:
        stored = choose(place)
        found[place.name] = "" if stored is None else stored.name
        return stored

    model.store(note)
    return found


# -- bytes, against those who store them -------------------------------------------------------------------------------


def parameter_bytes(model: torch.nn.Module) -> int:
    """Of transformers' own modules."""
    return sum(parameter.nbytes for parameter in model.parameters())


@pytest.mark.parametrize("values", [SMALL, EXPERTS | {"intermediate_size": 300}, SMALL | {"head_dim": 40}])
@pytest.mark.parametrize("kept", [[], ["model.layers.1"], ["o_proj"], ["model.layers.*.self_attn"]])
def test_block_scaled_fp8_takes_what_transformers_modules_do(values: dict[str, Any], kept: list[str]) -> None:
    """Sizes that do not divide into blocks too, and modules that are not converted, however the list names them."""
    with torch.device("meta"):
        theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), dtype=torch.bfloat16)
    config = FineGrainedFP8Config(weight_block_size=(128, 128))
    replace_with_fp8_linear(theirs, ["lm_head", *kept], config, pre_quantized=True)
    ours = parameter_breakdown(build(quantised(BLOCK_FP8 | {"modules_to_not_convert": ["lm_head", *kept]}, values)))
    assert ours.nbytes == parameter_bytes(theirs)
    assert ours.nbytes < parameter_breakdown(build(Fields(values, "config.json"))).nbytes


def test_mxfp4_takes_what_transformers_experts_do() -> None:
    """Two numbers a byte; the exponents of 32 are beside them, as many as the checkpoint's `_scales`."""
    config = AutoConfig.for_model("gpt_oss", num_local_experts=3, hidden_size=64, intermediate_size=96)
    with torch.device("meta"):
        theirs = Mxfp4GptOssExperts(config)
    packed = theirs.gate_up_proj.nbytes + theirs.down_proj.nbytes
    scales = 3 * (2 * 96 * 64 // 32 + 64 * 96 // 32)
    assert 3 * (2 * MXFP4.nbytes(96, 64) + MXFP4.nbytes(64, 96)) == packed + scales


def words(*shape: int, bits: int = 32) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * bits // 8


def awq_tensors(inputs: int, outputs: int) -> int:
    """AutoAWQ: qweight [in, out / 8] and qzeros [in / group, out / 8] of 32 bits, scales [in / group, out] of 16."""
    groups = inputs // 128
    return words(inputs, outputs // 8) + words(groups, outputs // 8) + words(groups, outputs, bits=16)


def gptq_tensors(inputs: int, outputs: int) -> int:
    """GPTQ: qweight [in / 8, out], qzeros and scales as AWQ has them, g_idx [in] of 32 bits."""
    return words(inputs // 8, outputs) + awq_tensors(inputs, outputs) - words(inputs, outputs // 8) + words(inputs)


def packed_tensors(inputs: int, outputs: int) -> int:
    """compressed-tensors: weight_packed [out, in / 8], weight_scale [out, in / group] of 16 bits, weight_shape [2] of
    64."""
    return words(outputs, inputs // 8) + words(outputs, inputs // 128, bits=16) + words(2, bits=64)


def nvfp4_tensors(inputs: int, outputs: int) -> int:
    """weight_packed [out, in / 2] and weight_scale [out, in / 16] of 8 bits, two scales of 32 for the whole."""
    return words(outputs, inputs // 2, bits=8) + words(outputs, inputs // 16, bits=8) + words(2)


def fbgemm_tensors(inputs: int, outputs: int) -> int:
    """As transformers' module has them: a scale a row."""
    with torch.device("meta"):
        return parameter_bytes(FbgemmFp8Linear(inputs, outputs, bias=False))


@pytest.mark.parametrize(
    ("section", "tensors"),
    [
        (AWQ, awq_tensors), (GPTQ, gptq_tensors), (W4A16, packed_tensors), (W4A4, nvfp4_tensors),
        ({"quant_method": "fbgemm_fp8"}, fbgemm_tensors),
    ],
)  # fmt: skip
def test_the_tensors_of_a_quantiser(section: dict[str, Any], tensors: Any) -> None:
    """Every matrix of the blocks as its tool packs it, all else in 16 bits."""
    d, width, kv = 256, 640, 64
    matrices = [(d, d), (d, kv), (d, kv), (d, d), (d, width), (d, width), (width, d)]
    rest = 2 * 500 * d + (2 * 3 + 1) * d
    assert parameter_breakdown(build(quantised(section))).nbytes == 3 * sum(tensors(*m) for m in matrices) + 2 * rest


# Bytes of all weight files in 10^9, as the hub lists them: hugging-quants/Meta-Llama-3.1-8B-Instruct-AWQ-INT4 (4.68 +
# 1.05), Qwen/Qwen2-7B-Instruct-GPTQ-Int4 (3.69 + 1.50 GiB; the sizes of qwen2.5-7b), and a Qwen2.5-32B in W4A16 by LLM
# Compressor (4.93 + 4.96 + 5.00 + 4.33).
RELEASED = [("llama-3.1-8b", AWQ, 5.73), ("qwen2.5-7b", GPTQ, 5.573), ("qwen2.5-32b", W4A16, 19.22)]


@pytest.mark.parametrize(("name", "section", "gigabytes"), RELEASED)
def test_sizes_of_released_checkpoints(name: str, section: dict[str, Any], gigabytes: float) -> None:
    """As exactly as they are listed."""
    counted = parameter_breakdown(build(quantised(section, dict(read_config(name).values))))
    assert counted.nbytes / 1e9 == pytest.approx(gigabytes, rel=0.002)


def test_the_released_fp8_config(data_dir: Any) -> None:
    """Qwen3-32B-FP8 as released: 31.2 G numbers of a byte, a scale of 4 bytes for 128 x 128, the rest in bf16."""
    fields = read_config(str(data_dir / "configs" / "Qwen__Qwen3-32B-FP8"))
    counted, recipe = parameter_breakdown(build(fields)), read_recipe(fields)
    blocks = counted.parameters["attention"] + counted.parameters["feed-forward"]
    assert counted.nbytes == blocks + blocks / 128**2 * 4 + 2 * (counted.total - blocks)
    assert (recipe.name, recipe.unread) == ("fp8 128x128", ())


def test_a_text_half_says_how_its_own_weights_are_stored() -> None:
    """As Kimi-K2.5: 384 experts in int4 beside attention, shared experts and a dense layer in bf16. What is stored
    there is what the same model's config of one half gives."""
    text = dict(read_config("kimi-k2").values)
    ignored = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"]
    text["quantization_config"] = {**W4A16, "ignore": ignored}
    halves = {"architectures": ["KimiK25ForConditionalGeneration"], "text_config": text, "torch_dtype": "bfloat16"}
    fields, alone = Fields(halves, "config.json"), parameter_breakdown(build(Fields(text, "config.json")))
    counted = parameter_breakdown(build(fields))
    assert fields.unread() == []
    assert (counted.parameters, counted.nbytes) == (alone.parameters, alone.nbytes)
    experts = 60 * 384 * 3 * 7168 * 2048
    assert counted.nbytes - 2 * (counted.total - experts) == pytest.approx(experts * (0.5 + 2 / 128), rel=1e-3)


# -- llama.cpp's mixes -------------------------------------------------------------------------------------------------

# Bits a weight, from the tables of llama.cpp's tools/quantize/README.md (of Llama 3.1 with norms in 32 bits, which we
# price in 16: 0.0005 of them).
BITS = {
    "llama-3.1-8b": {
        "q2_k": 3.1593, "q3_k_s": 3.6429, "q3_k_l": 4.2979, "q4_k_s": 4.6672, "q4_k_m": 4.8944, "q5_k_s": 5.5704,
        "q5_k_m": 5.7036, "q6_k": 6.5633, "q8_0": 8.5008,
    },
    "llama-2-7b": {"q3_k_m": 3.91, "q4_k_s": 4.58, "q4_k_m": 4.84, "q5_k_s": 5.52, "q5_k_m": 5.68, "q6_k": 6.56},
    "llama-2-13b": {"q3_k_s": 3.48, "q3_k_m": 3.89, "q3_k_l": 4.26, "q4_k_m": 4.83, "q5_k_m": 5.67},
    "llama-2-70b": {"q3_k_s": 3.47, "q3_k_l": 4.19, "q4_k_m": 4.80, "q5_k_s": 5.50, "q5_k_m": 5.65},
}  # fmt: skip


@pytest.mark.parametrize("name", BITS)
def test_bits_a_weight_of_llama_cpp(name: str) -> None:
    """Of every mix, to the digits that are published."""
    for mix, published in BITS[name].items():
        model = build(read_config(name), recipe=recipe_named(mix))
        counted = parameter_breakdown(model)
        norms = sum(op.parameter_count() for _, op in model.ops() if isinstance(op, Norm))
        bits = (counted.nbytes + 2 * norms) * 8 / counted.total
        assert bits == pytest.approx(published, abs=2e-4 if name == "llama-3.1-8b" else 6e-3), mix


def test_a_mix_of_a_tied_model_and_of_experts() -> None:
    """Qwen3-4B in Q4_K_M is 2.32 GiB (as published for its GGUF file); its table is the head, once and in Q6_K. Beside
    eight experts keys and values are stored in Q8_0, and routers stay as they are, in 32 bits."""
    tied = build(read_config("qwen3-4b"), recipe=recipe_named("q4_k_m"))
    assert parameter_breakdown(tied).nbytes / 2**30 == pytest.approx(2.32, abs=0.005)
    table = next(op for _, op in tied.ops() if isinstance(op, Embedding))
    head = next(op for _, op in tied.ops() if isinstance(op, LMHead))
    assert table.stored == head.stored
    assert table.stored is not None
    assert table.stored.name == "q6_k"
    assert head.matrix.weight is table.weight
    assert head.cost_of(1).weight_bytes == table.stored_bytes()
    mixtral = build(read_config("mixtral-8x7b"))
    formats = places(mixtral, recipe_named("q4_k_m"))
    layer = {name.removeprefix("model.layers.5."): form for name, form in formats.items() if ".5." in name}
    assert {layer[f"self_attn.{part}_proj"] for part in "kv"} == {"q8_0"}
    assert (layer["self_attn.o_proj"], layer["self_attn.q_proj"], layer["mlp.gate"]) == ("q5_k", "q4_k", "f32")
    assert {formats[f"model.layers.{n}.mlp.experts.0.w2"] for n in (0, 3, 6, 31)} == {"q6_k"}
    assert formats["model.layers.4.mlp.experts.0.w2"] == "q4_k"


def test_the_table_of_a_speech_model_is_its_tokens() -> None:
    """Which the head is tied to; the encoder's positions come before it, and are left alone."""
    model = build(read_config("whisper-base"), recipe=recipe_named("q4_k_m"))
    stored = {path: op.stored.name for path, op in model.ops() if isinstance(op, Embedding | LMHead) and op.stored}
    assert stored == {"model.decoder.embed_tokens": "q6_k", "lm_head": "q6_k"}


def test_rows_that_do_not_divide_into_blocks() -> None:
    """Rows of 48 numbers divide into neither 256 nor 32: they stay; rows of 96 take blocks of 32."""
    assert set(places(build(Fields(CONFIGS["llama"], "c")), recipe_named("q4_k_m")).values()) == {""}
    wide = SMALL | {"hidden_size": 96, "head_dim": 32, "num_attention_heads": 3, "num_key_value_heads": 1}
    formats = places(build(Fields(wide, "c")), recipe_named("q4_k_m"))
    assert formats["model.layers.1.self_attn.q_proj"] == "q5_0"
    assert formats["lm_head"] == "q8_0"


# -- which matrices ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "untouched"),
    [
        (BLOCK_FP8, {"lm_head"}),
        (BLOCK_FP8 | {"modules_to_not_convert": ["model.layers.0", "lm_head"]}, {"lm_head", "layers.0."}),
        (AWQ | {"modules_to_not_convert": ["k_proj"]}, {"lm_head", "k_proj"}),
        (AWQ | {"modules_to_not_convert": ["self_attn", ".2.mlp.up"]}, {"lm_head", "self_attn", "2.mlp.up"}),
        (GPTQ, {"lm_head"}),
        (GPTQ | {"lm_head": True}, set()),
        (GPTQ | {"dynamic": {"-:.*v_proj": {}, "+:.*o_proj": {"bits": 8}}}, {"lm_head", "v_proj"}),
        (W4A16 | {"ignore": []}, set()),
        (W4A16 | {"ignore": ["lm_head", r"re:.*layers\.[01]\.mlp.*"]}, {"lm_head", "layers.0.mlp", "layers.1.mlp"}),
        (W4A16 | {"ignore": ["lm_head", "model.layers.2.mlp.up_proj"]}, {"lm_head", "layers.2.mlp.up_proj"}),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, {"lm_head"}),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "*.1.mlp*"]},
         {"lm_head", "layers.1.mlp"}),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["model.layers.2"]}, {"layers.2."}),
        ({"quant_method": "mxfp4"}, {"lm_head", "proj"}),  # of a model without experts nothing
    ],
)  # fmt: skip
def test_which_matrices_are_left_alone(section: dict[str, Any], untouched: set[str]) -> None:
    """The embedding, and what the config says, however its tool writes it."""
    formats = places(build(Fields(SMALL, "config.json")), recipe_of(section))
    assert len(formats) == 3 * 7 + 2
    for name, form in formats.items():
        left = name == "model.embed_tokens" or any(part in name for part in untouched)
        assert (form == "") == left, name


def test_experts_and_routers() -> None:
    """Experts are stored as the config says, routers never; MXFP4 is of experts alone."""
    for section, kinds in ((BLOCK_FP8, {"experts", "self_attn"}), ({"quant_method": "mxfp4"}, {"experts"})):
        formats = places(build(Fields(EXPERTS, "config.json")), recipe_of(section))
        stored = {name for name, form in formats.items() if form}
        assert {name.split(".")[4 if "experts" in name else 3] for name in stored} == kinds
        assert "model.layers.0.mlp.gate" not in stored
    formats = places(build(Fields(EXPERTS, "c")), recipe_of(BLOCK_FP8 | {"modules_to_not_convert": ["down_proj"]}))
    assert formats["model.layers.0.mlp.experts.0.down_proj"] == ""
    assert formats["model.layers.0.mlp.experts.0.up_proj"] == "fp8 128x128"


W4A16_MIXTRAL = W4A16 | {"ignore": ["lm_head", "re:.*block_sparse_moe.gate", "re:.*0.block_sparse_moe.experts.*w2"]}
MODELOPT_MIXTRAL = {
    "quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
    "quantized_layers": {f"model.layers.1.block_sparse_moe.experts.{n}.w1": {"quant_algo": "FP8"} for n in range(5)},
}  # fmt: skip


@pytest.mark.parametrize(
    ("section", "kept"),
    [
        (AWQ | {"modules_to_not_convert": ["block_sparse_moe.gate", "0.block_sparse_moe.experts.0.w2"]}, {(0, "w2")}),
        (W4A16_MIXTRAL, {(0, "w2")}),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["*.1.block_sparse_moe*"]},
         {(1, "w1"), (1, "w2"), (1, "w3")}),
        (MODELOPT_MIXTRAL, {(0, "w1"), (0, "w2"), (0, "w3"), (1, "w2"), (1, "w3")}),
    ],
)  # fmt: skip
def test_lists_name_modules_as_the_checkpoint_does(section: dict[str, Any], kept: set[tuple[int, str]]) -> None:
    """Mixtral's checkpoints call `block_sparse_moe` what its kin, and we, call `mlp`. The router is never quantised."""
    model = build(quantised(section, CONFIGS["mixtral"]))
    experts = [op for _, op in model.ops() if isinstance(op, Experts)]
    assert {(n, name) for n, op in enumerate(experts) for name, stored in op.stored.items() if stored is None} == kept
    assert all(op.matrix.stored is None for path, op in model.ops() if path.endswith("mlp.gate"))


def test_each_layer_in_an_algorithm_of_its_own() -> None:
    """ModelOpt's mixed precision; experts of one layer that differ are named."""
    layers = {
        "model.layers.0.self_attn.q_proj": {"quant_algo": "FP8"},
        "model.layers.1.mlp.up_proj": {"quant_algo": "NVFP4"},
    }
    section = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    formats = places(build(Fields(SMALL, "c")), recipe_of(section))
    assert {name: form for name, form in formats.items() if form} == {
        "model.layers.0.self_attn.q_proj": "fp8 tensor", "model.layers.1.mlp.up_proj": "nvfp4",
    }  # fmt: skip
    experts = {f"model.layers.0.mlp.experts.{n}.up_proj": {"quant_algo": a} for n, a in enumerate(("FP8", "NVFP4"))}
    with pytest.raises(ModelRefused, match=r"experts\.1\.up_proj is stored in another format than other experts"):
        recipe_of(section | {"quantized_layers": experts})


NVFP4_EXPERTS = {"quant_algo": "W4A16_NVFP4", "group_size": 16}


def mixed(*names: str, **more: Any) -> dict[str, Any]:
    """Make a section of ModelOpt's mixed precision with these modules."""
    layers = dict.fromkeys(names, NVFP4_EXPERTS)
    return {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": layers, **more}


def narrowed(values: dict[str, Any], section: dict[str, Any]) -> set[str]:
    """Return the paths of the matrices that a section stores narrower; the experts of a mixture are one."""
    model = build(quantised(section, values))
    found = {path for path, op in model.ops() if isinstance(op, Experts) and any(op.stored.values())}
    matrices = {path for path, module in model.named_modules() if getattr(module, "stored", None) is not None}
    matrices = {path.removesuffix(".matrix") for path in matrices}
    return found | {path for path in matrices if ".experts" not in path}


QWEN3_5_MOE = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "model_type": "qwen3_5_moe", "vision_config": {"depth": 1},
    "text_config": CONFIGS["qwen3_5_moe_text"] | {"tie_word_embeddings": False},
}  # fmt: skip
EVERYWHERE = (
    "model.language_model.layers.{}.mlp.experts",  # of transformers 5
    "language_model.model.layers.{}.mlp.experts",  # of transformers 4
    "model.layers.{}.mlp.experts",  # of the text alone
    "layers.{}.mlp.experts",  # of the bare model
    "model.language_model.layers.{}.mlp.experts.3",
    "model.language_model.layers.{}.mlp",
)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_modules_of_a_larger_model_by_any_of_their_names(name: str) -> None:
    """List all experts of a layer, one, or the module around them, in the names of newer and older tools."""
    stored = narrowed(QWEN3_5_MOE, mixed(name.format(1)))
    assert "model.layers.1.mlp.experts" in stored
    assert not {path for path in stored if not path.startswith("model.layers.1.mlp")}
    everything = {"quant_method": "modelopt", "quant_algo": "NVFP4", "exclude_modules": [name.format(1)]}
    assert "model.layers.0.mlp.experts" in narrowed(QWEN3_5_MOE, everything)
    assert ("model.layers.1.mlp.experts" in narrowed(QWEN3_5_MOE, everything)) == name.endswith(".3")


def test_a_shared_expert_and_a_head_that_are_listed() -> None:
    """List them by their names in the checkpoint; what excludes a module counts before what lists it."""
    section = mixed("model.language_model.layers.0.mlp.shared_expert.up_proj", "lm_head", "mtp.layers.0.mlp.experts")
    assert narrowed(QWEN3_5_MOE, section) == {"model.layers.0.mlp.shared_experts.gate_up.up_proj", "lm_head"}
    assert narrowed(QWEN3_5_MOE, section | {"ignore": ["lm_*"]}) == {
        "model.layers.0.mlp.shared_experts.gate_up.up_proj"
    }


@pytest.mark.parametrize(
    ("section", "says"),
    [
        (mixed("lm_head", "model.language_model.layers.7.mlp.experts"), "has no model.language_model.layers.7.mlp.exp"),
        (mixed("lm_head", "a.b", "c.d", "model.visual.blocks.0.attn.proj"), "has no a.b and 1 more modules; give"),
        ({"quant_method": "compressed-tensors", "config_groups": {"0": {"targets": ["re:.*w1"], "weights": PACKED}}},
         "compressed-tensors int4 g128, but the model has no such weight"),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "ignore": ["*"]}, "the model has no such weight"),
    ],
)  # fmt: skip
def test_a_recipe_of_other_weights(section: dict[str, Any], says: str) -> None:
    """Expect a refusal: the recipe would leave the model's weights in a wider format without a word."""
    with pytest.raises(ModelRefused) as caught:
        build(quantised(section, QWEN3_5_MOE))
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("section", "name"),
    [
        ({"producer": {"name": "modelopt", "version": "0.31.0"}, "quant_algo": "FP8"}, "modelopt fp8 tensor"),
        ({"quant_method": "modelopt_fp4", "quant_algo": "NVFP4"}, "modelopt nvfp4"),
        ({"load_in_8bit": True}, "bitsandbytes int8 channel"),
        ({"load_in_4bit": True, "load_in_8bit": False}, "bitsandbytes fp4"),
    ],
)
def test_a_section_that_does_not_name_its_method(section: dict[str, Any], name: str) -> None:
    """Expect its producer or another key to tell; a section that nobody signed is refused."""
    assert recipe_of(section).name == name
    with pytest.raises(ModelRefused, match="quantized by 'an unnamed method' are not supported"):
        recipe_of({"producer": {"name": "someone"}, "quant_algo": "FP8"})


# -- arithmetic, keys and values, and ranks ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "arithmetic"),
    [
        (BLOCK_FP8, "fp8"), (W8A8_FP8, "fp8"), (W8A8_INT8, "int8"), (W4A4, "fp4"), (W4A16, "bf16"), (AWQ, "bf16"),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8_AWQ", "exclude_modules": ["lm_head"]}, "fp8"),
    ],
)  # fmt: skip
def test_products_are_of_the_activations_format(section: dict[str, Any], arithmetic: str) -> None:
    """As many FLOPs as without, in the units that the checkpoint was made for; the head in the model's dtype."""
    work = Work.of([StepSegment(5, 9)], [CAUSAL], 1)
    plain = Price(build(Fields(SMALL, "c"))).step(work)
    narrow = Price(build(quantised(section))).step(work)
    assert narrow.total_flops == plain.total_flops
    blocks = 2.0 * 5 * 3 * (2 * 256 * 256 + 2 * 256 * 64 + 3 * 256 * 640)
    assert narrow.flops[arithmetic] >= blocks
    assert narrow.flops["bf16"] == plain.flops["bf16"] - (0 if arithmetic == "bf16" else blocks)
    assert narrow.weight_bytes < plain.weight_bytes


def test_products_side_by_side_that_are_stored_otherwise() -> None:
    """Values left in bf16 beside fp8 queries and keys: each in its own arithmetic, and the kernels add up to the op."""
    model = build(quantised(BLOCK_FP8 | {"modules_to_not_convert": ["lm_head", "v_proj", "up_proj"]}))
    for path, outputs in (("self_attn.qkv", 64), ("mlp.gate_up", 640)):
        op = model.get_submodule(f"model.layers.0.{path}")
        cost, kernels = op.cost_of(7), [k for k in op.launches_of(7) if not k.name.startswith("elementwise")]
        assert cost.flops["bf16"] == 2.0 * 7 * 256 * outputs
        assert {kernel.number_format for kernel in kernels} == {"fp8", "bf16"}
        assert sum(kernel.cost.weight_bytes for kernel in kernels) == cost.weight_bytes
        assert sum(kernel.calls for kernel in kernels) == len(op.names)


@pytest.mark.parametrize(
    ("section", "kv"),
    [
        (BLOCK_FP8, None),
        (W8A8_FP8 | {"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}, 1.0),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}, 1.0),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "NVFP4"}, 0.5625),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": "FP8"}, 1.0),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, 1.0625),
    ],
)
def test_keys_and_values_as_the_checkpoint_says(section: dict[str, Any], kv: float | None) -> None:
    """Bytes a number of K or V, scales included: of a head of 32, NVFP4 has two of 8 bits, int8 one of 16."""
    model = build(quantised(section))
    assert model.kv_specs[0].bytes_per_token == 2 * 2 * 32 * (kv or 2)
    assert model.runs == (model.weights_run and kv in (None, 1.0)), "of scales of a checkpoint those of fp8 are read"


@pytest.mark.parametrize("name", ["fp8", "int4", "nvfp4", "q4_k_m", "q8_0"])
def test_ranks_share_what_one_card_holds(name: str) -> None:
    """Two ranks hold what one holds, but for norms and the scales of blocks that are cut."""
    values = SMALL | {"hidden_size": 512, "intermediate_size": 1024, "vocab_size": 512}
    whole = parameter_breakdown(build(Fields(values, "c"), recipe=recipe_named(name))).nbytes
    half = parameter_breakdown(build(Fields(values, "c"), recipe=recipe_named(name), shard=Shard(0, 2))).nbytes
    assert whole / 2 <= half < whole / 2 * 1.01


def test_what_is_stored_so_does_not_run() -> None:
    """It is said in one line, with what works; plain weights run."""
    with pytest.raises(
        ModelRefused,
        match=r"stored as bitsandbytes fp4 cannot run yet, only be priced \(ridgeline plan, .* unquantized",
    ):
        build_to_run(quantised({"quant_method": "bitsandbytes", "load_in_4bit": True}))
    assert build_to_run(Fields(SMALL, "c")).runs
    runs = [name for name in recipe_names() if build(Fields(SMALL, "c"), recipe=recipe_named(name)).runs]
    assert runs == list(runnable_format_names()) == ["fp8", "int8", "w8a8", "int4", "int4-g64", "int4-g32"]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ({"quant_method": "exl2"}, "quantized by 'exl2' are not supported; fp8"),
        ({"bits": 4}, "an unnamed method"),
        (BLOCK_FP8 | {"fmt": "e5m2"}, "fmt = 'e5m2' is not supported"),
        (BLOCK_FP8 | {"weight_block_size": [128]}, "weight_block_size is [128]"),
        (BLOCK_FP8 | {"modules_to_not_convert": "lm_head"}, "modules_to_not_convert must be a list"),
        (AWQ | {"group_size": 0}, "group_size is 0"),
        (GPTQ | {"bits": 40}, "bits is 40"),
        (GPTQ | {"modules_in_block_to_quantize": [["q_proj"]]}, "modules_in_block_to_quantize"),
        (GPTQ | {"dynamic": {"-:(a+)+$": {}}}, "the pattern '-:(a+)+$' is too complex"),
        (W4A16 | {"ignore": ["re:" + ".*" * 30 + "x"]}, "too complex"),
        (W4A16 | {"ignore": ["re:[a"]}, "is not a regular expression"),
        (W4A16 | {"format": "marlin-24"}, "format = 'marlin-24' is not supported"),
        (W4A16 | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
        (W4A16 | {"config_groups": {}}, "config_groups does not say how any weights"),
        (compressed(PACKED | {"strategy": "row"}), "strategy 'row' is not supported"),
        (compressed(PACKED | {"type": "interval"}), "4-bit weights of type 'interval' are not supported"),
        (compressed(PACKED | {"num_bits": 6, "type": "float"}), "6-bit weights of type 'float' are not supported"),
        (compressed(FLOAT8 | {"strategy": "block", "block_structure": "128"}), "block_structure is [128]"),
        (compressed(FLOAT8, {"num_bits": 12, "type": "int"}), "activations in int12 are not supported"),
        (W8A8_FP8 | {"kv_cache_scheme": {"num_bits": 4, "type": "int"}}, "keys and values in int4 are not supported"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "int4"}, "quant_type 'int4'"),
        ({"quant_method": "bitsandbytes"}, "exactly one of load_in_4bit and load_in_8bit must be true"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, "quantized_layers is empty"),
    ],
)
def test_what_is_not_known_is_named(section: dict[str, Any], says: str) -> None:
    """In one line."""
    with pytest.raises(ModelRefused) as caught:
        build(quantised(section))
    assert says in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_key_that_nothing_reads_is_named() -> None:
    """Of the section, with those that say nothing of storage left out."""
    assert recipe_of(AWQ | {"backend": "autoawq", "rotations": [1, 2]}).unread == ("quantization_config.rotations",)


def test_patterns_do_not_take_for_ever() -> None:
    """A name of 200 characters and the most involved pattern that is taken."""
    recipe = recipe_of(W4A16 | {"ignore": ["re:.*a.*b.*c.*d"]})
    choose = recipe.choice(build(Fields(SMALL, "c")))
    assert choose(WeightSlot("abc" * 66 + "xx", "matrix", 128, 128)) is not None


def several(*groups: tuple[list[str], dict[str, Any]]) -> dict[str, Any]:
    """A compressed-tensors section of several groups: targets and weights of each."""
    made = {f"group_{i}": {"targets": list(to), "weights": weights} for i, (to, weights) in enumerate(groups)}
    return {"quant_method": "compressed-tensors", "config_groups": made, "ignore": ["lm_head"]}


ATTENTION, INSIDE = [r"re:.*self_attn\..*"], [r"re:.*mlp\..*"]


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (several((ATTENTION, FLOAT8), (INSIDE, PACKED)), "compressed-tensors fp8 channel and int4 g128"),
        (several((INSIDE, PACKED), (ATTENTION, FLOAT8)), "compressed-tensors int4 g128 and fp8 channel"),
        (several((ATTENTION, PACKED), (INSIDE, PACKED)), "compressed-tensors int4 g128"),
        (several((["Linear"], PACKED)), "compressed-tensors int4 g128"),
    ],
)
@pytest.mark.parametrize("values", [SMALL, EXPERTS], ids=["dense", "experts"])
def test_a_recipe_names_all_its_formats(section: dict[str, Any], name: str, values: dict[str, Any]) -> None:
    """Expect each format once, whichever group comes first."""
    fields = quantised(section, values)
    assert read_recipe(fields).name == name
    assert build(fields).recipe == name


def test_show_says_the_share_of_each_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Expect the parameters of each format, counted from the matrices' names."""
    values = SMALL | {"quantization_config": several((ATTENTION, FLOAT8), (INSIDE, PACKED))}
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    counts = {"fp8 channel": 0, "int4 g128": 0, "bf16": 0}
    for name, parameter in build(Fields(SMALL, "config.json")).named_parameters():
        kind = "fp8 channel" if "self_attn" in name else "int4 g128" if ".mlp." in name else "bf16"
        counts[kind] += parameter.numel()
    total, ranked = sum(counts.values()), sorted(counts.items(), key=lambda each: -each[1])
    show(str(tmp_path))
    shown = " ".join(capsys.readouterr().out.split())
    shares = ", ".join(f"{count / total:.1%} {kind}" for kind, count in ranked)
    assert f"stored as compressed-tensors fp8 channel and int4 g128 ({shares} of the parameters)" in shown
    show(str(tmp_path), as_json=True)
    assert json.loads(capsys.readouterr().out)["weights"] == "compressed-tensors fp8 channel and int4 g128"
