"""Offline quantisation: write a checkpoint again with quantised weights, in a layout that other engines can read."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ridgeline.core.checkpoint.casting import Casts
from ridgeline.core.checkpoint.compressed_tensors_writer import compressed, compressed_bytes, quantization_config
from ridgeline.core.checkpoint.embedding_config import module_folders
from ridgeline.core.checkpoint.folder import Checkpoint, open_checkpoint
from ridgeline.core.checkpoint.parameter_map import ParameterMap
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.checkpoint.weight_loader import Progress
from ridgeline.core.models.building import build
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import ModelRefused, read_object
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.recipes import WITH_HEAD, quantised_recipe
from ridgeline.core.models.registry import family_of
from ridgeline.core.ops.matrix import QuantisedMatrix
from ridgeline.core.ops.number_formats import WeightFormat, weight_format_named
from ridgeline.util.document.humanize import gb, say_gb
from ridgeline.util.version import __version__

_SHARD = 4 << 30  # maximum bytes of a shard, unless a single tensor is larger
_INDEX = "model.safetensors.index.json"
_REWRITTEN = ("config.json", "README.md", _INDEX)
_ORIGINAL_MODEL_CARD = "README-unquantised.md"
_COPIED = ("*.json", "*.jinja", "*.model", "*.txt", "*.md", "LICENSE*", "NOTICE*")


@dataclass(frozen=True, slots=True)
class QuantiseResult:
    """The result of quantising a checkpoint offline: the new folder, which matrices are quantised, and sizes."""

    folder: Path
    """The folder of the quantised checkpoint."""
    matrices: int
    """The number of matrices that were quantised."""
    kept: tuple[str, ...]
    """The checkpoint names of the matrices that were not quantised, including those of tied heads."""
    before: int
    """The size of all tensors in the original checkpoint, in bytes."""
    after: int
    """The size of all tensors in the quantised checkpoint, in bytes."""


def quantise_folder(
    source: ModelSource, folder: Path, weights: str, *, force: bool = False, progress: Progress | None = None
) -> QuantiseResult:
    """Quantise the matrices of a checkpoint and write it to a new folder, with copies of its tokenizer and other files.

    The folder is written completely or not at all.

    Args:
        source: Model with weights.
        folder: Folder to create.
        weights: Name of the weight format.
        force: Whether to replace an existing model folder.
        progress: Receives the bytes done and the total bytes.

    Raises:
        ModelRefused: If the checkpoint cannot be quantised to this format.
        ValueError: If the format is not a narrower one that other engines can read, or the folder cannot be written.
    """
    if source.folder is None:
        raise ModelRefused(f"{source.name} is a catalogue config without weights; give a checkpoint folder")
    if weights.endswith(WITH_HEAD):
        raise ValueError(
            f"--weights is {weights!r}, but other engines cannot read a quantized embedding; leave {WITH_HEAD} out "
            "(only ridgeline run --weights supports it)"
        )
    recipe = quantised_recipe(weights, source.config)
    if not recipe.name:
        raise ValueError(
            f"--weights is {weights!r}, the format in which the checkpoint is stored; give a narrower format"
        )
    _check_place(folder, source.folder, force=force)
    checkpoint, stored = open_checkpoint(source.folder), weight_format_named(weights)
    model = build(source.config, recipe=recipe)
    family = family_of(source.config)
    matrices = _matrices(model, family, source.name, checkpoint, stored)
    after = sum(_nbytes(checkpoint, matrices, name) for name in checkpoint.entries)
    free = shutil.disk_usage(folder.resolve().parent).free
    if after > free:
        raise ValueError(
            f"{folder} would take {say_gb(gb(after))}, but its disk has {say_gb(gb(free))} free; "
            "name a folder on another disk"
        )
    kept = _kept(model, family, checkpoint, matrices)
    temporary = folder.resolve().with_name(f".{folder.resolve().name[:200]}.quantised")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        _write_beside(temporary, source, weights, stored, kept)
        _write_weights(temporary, checkpoint, matrices, progress)
        if folder.exists():
            shutil.rmtree(folder)
        temporary.replace(folder.resolve())
    except OSError as error:
        raise ValueError(f"{folder} cannot be written: {error.strerror}; name a folder on another disk") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return QuantiseResult(folder, len(matrices), kept, checkpoint.nbytes, after)


def _check_place(folder: Path, source: Path, *, force: bool) -> None:
    """Raise ValueError if the quantised checkpoint must not be written to this folder.

    That is the case if it is the folder to quantise or contains it, if its parent does not exist, or if it exists,
    unless it is a model folder and `force` is set.
    """
    target = folder.resolve()
    if target == source.resolve() or target in source.resolve().parents:
        raise ValueError(f"{folder} holds the model to quantize; name another folder for the result")
    if not target.parent.is_dir():
        raise ValueError(f"{folder} cannot be written: there is no folder {target.parent}; make it first")
    if not folder.exists() and not folder.is_symlink():
        return
    if not force:
        raise ValueError(f"{folder} exists already; name another folder, or replace it with --force")
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ValueError(f"{folder} is not the folder of a model, so --force does not replace it; name another folder")


# -- selection of tensors ----------------------------------------------------------------------------------------------


def _matrices(
    model: Model, family: Family, title: str, checkpoint: Checkpoint, stored: WeightFormat
) -> Mapping[str, QuantisedMatrix]:
    """Return a checkpoint's matrices to quantise, by the names of their weights.

    Raises:
        ModelRefused: If compressed-tensors has no layout for a matrix, or if no matrix can be quantised.
    """
    naming, found = ParameterMap(model, family, checkpoint), dict[str, QuantisedMatrix]()
    for name in checkpoint.entries:
        module, own = naming.places.get(naming.place(name), (None, ""))
        if module is not None and module.loads_submodules:
            raise ModelRefused(
                f"{title} stores the experts of a layer in one tensor ({name}), which compressed-tensors has "
                "no layout for; use --weights of the other commands, which quantises the model while it loads"
            )
        if not isinstance(module, QuantisedMatrix) or own != "weight":
            continue
        if module.spec.transposed or module.spec.kernel:
            raise ModelRefused(
                f"{title} stores {name} [in, out] or as a convolution, which compressed-tensors has no layout "
                "for; use --weights of the other commands, which quantises the model while it loads"
            )
        if module.inputs % (stored.block[1] or 1) == 0:
            found[name] = module
    if not found:
        raise ModelRefused(
            f"{title} has no matrices whose inputs divide into groups of {stored.block[1]}; give --weights int8"
        )
    return found


def _kept(
    model: Model, family: Family, checkpoint: Checkpoint, matrices: Mapping[str, QuantisedMatrix]
) -> tuple[str, ...]:
    """Return the names of the matrices that are not quantised, for `ignore` in config.json.

    They include a head without a tensor of its own.
    """
    stay = {
        name.removesuffix(".weight")
        for name, entry in checkpoint.entries.items()
        if name.endswith(".weight") and len(entry.shape) == 2 and name not in matrices
    }
    heads = {
        family.checkpoint_name(model.module_name(path))
        for path, op in model.ops()
        if any(place.kind == "head" for place in op.weight_slots().values())
    }
    return tuple(sorted(stay | heads))


def _nbytes(checkpoint: Checkpoint, matrices: Mapping[str, QuantisedMatrix], name: str) -> int:
    """Return the size of a tensor, in bytes, in the quantised checkpoint."""
    entry = checkpoint.entries[name]
    if name in matrices:
        return compressed_bytes(matrices[name], matrices[name].spec.dtype.itemsize)
    return entry.end - entry.begin


def _files(checkpoint: Checkpoint, matrices: Mapping[str, QuantisedMatrix]) -> Mapping[str, list[str]]:
    """Return the names of a checkpoint's tensors by the new file that they are written to."""
    parts: list[list[str]] = [[]]
    filled = 0
    for name in checkpoint.entries:
        size = _nbytes(checkpoint, matrices, name)
        if parts[-1] and filled + size > _SHARD:
            parts.append([])
            filled = 0
        parts[-1].append(name)
        filled += size
    if len(parts) == 1:
        return {"model.safetensors": parts[0]}
    return {f"model-{n:05}-of-{len(parts):05}.safetensors": part for n, part in enumerate(parts, 1)}


