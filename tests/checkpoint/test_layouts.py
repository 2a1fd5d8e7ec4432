"""Quantised checkpoints run: their logits are those of a plain fp32 folder that holds what the tensors stand for, which
numpy said from the layouts' specifications."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import open_source
from ridgeline.core.checkpoint.weight_loader import weight_bytes
from ridgeline.core.models import Fields, ModelRefused, build, build_to_run
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.price.plan.scenario import Deployment, ModelCache
from support.engines import uncached_logits
from support.layouts import Numbers, Quantiser, awq, fp8, gptq
from support.planned import card
from support.quantised import (
    EXPERTS,
    FUSED,
    IDS,
    LATENT,
    LLAMA,
    TIED,
    as_stored,
    blocks,
    check_division,
    check_refused,
    off,
    write_pair,
)

BLOCK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


def block(high: int, wide: int) -> dict[str, Any]:
    """A section of fp8 in blocks."""
    return BLOCK | {"weight_block_size": [high, wide]}


MODELOPT = {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head", "*.gate"]}


def modelopt(numbers: Numbers) -> tuple[dict[str, Tensor], Numbers]:
    """ModelOpt's FP8: a scale of the weight, and one of what it is multiplied with."""
    tensors, stands_for = fp8(None, None, "weight_scale", flat=True)(numbers)
    return {**tensors, "input_scale": torch.tensor(0.03)}, stands_for


