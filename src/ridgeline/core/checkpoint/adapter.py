"""LoRA adapters in PEFT format: reads adapter_config.json and adapter_model.safetensors, and attaches them to a model.

The files: https://huggingface.co/docs/peft/developer_guides/checkpoint
"""

import hashlib
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ridgeline.core.checkpoint.casting import Casts
from ridgeline.core.checkpoint.hub_cache import cached_folder, hub_cache
from ridgeline.core.checkpoint.safetensors_header import TensorEntry, read_header
from ridgeline.core.checkpoint.source import ADAPTER, open_source
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.ops.matrix import AdapterRows, LoraWeights, Matrix
from ridgeline.core.ops.op import Op
from ridgeline.util.document.humanize import three_digits
from ridgeline.util.untrusted import refuse_pointer


@dataclass(frozen=True, slots=True)
class AdapterTarget:
    """A matrix of a model to which a LoRA adapter can add."""

    op: Op
    """The op that multiplies with the matrix that a LoRA adapter extends."""
    name: str
    """The name, in its op, of the matrix that a LoRA adapter extends."""
    matrix: Matrix

    def put(self, number: int, added: LoraWeights, rows: AdapterRows) -> None:
        """Attach the weights of a LoRA adapter to a matrix of the model."""
        self.op.attach_adapter(number, self.name, added, rows)

    def added(self, number: int) -> LoraWeights:
        """Return the weights of a LoRA adapter that are attached to a matrix of the model."""
        found = self.matrix.low_rank(number)
        assert found is not None
        return found


def targets_of(model: Model, family: Family) -> dict[str, AdapterTarget]:
    """Return a model's matrices that a LoRA adapter can add to, by checkpoint name.

    These are the matrices of linear layers, except those of the head and the experts.
    """
    found: dict[str, AdapterTarget] = {}
    for path, op in model.ops():
        for name, matrix in op.adaptable_matrices().items():
            found[family.checkpoint_name(model.module_name(f"{path}.{name}"))] = AdapterTarget(op, name, matrix)
    return found


_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight")
_EXPANDS_LATENTS = ".kv_b_proj"  # to keys and values, which attention over latents does not compute
_MAX_RANK = 4096
_DTYPES = {"F64", "F32", "F16", "BF16"}

# Adapter features that are not supported, by config key.
_REFUSED = {
    "use_dora": "DoRA",
    "modules_to_save": "whole modules in an adapter (modules_to_save)",
    "trainable_token_indices": "tokens in an adapter (trainable_token_indices)",
    "target_parameters": "LoRA on experts' parameters (target_parameters)",
    "layer_replication": "layer_replication",
    "lora_bias": "biases in an adapter (lora_bias)",
    "alora_invocation_tokens": "activated LoRA (alora_invocation_tokens)",
    "use_qalora": "QA-LoRA",
}
# Prefixes of initialisations that change the weights of the base model.
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
# Keys that do not change what an adapter computes, or whose meaning the tensors show.
_READ = {
    "peft_type", "task_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules",
    "bias", "base_model_name_or_path", "init_lora_weights", "inference_mode", "lora_dropout", "fan_in_fan_out",
    "auto_mapping", "revision", "peft_version", "megatron_config", "megatron_core", "layers_to_transform",
    "layers_pattern", "exclude_modules", "loftq_config", "eva_config", "corda_config", "lora_ga_config",
    "arrow_config", "runtime_config", "qalora_group_size", "ensure_weight_tying",
}  # fmt: skip
_QUANTIFIED = re.compile(r"[*+{?]")


@dataclass(frozen=True, slots=True)
class LoraMatrix:
    """The A and B tensors of one matrix in a LoRA adapter's file."""

    first: TensorEntry
    """The header entry of the A tensor in a LoRA adapter's file."""
    second: TensorEntry
    """The header entry of the B tensor in a LoRA adapter's file."""
    rank: int
    scale: float
    """The factor of a LoRA adapter's product B A."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter whose config and header have been read, without its weights."""

    name: str
    """The name by which requests select a LoRA adapter."""
    folder: Path
    """The folder of a LoRA adapter's files."""
    base: str
    """The model that a LoRA adapter was made for, according to its config; "" if it does not say."""
    targets: tuple[str, ...]
    """The module names in target_modules of a LoRA adapter's config."""
    matrices: Mapping[str, LoraMatrix]
    """A LoRA adapter's A and B tensors, by the checkpoint name of the matrix that they add to."""
    digest: bytes
    """A hash of a LoRA adapter's contents: adapters with equal digests give equal results."""

    @property
    def rank(self) -> int:
        """The largest rank of a LoRA adapter's matrices."""
        return max(half.rank for half in self.matrices.values())

    def describe(self, width: int) -> str:
        """Return a one-line description of a LoRA adapter, with its size in MB at `width` bytes per number."""
        nbytes = three_digits(self.parameters * width / 1e6)
        return (
            f"adapter {self.name}: rank {self.rank}, {len(self.matrices)} matrices, "
            f"{nbytes} MB read in each step that uses it"
        )

    @property
    def parameters(self) -> int:
        """The number of parameters of a LoRA adapter."""
        return sum(math.prod(e.shape) for half in self.matrices.values() for e in (half.first, half.second))


