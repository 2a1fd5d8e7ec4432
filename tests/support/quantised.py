"""Small quantised checkpoints of several families beside plain ones of the same numbers, and what holds of them."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from ridgeline.backends.model_loader import load_model
from ridgeline.core.models import ModelRefused
from ridgeline.core.ops.matrix import Matrix, PrequantisedMatrix
from ridgeline.core.ops.shard import WHOLE, Shard
from support.checkpoints import edit_config, random_tensors, write_folder
from support.engines import uncached_logits
from support.layouts import Quantiser

IDS = [[3, 17, 60, 4, 22, 9, 41, 8, 0, 12], [5]]
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 61, "hidden_size": 48,
    "intermediate_size": 104, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 12, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "torch_dtype": "float32",
    "tie_word_embeddings": False, "attention_bias": True,
}  # fmt: skip
DIVIDES = {"hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
TIED = LLAMA | {"tie_word_embeddings": True}
EXPERTS: dict[str, Any] = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_experts": 3, "num_experts_per_tok": 2,
    "moe_intermediate_size": 32, "decoder_sparse_step": 1, "norm_topk_prob": True, "attention_bias": False,
}  # fmt: skip
FUSED: dict[str, Any] = {k: v for k, v in LLAMA.items() if k != "attention_bias"} | {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "pad_token_id": 0, "head_dim": 12,
}  # fmt: skip
LATENT: dict[str, Any] = {k: v for k, v in LLAMA.items() if k not in ("attention_bias", "head_dim")} | {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_key_value_heads": 4,
    "kv_lora_rank": 14, "q_lora_rank": 9, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2,
    "topk_group": 1, "moe_intermediate_size": 16,
}  # fmt: skip


def take_weight(matrix: Matrix, weight: Tensor) -> None:
    """Fill a matrix with what it makes of a checkpoint's `weight`."""
    for name, tensor in matrix.load_tensor("weight", weight).items():
        setattr(matrix, name, nn.Parameter(tensor, requires_grad=False))


def write_pair(
    folder: Path,
    values: Mapping[str, Any],
    section: Mapping[str, Any],
    quantiser: Callable[[str], Quantiser | None],
    extra: Mapping[str, Tensor] | None = None,
) -> tuple[Path, Path]:
    """Two folders of one random model: quantised, and in fp32 what that stands for. quantiser: of a module, by its
    name; what it leaves alone is in the dtype that `values` say. extra: tensors beside them in the quantised folder."""
    given = random_tensors(dict(values))
    stored: dict[str, Tensor] = dict(extra or {})
    plain: dict[str, Tensor] = {}
    for name, tensor in given.items():
        module, _, own = name.rpartition(".")
        quantise = quantiser(module) if own == "weight" and tensor.dim() == 2 else None
        if quantise is None:
            stored[name], plain[name] = tensor, tensor.float()
            continue
        tensors, numbers = quantise(tensor.float().numpy())
        stored |= {f"{module}.{each}": own for each, own in tensors.items()}
        plain[name] = torch.from_numpy(numbers)
    folders = folder / "quantised", folder / "plain"
    for each in folders:
        each.mkdir(parents=True)
    write_folder(folders[0], {**values, "quantization_config": dict(section)}, stored)
    write_folder(folders[1], {**values, "torch_dtype": "float32"}, plain)
    return folders


def blocks(quantiser: Quantiser, *kept: str) -> Callable[[str], Quantiser | None]:
    """One quantiser for the matrices of the blocks, but for routers and what is kept."""

    def chosen(module: str) -> Quantiser | None:
        exempt = "_proj" not in module or module.endswith(kept)
        return None if exempt else quantiser

    return chosen


def off(folders: tuple[Path, Path], **how: Any) -> float:
    """How far logits are apart, in parts of the largest."""
    ours, theirs = (torch.cat(uncached_logits(load_model(str(each), **how), IDS)) for each in folders)
    return float((ours - theirs).abs().max() / theirs.abs().max())


def check_ranks(folder: Path) -> None:
    """What two ranks hold of each matrix is what one holds."""
    whole, *ranks = (load_model(str(folder), shard=shard) for shard in (WHOLE, Shard(0, 2), Shard(1, 2)))
    checked = 0
    for path, matrix in whole.named_modules():
        if not isinstance(matrix, PrequantisedMatrix):
            continue
        column = matrix.spec.split == "column"
        held = [cast(PrequantisedMatrix, rank.get_submodule(path)) for rank in ranks]
        parts = [torch.split(own.dequantised(), list(own.spec.own_parts)) for own in held]  # of each that is fused
        together = [torch.cat(pair, 0 if column else 1) for pair in zip(*parts, strict=True)]
        assert torch.equal(torch.cat(together), matrix.dequantised()), path
        checked += 1
    assert checked


def check_division(folder: Path, section: dict[str, Any], quantiser: Quantiser, cut: dict[str, Any]) -> None:
    """Two ranks hold what one holds; those that would cut a group are refused in one line. cut: a section of groups
    that they would."""
    for values in (LLAMA, FUSED, EXPERTS | {"moe_intermediate_size": 96}):
        own, _ = write_pair(folder / values["model_type"], values | DIVIDES, section, blocks(quantiser))
        check_ranks(own)
        edit_config(own, quantization_config=cut)
        with pytest.raises(ModelRefused, match="do not divide over 2 devices without cutting groups") as caught:
            load_model(str(own), shard=Shard(0, 2))
        assert len(str(caught.value).splitlines()) == 1


def as_stored(folder: Path) -> float:
    """Bytes of the tensors of a folder."""
    return float(sum(tensor.nbytes for tensor in load_file(folder / "model.safetensors").values()))


def check_refused(folder: Path, changes: dict[str, Any], said: str) -> None:
    """A folder with other tensors is refused, the first of them by its name. changes: of each; None leaves it out."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    changed = {name: change(tensors[name]) for name, change in changes.items()}
    save_file({name: own for name, own in (tensors | changed).items() if own is not None}, file)
    with pytest.raises(ModelRefused, match=said) as caught:
        load_model(str(folder))
    assert next(iter(changes)) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