FP8 = {
    "qwen3-blocks-of-128": (LLAMA, block(128, 128), fp8(128, 128, "weight_scale_inv", dtype=torch.bfloat16)),
    "blocks-that-do-not-divide": (LLAMA, block(20, 32), fp8(20, 32, "weight_scale_inv")),
    "groups-of-no-kernel": (LLAMA, block(16, 20), fp8(16, 20, "weight_scale_inv")),
    "tied": (TIED, block(32, 64), fp8(32, 64, "weight_scale_inv")),
    "experts": (EXPERTS, block(16, 32), fp8(16, 32, "weight_scale_inv")),
    "latent": (LATENT, block(16, 32), fp8(16, 32, "weight_scale_inv")),
    "fused": (FUSED, block(24, 32), fp8(24, 32, "weight_scale_inv")),
    "a-scale-a-matrix": (LLAMA, BLOCK, fp8(None, None, "weight_scale", flat=True)),
    "a-scale-a-matrix-as-transformers": (LLAMA, BLOCK, fp8(None, None, "weight_scale_inv", flat=True)),
    "fbgemm": (LLAMA, {"quant_method": "fbgemm_fp8"}, fp8(1, None, "weight_scale")),
    "modelopt": (LLAMA, MODELOPT, modelopt),
    "modelopt-experts": (EXPERTS, MODELOPT, modelopt),
    "modelopt-rows": (
        LLAMA, MODELOPT | {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, fp8(1, None, "weight_scale", flat=True)
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FP8)
def test_fp8(name: str, tmp_path: Path) -> None:
    """Of blocks, rows and whole matrices; what is held is billed as it is stored."""
    values, section, quantiser = FP8[name]
    folders = write_pair(tmp_path, values, section, blocks(quantiser))
    assert off(folders) < 1e-5
    stored = parameter_breakdown(build(open_source(str(folders[0])).config)).nbytes
    scales = sum(t.numel() for n, t in load_file(folders[0] / "model.safetensors").items() if "weight_scale" in n)
    narrow = 2 * scales if name == "qwen3-blocks-of-128" else 0  # configs do not say that scales are in bf16
    assert stored == as_stored(folders[0]) + narrow


def test_modelopt_beside_the_config(tmp_path: Path) -> None:
    """hf_quant_config.json alone says it, of all matrices or of each by itself."""
    layers = {
        f"model.layers.{layer}.{module}": {"quant_algo": "FP8"}
        for layer in range(2)
        for module in ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
    }
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    algorithm = {name: own for name, own in MODELOPT.items() if name != "quant_method"}
    for name, said, kept in (("all", algorithm, ()), ("mixed", mixed, ("q_proj", "k_proj", "v_proj", "o_proj"))):
        folder, plain = write_pair(tmp_path / name, LLAMA, {}, blocks(modelopt, *kept))
        values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        del values["quantization_config"]
        (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
        whole = {"producer": {"name": "modelopt", "version": "0.29"}, "quantization": said}
        (folder / "hf_quant_config.json").write_text(json.dumps(whole), encoding="utf-8")
        assert off((folder, plain)) < 1e-5


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 16, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 16, "zero_point": True, "version": "gemm"}
FP16 = LLAMA | {"torch_dtype": "float16"}
INTEGERS = {
    "gptq": (FP16, GPTQ, gptq(4, 16)),
    "gptq-v2": (LLAMA, GPTQ | {"checkpoint_format": "gptq_v2"}, gptq(4, 16, version=2)),
    "gptq-symmetric": (TIED, GPTQ | {"group_size": 32, "sym": True}, gptq(4, 32, symmetric=True)),
    "gptq-of-8-bits": (LLAMA, GPTQ | {"bits": 8, "group_size": 32}, gptq(8, 32)),
    "gptq-in-an-order": (FP16, GPTQ | {"desc_act": True}, gptq(4, 16, act_order=True)),
    "gptq-of-8-bits-in-an-order": (LLAMA, GPTQ | {"bits": 8, "desc_act": True}, gptq(8, 16, act_order=True)),
    "gptq-in-an-order-of-one-group": (LLAMA, GPTQ | {"group_size": -1, "desc_act": True}, gptq(4, None)),
    "gptq-experts": (EXPERTS, GPTQ, gptq(4, 16)),
    "gptq-experts-in-an-order": (EXPERTS, GPTQ | {"desc_act": True}, gptq(4, 16, act_order=True)),
    "gptq-fused": (FUSED, GPTQ | {"desc_act": True}, gptq(4, 16, act_order=True)),
    "gptq-groups-of-no-kernel": (LLAMA, GPTQ | {"group_size": 24}, gptq(4, 24)),
    "awq": (FP16, AWQ, awq(16)),
    "awq-tied": (TIED, AWQ | {"group_size": 32}, awq(32)),
    "awq-of-one-group": (LLAMA, AWQ | {"group_size": -1}, awq(None)),
    "awq-experts": (EXPERTS, AWQ, awq(16)),
    "awq-fused": (FUSED, AWQ, awq(16)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_integers_in_words(name: str, tmp_path: Path) -> None:
    """GPTQ's and AWQ's. They are billed as they are stored, memory is asked for as they are held, and a plan of a
    processor has them as they run."""
    values, section, quantiser = INTEGERS[name]
    folders = write_pair(tmp_path, values, section, blocks(quantiser))
    assert off(folders) < 1e-5
    fields, model = open_source(str(folders[0])).config, load_model(str(folders[0]))
    assert parameter_breakdown(build(fields)).nbytes == as_stored(folders[0])
    planned = ModelCache(fields).scenario(Deployment(card(kind="cpu"))).model
    assert (planned.storage, parameter_breakdown(planned)) == (model.storage, parameter_breakdown(model))
    if "experts" not in name:  # for which their objects are counted too
        held = {id(parameter): parameter.nbytes for parameter in model.parameters()}
        assert weight_bytes(build_to_run(fields)) == sum(held.values())


def test_modules_with_bits_of_their_own(tmp_path: Path) -> None:
    """GPTQModel's `dynamic`: a gate in 8 bits and in an order beside what it gates in 4, values left alone."""
    section = GPTQ | {"dynamic": {"-:.*v_proj": {}, "+:.*gate_proj": {"bits": 8, "group_size": 32, "desc_act": True}}}

    def chosen(module: str) -> Quantiser | None:
        wide, plain = gptq(8, 32, act_order=True), blocks(gptq(4, 16), "v_proj")
        return wide if module.endswith("gate_proj") else plain(module)

    assert off(write_pair(tmp_path, LLAMA, section, chosen)) < 1e-5


def test_random_codes_run(tmp_path: Path) -> None:
    """Of an order of inputs too."""
    folder, _ = write_pair(tmp_path, LLAMA, GPTQ | {"desc_act": True}, blocks(gptq(4, 16, act_order=True)))
    (logits_TV, _) = uncached_logits(load_model(str(folder), dummy_weights=True), IDS)
    assert logits_TV.isfinite().all()
    assert (logits_TV[0] != logits_TV[1]).any()


def test_a_head_in_integers(tmp_path: Path) -> None:
    """GPTQ's `lm_head`."""
    values = LLAMA | {"vocab_size": 64}
    folders = write_pair(
        tmp_path, values, GPTQ | {"lm_head": True}, lambda m: gptq(4, 16) if "embed" not in m else None
    )
    assert off(folders) < 1e-5


def test_side_by_side_in_other_formats(tmp_path: Path) -> None:
    """A gate left in fp32 beside what it gates in fp8, of a layer and of experts; values beside queries and keys."""
    for values in (LLAMA, EXPERTS):
        kept = ["gate_proj", "v_proj", "lm_head"]
        section = block(16, 32) | {"modules_to_not_convert": kept}
        quantiser = blocks(fp8(16, 32, "weight_scale_inv"), *kept)
        assert off(write_pair(tmp_path / values["model_type"], values, section, quantiser)) < 1e-5


def test_scales_of_what_products_are_given_are_passed_over(tmp_path: Path) -> None:
    """Static quantisation stores them, and scales of keys and values; rows and KV stay in the model's dtype."""
    one, layer = torch.tensor(0.5), "model.layers.1.self_attn"
    names = ("q_proj.input_scale", "o_proj.activation_scale", "k_proj.k_scale", "v_scale")
    beside = {f"{layer}.{name}": one.clone() for name in names}
    section = BLOCK | {"activation_scheme": "static"}
    quantiser = blocks(fp8(None, None, "weight_scale", flat=True))
    assert off(write_pair(tmp_path, LLAMA, section, quantiser, beside)) < 1e-5


def test_a_checkpoint_of_fp16_runs_in_fp32(tmp_path: Path) -> None:
    """Its plain numbers and scales are exact there."""
    values = LLAMA | {"torch_dtype": "float16"}
    folders = write_pair(tmp_path, values, block(16, 32), blocks(fp8(16, 32, "weight_scale_inv", dtype=torch.float16)))
    assert load_model(str(folders[0])).storage.dtype == torch.float32
    assert off(folders) < 1e-5


RANKS = {
    "fp8": (block(8, 16), fp8(8, 16, "weight_scale_inv"), block(8, 96)),
    "gptq": (GPTQ, gptq(4, 16), GPTQ | {"group_size": 32}),
    "gptq-of-8-bits": (GPTQ | {"bits": 8, "group_size": -1}, gptq(8, None), GPTQ | {"desc_act": True}),
    "awq": (AWQ, awq(16), AWQ | {"group_size": 96}),
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_hold_their_part(name: str, tmp_path: Path) -> None:
    """What two ranks hold is what one holds; ranks that would cut a group are refused in one line."""
    section, quantiser, cut = RANKS[name]
    check_division(tmp_path, section, quantiser, cut)


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        (UP, lambda t: t[:, :-1].contiguous(), r"has shape \[104, 47\], but the config requires \[104, 48\]"),
        (UP, lambda t: t.float(), "has dtype torch.float32, but such weights must be stored as torch.float8_e4m3fn"),
        (f"{UP}_scale_inv", lambda t: t[:1], r"has shape \[1, 2\], but the config requires \[7, 2\]"),
        (f"{UP}_scale_inv", lambda t: t * float("nan"), "holds NaN or infinity"),
        (f"{UP}_scale_inv", lambda t: t * 1e6, "scales of fp8 must be below 128"),
        (f"{UP}_scale_inv", lambda t: t.int(), "has dtype torch.int32, but scales must be float32"),
        (f"{UP}_scale_inv", lambda t: t.bool(), "has dtype torch.bool, but scales must be float32"),
        (f"{UP}_scale_inv", lambda _: None, "lacks tensors of the model"),
    ],
    ids=["shape", "dtype", "scales", "nan", "large", "integers", "truths", "missing"],
)
def test_what_is_no_such_layout_is_refused(name: str, change: Any, said: str, tmp_path: Path) -> None:
    """In one line that names the tensor."""
    folder, _ = write_pair(tmp_path, LLAMA, block(16, 32), blocks(fp8(16, 32, "weight_scale_inv")))
    check_refused(folder, {name: change}, said)


GATE = "model.layers.0.mlp.gate_proj"


@pytest.mark.parametrize(
    ("change", "act_order", "said"),
    [
        (
            {f"{GATE}.qweight": lambda t: t[:5].contiguous()},
            False,
            r"has shape \[5, 104\], but the config requires \[6, 104\]",
        ),
        (
            {f"{GATE}.qzeros": lambda t: t.float()},
            False,
            "has dtype torch.float32, but such weights must be stored as torch.int32",
        ),
        (
            {f"{GATE}.scales": lambda t: t[:2].contiguous()},
            False,
            r"has shape \[2, 104\], but the config requires \[3, 104\]",
        ),
        ({f"{GATE}.g_idx": lambda t: t.flip(0)}, False, "but the config says otherwise; correct its desc_act"),
        ({f"{GATE}.g_idx": lambda t: t.clamp(max=1)}, True, "has groups that do not have 16 inputs each"),
        ({f"{GATE}.g_idx": lambda _: None}, True, "lacks tensors of the model"),
    ],
    ids=["shape", "dtype", "scales", "order", "groups", "missing"],
)
def test_what_is_not_as_gptq_packs_is_refused(
    change: dict[str, Any], act_order: bool, said: str, tmp_path: Path
) -> None:
    """In one line that names the tensor."""
    section = GPTQ | {"desc_act": act_order}
    folder, _ = write_pair(tmp_path, LLAMA, section, blocks(gptq(4, 16, act_order=act_order)))
    check_refused(folder, change, said)


@pytest.mark.parametrize(
    ("section", "name"),
    [
        (GPTQ | {"bits": 3}, "gptq int3 g16"),
        (GPTQ | {"checkpoint_format": "marlin"}, "gptq int4 g16"),
        (AWQ | {"version": "gemv"}, "awq gemv int4 g16"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bitsandbytes fp4"),
    ],
)
def test_what_is_priced_only_is_refused(section: dict[str, Any], name: str) -> None:
    """In one line, with what works; it is priced."""
    fields = Fields(LLAMA | {"quantization_config": section}, "config.json")
    with pytest.raises(
        ModelRefused, match=f"weights stored as {name} cannot run yet, only be priced .* use the unquantized checkpoint"
    ):
        build_to_run(fields)
    assert not build(fields).runs