def read_adapter(name: str, path: str, most_rank: int | None = None) -> Adapter:
    """Read the config of a LoRA adapter and the header of its weights.

    Args:
        name: Name by which requests select the adapter.
        path: Folder of the adapter, or an id in the Hugging Face cache.
        most_rank: Largest allowed rank, or None for no limit.

    Raises:
        ModelRefused: If there is no adapter, its files are invalid, its rank is too large, or it needs a feature that
            is not supported.
    """
    try:
        component = open_source(path).components.get(ADAPTER)
    except ModelRefused:
        if Path(path).is_dir() or cached_folder(path, hub_cache()) is not None:
            raise
        raise ModelRefused(
            f"{path} is neither a folder nor in the Hugging Face cache; give the folder of the adapter"
        ) from None
    if component is None or component.config is None:
        raise ModelRefused(f"{path} holds no adapter ({_CONFIG}); give the folder in which PEFT saved the adapter")
    config, folder = component.config, component.folder
    _refuse_unbuilt(config)
    weights = folder / _WEIGHTS
    if not weights.is_file():
        pickled = (folder / "adapter_model.bin").is_file()
        refuse_pointer(folder / "adapter_model.bin")
        raise ModelRefused(
            f"{folder} holds the adapter only as pickle, which can run code when opened; save it as safetensors"
            if pickled
            else f"{folder} lacks {_WEIGHTS}; fetch it again"
        )
    halves = _halves(config, weights, read_header(weights))
    rank = max(half.rank for half in halves.values())
    if most_rank is not None and rank > most_rank:
        raise ModelRefused(f"{folder}: the adapter has rank {rank}, but --max-lora-rank is {most_rank}; raise it")
    base = config.values.get("base_model_name_or_path")
    return Adapter(name, folder, str(base or ""), _listed(config), halves, _digest(folder))


def _refuse_unbuilt(config: Fields) -> None:
    """Raise ModelRefused if a LoRA adapter needs a feature that is not supported."""
    values = config.values
    if str(values.get("peft_type", "")).upper() != "LORA":
        raise config.refuse(f"peft_type is {values.get('peft_type')!r}; only LoRA adapters are supported")
    for key, what in _REFUSED.items():
        if values.get(key):
            raise config.refuse(f"{what} is not supported; merge the adapter into the model")
    if values.get("bias", "none") != "none":
        raise config.refuse(f"bias is {values['bias']!r}: an adapter that changes biases is not supported; merge it")
    start = values.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGES_BASE):
        raise config.refuse(
            f"init_lora_weights is {start!r}, which changes the model's own weights; convert it to plain LoRA"
        )
    unknown = next((key for key, value in values.items() if key not in _READ | _REFUSED.keys() and value), None)
    if unknown is not None:
        raise config.refuse(f"{unknown} = {values[unknown]!r} is not supported; remove it if it changes nothing")


def _listed(config: Fields) -> tuple[str, ...]:
    """Return the module names in an adapter's target_modules; none if that is a pattern or all-linear.

    The names of the tensors then decide which modules are adapted.

    Raises:
        ModelRefused: If target_modules is neither a list of names nor a string.
    """
    targets = config.values.get("target_modules")
    if isinstance(targets, str):
        return ()
    if not isinstance(targets, list) or not all(isinstance(each, str) for each in targets):
        raise config.refuse("target_modules is neither a list of names nor a pattern; fetch the file again")
    return tuple(targets)


def _halves(config: Fields, path: Path, entries: Mapping[str, TensorEntry]) -> dict[str, LoraMatrix]:
    """Return A and B of each matrix in a LoRA adapter, with the rank and the scale from its config.

    Raises:
        ModelRefused: If the file has other tensors or none, or the tensors do not match the config.
    """
    pairs: dict[str, dict[str, TensorEntry]] = {}
    for name, entry in entries.items():
        found = _TENSOR.fullmatch(name)
        if found is None or len(entry.shape) != 2 or entry.dtype not in _DTYPES:
            raise ModelRefused(f"{path}: {_why_not(name, entry)}; merge the adapter into the model")
        pairs.setdefault(found["module"], {})[found["half"]] = entry
    if not pairs:
        raise ModelRefused(f"{path} holds no tensors; fetch it again")
    return {module: _half(config, path, module, pair) for module, pair in pairs.items()}