# -- files -------------------------------------------------------------------------------------------------------------


def _write_weights(
    folder: Path, checkpoint: Checkpoint, matrices: Mapping[str, QuantisedMatrix], progress: Progress | None
) -> None:
    """Write a quantised checkpoint's tensors, with one file in memory at a time, and the index if there are several."""
    done, places, total = 0, dict[str, str](), 0
    files = _files(checkpoint, matrices)
    for file, names in files.items():
        tensors: dict[str, Tensor] = {}
        for name in names:
            full = checkpoint.read(name)
            own = _quantised(name, matrices[name], full) if name in matrices else {name: full}
            assert sum(tensor.nbytes for tensor in own.values()) == _nbytes(checkpoint, matrices, name)
            tensors |= own
            done += full.nbytes
            if progress is not None:
                progress(done, checkpoint.nbytes)
        save_file(tensors, folder / file, metadata={"format": "pt"})
        shutil.copymode(folder / "config.json", folder / file)  # the library makes the file readable only by its owner
        places |= dict.fromkeys(tensors, file)
        total += sum(tensor.nbytes for tensor in tensors.values())
    if len(files) > 1:
        _write_json(folder / _INDEX, {"metadata": {"total_size": total}, "weight_map": places})


def _quantised(name: str, matrix: QuantisedMatrix, full: Tensor) -> dict[str, Tensor]:
    """Return the tensors that represent a quantised matrix in the new checkpoint.

    Raises:
        ModelRefused: If the numbers of the matrix cannot be quantised.
    """
    try:
        return compressed(name.removesuffix(".weight"), matrix, Casts().cast(name, full, matrix.spec.dtype))
    except ValueError as error:
        raise ModelRefused(f"tensor {name} {error}") from None


