"""Checkpoints of compressed-tensors run: their logits are those of a plain fp32 folder that holds what the tensors
stand for, which numpy said from the layouts' specifications."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from ridgeline.backends.model_loader import load_model
from ridgeline.core.checkpoint import open_source
from ridgeline.core.models import Fields, ModelRefused, build, build_to_run
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.ops.matrix import PlainMatrix, PrequantisedMatrix
from support.layouts import Quantiser, fp8, packed, signed
from support.quantised import (
    EXPERTS,
    FUSED,
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

WIDE = {"scale_dtype": "torch.float32"}
INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16, **WIDE}
INT8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", **WIDE}
FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", **WIDE}
DYNAMIC = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}
ASYMMETRIC, ORDERED = {"symmetric": False}, {"actorder": "group"}
NARROW = {"scale_dtype": None}
FP16 = LLAMA | {"torch_dtype": "float16"}


def section(layout: str, weights: dict[str, Any], inputs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """A section with one group of all linear modules."""
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    ignored = {"config_groups": {"group_0": group}, "format": layout, "ignore": ["lm_head"], **more}
    return {"quant_method": "compressed-tensors", **ignored}


PACKED, SIGNED, FLOAT = "pack-quantized", "int-quantized", "float-quantized"
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Quantiser]] = {
    "w4a16": (FP16, section(PACKED, INT4 | NARROW), packed(4, 16, dtype=torch.float16)),
    "w4a16-asymmetric": (LLAMA, section(PACKED, INT4 | ASYMMETRIC), packed(4, 16, symmetric=False)),
    "w4a16-in-an-order": (TIED, section(PACKED, INT4 | ORDERED), packed(4, 16, act_order=True)),
    "w4a16-experts": (EXPERTS, section(PACKED, INT4 | {"group_size": 32}), packed(4, 32)),
    "w4a16-fused": (
        FUSED, section(PACKED, INT4 | ASYMMETRIC | ORDERED), packed(4, 16, symmetric=False, act_order=True),
    ),
    "w4a16-channels": (LLAMA, section(PACKED, INT4 | {"strategy": "channel", "group_size": None}), packed(4, None)),
    "w8a16": (LLAMA, section(PACKED, INT8 | ASYMMETRIC), packed(8, None, symmetric=False)),
    "w8a16-bytes": (
        FP16, section(SIGNED, INT8 | NARROW | ASYMMETRIC), signed(None, symmetric=False, dtype=torch.float16),
    ),
    "w8a16-latent": (LATENT, section("naive-quantized", INT8), signed(None)),
    "w8a16-groups": (EXPERTS, section(SIGNED, INT8 | {"strategy": "group", "group_size": 16}), signed(16)),
    "fp8-channels": (LLAMA, section(FLOAT, FLOAT8, DYNAMIC | {"type": "float"}), fp8(1, None, "weight_scale")),
    "fp8-tensor": (TIED, section(FLOAT, FLOAT8 | {"strategy": "tensor"}), fp8(None, None, "weight_scale")),
    "fp8-blocks": (
        LLAMA, section("naive-quantized", FLOAT8 | {"strategy": "block", "block_structure": [16, 32]}),
        fp8(16, 32, "weight_scale"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_schemes(name: str, tmp_path: Path) -> None:
    """Each is billed as it is stored."""
    values, said, quantiser = CASES[name]
    folders = write_pair(tmp_path, values, said, blocks(quantiser))
    assert off(folders) < 1e-5
    assert parameter_breakdown(build(open_source(str(folders[0])).config)).nbytes == as_stored(folders[0])


W8A8 = {
    "channels": (LLAMA, INT8, signed(None)),
    "asymmetric": (EXPERTS, INT8 | ASYMMETRIC, signed(None, symmetric=False)),
    "latent": (LATENT, INT8, signed(None)),
    "groups": (LLAMA, INT8 | {"strategy": "group", "group_size": 16}, signed(16)),
}


@pytest.mark.parametrize("name", W8A8)
def test_w8a8(name: str, tmp_path: Path) -> None:
    """Each product is that of rows rounded to int8, each by its largest magnitude; weights are as they are stored."""
    values, weights, quantiser = W8A8[name]
    folders = write_pair(tmp_path, values, section(SIGNED, weights, DYNAMIC), blocks(quantiser))
    ours, theirs = (load_model(str(folder)) for folder in folders)
    generator, checked = torch.Generator().manual_seed(0), 0
    for path, matrix in ours.named_modules():
        if not isinstance(matrix, PrequantisedMatrix):
            continue
        plain = cast(PlainMatrix, theirs.get_submodule(path))
        assert torch.allclose(matrix.dequantised(), plain.weight, rtol=1e-6, atol=1e-7), path
        x_TI = torch.randn(5, matrix.inputs, generator=generator)
        scale_T1 = x_TI.abs().amax(1, keepdim=True).numpy() / 127
        wanted_TO = np.rint(x_TI.numpy() / scale_T1) * scale_T1 @ plain.weight.numpy().T
        wanted_TO += 0 if plain.bias is None else plain.bias.numpy()
        assert np.abs(matrix.product(x_TI).numpy() - wanted_TO).max() <= 1e-5 * np.abs(wanted_TO).max(), path
        checked += 1
    assert checked
    assert 1e-5 < off(folders) < 0.1


def test_groups_of_modules(tmp_path: Path) -> None:
    """Queries and gates packed, the rest of the blocks in fp8, values and the second layer's attention left alone;
    scales of static activations passed over."""
    static = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}
    groups = {
        "group_0": {"targets": ["re:.*q_proj", "re:.*gate_proj"], "weights": INT4, "format": PACKED},
        "group_1": {"targets": ["Linear"], "weights": FLOAT8, "input_activations": static, "format": FLOAT},
    }  # fmt: skip
    kept = ["lm_head", "re:.*v_proj", r"re:model\.layers\.1\.self_attn.*"]
    said = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups, "ignore": kept}

    def chosen(module: str) -> Quantiser | None:
        if module.endswith("v_proj") or "layers.1.self_attn" in module:
            return None
        return blocks(packed(4, 16) if module.endswith(("q_proj", "gate_proj")) else fp8(1, None, "weight_scale"))(
            module
        )

    own = "model.layers.0.self_attn.k_proj"
    beside = {f"{own}.input_scale": torch.tensor([0.5]), f"{own}.input_zero_point": torch.tensor([3], dtype=torch.int8)}
    assert off(write_pair(tmp_path, LLAMA, said, chosen, beside)) < 1e-5


@pytest.mark.parametrize("values", [LLAMA, TIED], ids=["apart", "tied"])
def test_head_and_embedding(values: dict[str, Any], tmp_path: Path) -> None:
    """As `targets` name their classes, and `ignore` no head; one table where they are tied."""
    group = {"targets": ["Linear", "Embedding"], "weights": INT8}
    said = section(PACKED, INT8) | {"config_groups": {"group_0": group}, "ignore": []}
    assert off(write_pair(tmp_path, values, said, lambda _: packed(8, None))) < 1e-5


@pytest.mark.parametrize("asymmetric", [False, True])
def test_outputs_that_fill_no_word(asymmetric: bool, tmp_path: Path) -> None:
    """Zeros are packed along outputs, here 28 and 14 of them."""
    values = LLAMA | {"head_dim": 14, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 108}
    weights = INT4 | {"symmetric": not asymmetric}
    quantiser = packed(4, 16, symmetric=not asymmetric)
    assert off(write_pair(tmp_path, values, section(PACKED, weights), blocks(quantiser))) < 1e-5


def test_an_order_that_was_never_given(tmp_path: Path) -> None:
    """Its groups are -1, and inputs side by side."""

    def unordered(module: str) -> Quantiser | None:
        own = blocks(packed(4, 16))(module)
        if own is None:
            return None

        def quantise(numbers: Any) -> Any:
            tensors, stands_for = own(numbers)
            return tensors | {"weight_g_idx": torch.full((numbers.shape[1],), -1, dtype=torch.int32)}, stands_for

        return quantise

    assert off(write_pair(tmp_path, LLAMA, section(PACKED, INT4 | ORDERED), unordered)) < 1e-5


RANKS = {
    "packed": (section(PACKED, INT4 | ASYMMETRIC), packed(4, 16, symmetric=False), section(PACKED, INT4 | ORDERED)),
    "bytes": (section(SIGNED, INT8), signed(None), section(SIGNED, INT8 | {"strategy": "group", "group_size": 96})),
}


@pytest.mark.parametrize("name", RANKS)
def test_ranks_hold_their_part(name: str, tmp_path: Path) -> None:
    """What two ranks hold is what one holds; ranks that would cut a group are refused in one line."""
    check_division(tmp_path, *RANKS[name])


GATE = "model.layers.0.mlp.gate_proj"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {f"{GATE}.weight_packed": lambda t: t[:, 1:].contiguous()},
            r"has shape \[104, 5\], but the config requires \[104, 6\]",
        ),
        ({f"{GATE}.weight_shape": lambda t: t + 1}, r"says \[105, 49\], but the config requires \[104, 48\]"),
        (
            {f"{GATE}.weight_zero_point": lambda t: t.t().contiguous()},
            r"has shape \[3, 13\], but the config requires \[13, 3\]",
        ),
        (
            {f"{GATE}.weight_zero_point": lambda t: t.long()},
            "has dtype torch.int64, but such weights must be stored as torch.int32",
        ),
        ({f"{GATE}.weight_scale": lambda t: t[:1]}, r"has shape \[1, 3\], but the config requires \[104, 3\]"),
    ],
    ids=["shape", "said-shape", "zeros", "dtype", "scales"],
)
def test_what_is_not_so_packed_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    """In one line that names the tensor."""
    quantiser = blocks(packed(4, 16, symmetric=False))
    folder, _ = write_pair(tmp_path, LLAMA, section(PACKED, INT4 | ASYMMETRIC), quantiser)
    check_refused(folder, change, said)


@pytest.mark.parametrize(
    ("said", "name"),
    [
        (section("nvfp4-pack-quantized", INT4 | {"type": "float", "strategy": "tensor_group", **NARROW}),
         "compressed-tensors nvfp4"),
        (section(PACKED, INT4 | {"num_bits": 3}), "compressed-tensors int3 g16"),
        (section(SIGNED, INT4), "compressed-tensors int4 g16"),
    ],
)  # fmt: skip
def test_what_is_priced_only_is_refused(said: dict[str, Any], name: str) -> None:
    """In one line, with what works; it is priced."""
    fields = Fields(LLAMA | {"quantization_config": said}, "config.json")
    with pytest.raises(
        ModelRefused, match=f"weights stored as {name} cannot run yet, only be priced .* use the unquantized checkpoint"
    ):
        build_to_run(fields)
    assert not build(fields).runs