def _why_not(name: str, entry: TensorEntry) -> str:
    """Return the reason why a tensor in a LoRA adapter's file is not supported, for an error message."""
    if "lora_embedding" in name:
        return f"{name}: LoRA on embeddings is not supported"
    if "lora_magnitude_vector" in name:
        return f"{name}: DoRA is not supported"
    if _TENSOR.fullmatch(name) is not None and entry.dtype not in _DTYPES:
        return f"{name} is stored in {entry.dtype}; the supported formats are {', '.join(sorted(_DTYPES))}"
    return f"{name} is neither lora_A nor lora_B, and whole modules in an adapter are not supported"


def _half(config: Fields, path: Path, module: str, pair: Mapping[str, TensorEntry]) -> LoraMatrix:
    """Return A and B of one matrix in a LoRA adapter.

    Raises:
        ModelRefused: If one of them is missing or does not match the config.
    """
    if len(pair) < 2:
        raise ModelRefused(f"{path} lacks lora_{'A' if 'B' in pair else 'B'} of {module}; fetch it again")
    rank = _patterned(config, "rank_pattern", module, config.count("r", 8, most=_MAX_RANK))
    alpha = _patterned(config, "alpha_pattern", module, config.values.get("lora_alpha", 8))
    first, second = pair["A"], pair["B"]
    if not isinstance(rank, int) or first.shape[0] != rank or second.shape[1] != rank:
        raise ModelRefused(
            f"{path}: A and B of {module} have shapes {list(first.shape)} and {list(second.shape)}, "
            f"but {_CONFIG} says rank {rank}; fetch both files again"
        )
    if isinstance(alpha, bool) or not isinstance(alpha, int | float) or not abs(alpha) <= sys.float_info.max:
        raise config.refuse(f"lora_alpha is {repr(alpha)[:40]}; it must be a finite number")
    return LoraMatrix(first, second, rank, alpha / (math.sqrt(rank) if config.values.get("use_rslora") else rank))


def _patterned(config: Fields, key: str, module: str, default: Any) -> Any:
    """Return a module's value (rank or alpha) from an adapter config's table of patterns, as PEFT does.

    The first expression that matches the end of the module's name decides. If none matches, the result is `default`.
    """
    patterns = config.values.get(key) or {}
    if not isinstance(patterns, dict):
        raise config.refuse(f"{key} is not an object; fetch the file again")
    for pattern, value in patterns.items():
        if len(pattern) > 200 or len(_QUANTIFIED.findall(pattern)) > 3:
            raise config.refuse(f"{key} has a pattern that is too complex ({pattern[:40]!r}); list the modules")
        try:
            if re.match(rf"(.*\.)?({pattern})$", module):
                return value
        except re.error:
            raise config.refuse(
                f"{key} has {pattern!r}, which is not a regular expression; fetch the file again"
            ) from None
    return default


def _digest(folder: Path) -> bytes:
    """Return a hash of everything that determines the results of a LoRA adapter."""
    state = hashlib.blake2b(b"ridgeline adapter 1", digest_size=32)
    for file in (_CONFIG, _WEIGHTS):
        with (folder / file).open("rb") as opened:
            state.update(hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=32)).digest())
    return state.digest()


def read_adapters(paths: Mapping[str, str]) -> list[Adapter]:
    """Read several LoRA adapters, given their paths by name.

    Raises:
        ModelRefused: If one of them cannot be read.
    """
    return [read_adapter(name, path) for name, path in paths.items()]


# -- attachment to a model --------------------------------------------------------------------------------------------