def _write_beside(folder: Path, source: ModelSource, weights: str, stored: WeightFormat, kept: tuple[str, ...]) -> None:
    """Write a quantised model's config.json and model card, and copy the files that do not change.

    These are the tokenizer, templates, licences, and the pooling of an embedding model. config.json gets a quantisation
    section.
    """
    assert source.folder is not None
    config = read_object(source.folder / "config.json")
    _write_json(folder / "config.json", config | {"quantization_config": quantization_config(stored, kept)})
    for path in _beside(source.folder):
        shutil.copyfile(path, folder / path.name)
    for path in module_folders(source):
        shutil.copytree(path, folder / path.name)
    card = source.folder / "README.md"
    if card.is_file():
        shutil.copyfile(card, folder / _ORIGINAL_MODEL_CARD)
    more = f", whose original model card is [{_ORIGINAL_MODEL_CARD}]({_ORIGINAL_MODEL_CARD})" if card.is_file() else ""
    (folder / "README.md").write_text(
        f"# {folder.name.removeprefix('.').removesuffix('.quantised')}\n\n{source.title}{more}, with weights in "
        f"{weights}. `ridgeline quantize` {__version__} rounded them to the nearest value, without calibration data. "
        "The layout is that of compressed-tensors. Embedding, head, norms and routers are unchanged.\n",
        encoding="utf-8",
    )


def _beside(folder: Path) -> Iterator[Path]:
    """Yield the files of a model folder that are copied unchanged, such as the tokenizer; none has weights."""
    seen = sorted({path for pattern in _COPIED for path in folder.glob(pattern) if path.is_file()})
    yield from (path for path in seen if path.name not in (*_REWRITTEN, _ORIGINAL_MODEL_CARD))


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write an object to an indented JSON file."""
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