def adapt(model: Model, family: Family, adapters: Sequence[Adapter]) -> int:
    """Attach unfilled LoRA weights of adapters, numbered from 1, to the matrices of a model on meta.

    Returns:
        The number of adapters.

    Raises:
        ModelRefused: If an adapter does not fit the model, or the model or an adapted matrix does not support LoRA.
    """
    if not adapters:
        return 0
    if model.has_cross_attention or not model.has_head:
        what = "with an encoder" if model.has_cross_attention else "without a head"
        raise ModelRefused(f"adapters of models {what} are not supported; merge the adapter into the model")
    model.adapters = AdapterRows()
    for number, adapter in enumerate(adapters, 1):
        targets, taken = targets_of(model, family), list[AdapterTarget]()
        _refuse_missing(adapter, targets)
        for module, half in adapter.matrices.items():
            target = _target(adapter, targets, family, module)
            if target in taken:
                raise ModelRefused(f"{adapter.folder}: the adapter adapts {module} twice; fetch it again")
            taken.append(target)
            inputs, outputs = target.matrix.spec.inputs, target.matrix.spec.outputs
            if half.first.shape[1] != inputs or half.second.shape[0] != outputs:
                raise ModelRefused(
                    f"{adapter.folder}: A and B of {module} have shapes {list(half.first.shape)} and "
                    f"{list(half.second.shape)}, but the model's matrix has {inputs} inputs and {outputs} outputs"
                    f"{_made_for(adapter)}"
                )
            with torch.device("meta"):
                added = LoraWeights(
                    target.matrix.inputs, target.matrix.outputs, half.rank, half.scale, target.matrix.spec.dtype
                )
            target.put(number, added, model.adapters)
    return len(adapters)


def _target(adapter: Adapter, targets: Mapping[str, AdapterTarget], family: Family, module: str) -> AdapterTarget:
    """Return the matrix of a model that a module name in an adapter refers to.

    Raises:
        ModelRefused: If the model has no such matrix, or LoRA on it is not supported.
    """
    if ".experts." in module:
        raise ModelRefused(f"{adapter.folder}: LoRA on experts ({module}) is not supported; merge it into the model")
    if module == "lm_head" or module.endswith(".lm_head"):
        raise ModelRefused(
            f"{adapter.folder}: LoRA on the LM head ({module}) is not supported; merge it into the model"
        )
    # The checkpoint name, with or without the backbone prefix, or the name in another version of transformers.
    names = (module, family.backbone_prefix + module, family.checkpoint_name(family.model_name(module)))
    target = next((targets[name] for name in names if name in targets), None)
    if target is None and module.endswith(_EXPANDS_LATENTS):
        raise ModelRefused(
            f"{adapter.folder}: LoRA on the matrix that expands latents ({module}) is not supported; merge it into the "
            "model"
        )
    if target is None:
        raise ModelRefused(f"{adapter.folder}: the adapter adapts {module}, which the model lacks{_made_for(adapter)}")
    return target


def _refuse_missing(adapter: Adapter, targets: Mapping[str, AdapterTarget]) -> None:
    """Raise ModelRefused if target_modules has a name that no matrix of the model or of the adapter's file has."""
    for wanted in adapter.targets:
        if not any(f".{name}".endswith(f".{wanted}") for name in (*targets, *adapter.matrices)):
            raise ModelRefused(
                f"{adapter.folder}: target_modules has {wanted!r}, which the model lacks{_made_for(adapter)}"
            )


def _made_for(adapter: Adapter) -> str:
    """Return the end of an error message that names the model for which an adapter was made."""
    return f"; use its base model, {adapter.base}" if adapter.base else "; use the base model that it was trained on"


def fill_adapters(model: Model, family: Family, adapters: Sequence[Adapter]) -> None:
    """Load the weights of LoRA adapters that are attached to a model, in the model's dtype.

    Raises:
        ModelRefused: If the weights cannot be read, or contain NaN, infinity or numbers beyond the range of the dtype.
    """
    targets, casts = targets_of(model, family), Casts()
    for number, adapter in enumerate(adapters, 1):
        for module, *halves in _numbers(adapter):
            added = _target(adapter, targets, family, module).added(number)
            device, half = next(model.parameters()).device, adapter.matrices[module]
            named = zip((half.first.name, half.second.name), halves, strict=True)
            added.fill(*(casts.cast(name, t, added.lora_A.dtype).to(device).contiguous() for name, t in named))


def _numbers(adapter: Adapter) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Yield the module name, A and B of each matrix of a LoRA adapter, read from its file.

    Raises:
        ModelRefused: If the file cannot be read, or contains NaN or infinity.
    """
    path = adapter.folder / _WEIGHTS
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for module, half in adapter.matrices.items():
                first, second = file.get_tensor(half.first.name), file.get_tensor(half.second.name)
                if not (torch.isfinite(first).all() and torch.isfinite(second).all()):
                    raise ModelRefused(f"{path}: A or B of {module} holds NaN or infinity; fetch it again")
                yield module, first, second
    except (SafetensorError, OSError) as error:
        raise ModelRefused(f"{path} is not a safetensors file: {error}; fetch it again") from None
