"""Loading of weights into a model: the tensors of the checkpoint fill each parameter exactly once, by name."""

from collections.abc import Callable, Mapping
from time import perf_counter

import torch
from torch import Tensor

from ridgeline.core.checkpoint.casting import Casts
from ridgeline.core.checkpoint.converted_checkpoint import convert_checkpoint
from ridgeline.core.checkpoint.folder import OWN_CONFIG, Checkpoint, NoWeights, open_checkpoint, refuse_names
from ridgeline.core.checkpoint.gguf_tensors import open_gguf_checkpoint
from ridgeline.core.checkpoint.load_report import LoadReport
from ridgeline.core.checkpoint.parameter_map import ParameterMap
from ridgeline.core.checkpoint.source import ModelSource
from ridgeline.core.models.common.embedder import Embedder
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import ModelRefused
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.parameter_breakdown import parameter_breakdown
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.registry import family_of
from ridgeline.core.ops.stored_module import StoredModule, dtype_mismatch
from ridgeline.util.document.humanize import gib, say_gib
from ridgeline.util.host import (
    available_memory,
    disk_bytes,
    out_of_memory,
    total_memory,
)

Progress = Callable[[int, int], None]
"""A function that reports the progress of loading: it receives the bytes done and the total bytes."""
_PAGE_BYTES = 4096
# Bytes of the Python objects per expert matrix: a module, a parameter, a view of a mapped file.
_MATRIX_OBJECT = 4096


def weight_bytes(model: Model) -> float:
    """Return the bytes that a model on meta will occupy when it is filled, with a tied head counted once."""
    pending = sum(op.pending_matrices for _, op in model.ops())
    return parameter_breakdown(model).nbytes + model.repacked_bytes + pending * _MATRIX_OBJECT


def remaining_memory(source: ModelSource, needs: Mapping[str, float], available: float | None = None) -> float:
    """Return the bytes of memory that remain after what a model source needs.

    Args:
        source: The model.
        needs: Required bytes by the name of their use.
        available: Available memory in bytes, if other processes get the rest. None means that the system reports it.

    Raises:
        ModelRefused: If the memory does not suffice. Otherwise the operating system would kill the process while it
            loads, or read mapped weights from disk again for every token.
    """
    if available is None:
        try:
            available = available_memory()
        except ValueError:  # the system reports only its total memory
            available = total_memory()
    left = available - sum(needs.values())
    if left < 0:
        parts = ", ".join(f"{say_gib(gib(need))} of {name}" for name, need in needs.items() if need)
        raise ModelRefused(
            f"{source.name} needs {parts}, but only {say_gib(gib(available))} of memory is available; "
            "use a smaller model, or a machine that has more"
        )
    return left


def load_weights(
    model: Model,
    source: ModelSource,
    *,
    dummy_weights: bool = False,
    progress: Progress | None = None,
    family: Family | None = None,
    device: torch.device | None = None,
) -> LoadReport | None:
    """Fill a model on meta with the memory-mapped weights of its source, or with random weights.

    Weights that the model casts or quantises are not mapped.

    Args:
        model: Model whose parameters are on meta.
        source: Source of the weights.
        dummy_weights: Whether to use random weights.
        progress: Receives the bytes done and the total bytes.
        family: Family that the model was built as. The default is the family of the config.
        device: Device of random weights, as in `fill_dummy`. Weights from the source stay in CPU memory
            (`prepare_on_gpu` moves them).

    Returns:
        The time and reads of the load, or None for random weights.

    Raises:
        ModelRefused: If there are no weights, they do not match the model, or they do not fit into memory.
    """
    if source.folder is None and not dummy_weights:
        raise ModelRefused(
            f"{source.name} is a catalogue config without weights; add --dummy-weights, or give a checkpoint folder"
        )
    try:
        if not dummy_weights and source.folder is not None:
            loading = _fill_measured(model, source, family or family_of(source.config), progress)
            if isinstance(model, Embedder):
                for name, folder in model.elsewhere.items():
                    _fill_stage(model.tensors_of(name), open_checkpoint(folder), loading.casts)
            return loading
        fill_dummy(model, device=device)
        return None
    except (RuntimeError, MemoryError) as error:
        refused = out_of_memory(error)
        if refused is None:
            raise
        raise ModelRefused(f"{source.name}: {refused}") from None


def _fill_measured(model: Model, source: ModelSource, family: Family, progress: Progress | None) -> LoadReport:
    """Load the weights from the folder or GGUF file of a source and measure it."""
    read, start = disk_bytes(), perf_counter()
    try:
        assert source.folder is not None
        checkpoint = open_checkpoint(source.folder) if source.gguf is None else open_gguf_checkpoint(source.gguf)
    except NoWeights as error:
        raise NoWeights(f"{error}, or run its config without weights (--dummy-weights)") from None
    opened = perf_counter()
    casts = load_tensors(model, checkpoint, family, progress)
    filled, now = perf_counter(), disk_bytes()
    from_disk = None if read is None or now is None else now - read
    return LoadReport(checkpoint, opened - start, filled - opened, from_disk, casts, quantised=quantises(model))


def load_tensors(
    model: PricedModule,
    checkpoint: Checkpoint,
    family: Family,
    progress: Progress | None = None,
) -> Casts:
    """Replace every parameter on meta by its memory-mapped tensor, or by a cast copy if the dtype differs.

    If the model quantises its weights while loading, each tensor is read and released before the next one instead of
    mapped, so memory never holds all weights in both forms.

    Args:
        model: Model on meta.
        checkpoint: Tensors to load.
        family: Family that defines the checkpoint names.
        progress: Receives the bytes done and the total bytes.

    Returns:
        The casts that could change numbers.

    Raises:
        ModelRefused: If a file is invalid, a tensor is missing, unexpected, has the wrong shape or type, or has numbers
            beyond the range of its dtype, two tensors fill the same parameter, or a vector contains NaN or infinity.
        MemoryError: If the system refuses the memory to map a file.
    """
    checkpoint = convert_checkpoint(checkpoint, family)
    naming, casts = ParameterMap(model, family, checkpoint), Casts()
    places = naming.places
    sources: dict[str, str] = {}  # the tensor that fills each place
    extra: list[str] = []
    done = 0
    for name, tensor in checkpoint.tensors(mapped=not quantises(model)):
        place = naming.place(name)
        done += tensor.nbytes
        if place in places:
            if place in sources:
                raise ModelRefused(
                    f"{checkpoint.folder}: tensor {name} fills {place}, which another tensor fills too; fetch it again"
                )
            module, own_name = places[place]
            try:
                _assign_parameter(name, module, own_name, tensor, casts)
            except ModelRefused as refused:
                raise ModelRefused(f"{checkpoint.files[name]}: {refused}") from None
            sources[place] = name
        elif not naming.ignored(name):
            extra.append(name)
        if progress is not None:
            progress(done, checkpoint.nbytes)
    refuse_names(checkpoint, "has tensors that the model lacks", extra)
    refuse_names(checkpoint, "lacks tensors of the model", [name for name in places if name not in sources])
    model.tie()
    return casts


def quantises(model: PricedModule) -> bool:
    """Return whether any module of a model quantises plain weights while they are loaded."""
    return any(module.quantises for _, module in model.stored_modules())


def _fill_stage(places: Mapping[str, tuple[StoredModule, str]], checkpoint: Checkpoint, casts: Casts) -> None:
    """Load a part of the model whose weights are in a separate folder, by the tensor names in that folder.

    Raises:
        ModelRefused: If the tensors do not match.
    """
    given = dict(checkpoint.tensors())
    refuse_names(checkpoint, "has tensors that the model lacks", [name for name in given if name not in places])
    refuse_names(checkpoint, "lacks tensors of the model", [name for name in places if name not in given])
    for name, tensor in given.items():
        _assign_parameter(name, *places[name], tensor, casts)


def _assign_parameter(name: str, module: StoredModule, own_name: str, full: Tensor, casts: Casts) -> None:
    """Cast a checkpoint tensor to the dtype that its module needs, and store it as the module's parameters.

    Raises:
        ModelRefused: If the tensor does not match the parameter, or is a vector that contains NaN or infinity.
    """
    try:
        parameters = module.load_tensor(own_name, casts.cast(name, full, module.dtype_of(own_name)))
    except ValueError as error:
        raise ModelRefused(f"tensor {name} {error}") from None
    for path, tensor in parameters.items():
        check_fits(name, tensor, module.get_parameter(path))
        # Scales and biases are small enough to check; one NaN in them corrupts every token.
        if tensor.dim() == 1 and not torch.isfinite(tensor).all():
            raise ModelRefused(f"tensor {name} holds NaN or infinity; the checkpoint is broken, fetch it again")
        _page_in(tensor)
        module.set_parameter(path, tensor)


def check_fits(name: str, tensor: Tensor, wanted: Tensor) -> None:
    """Check that a checkpoint tensor has the shape and dtype of the parameter that it fills.

    Raises:
        ModelRefused: If it does not.
    """
    if tensor.shape != wanted.shape:
        raise ModelRefused(
            f"tensor {name} has shape {list(tensor.shape)}, but the config requires {list(wanted.shape)}; {OWN_CONFIG}"
        )
    if tensor.dtype != wanted.dtype:
        raise ModelRefused(f"tensor {name} {dtype_mismatch(tensor.dtype, wanted.dtype)}")


def _page_in(tensor: Tensor) -> None:
    """Touch every page of a contiguous mapped tensor, so that the first prefill does not wait for the disk."""
    if tensor.is_contiguous():
        tensor.view(-1).view(torch.uint8)[::_PAGE_BYTES].sum()


def fill_dummy(model: PricedModule, seed: int = 0, device: torch.device | None = None) -> None:
    """Fill a model with random weights of standard deviation 0.02, for speed tests; vectors (norms, biases) are ones.

    Args:
        model: Model on meta.
        seed: Seed of the random numbers.
        device: Device on which plain weights are created. Codes and scales of quantised weights are created on the CPU.
    """
    generator = torch.Generator().manual_seed(seed)
    # One block repeated: drawing 600 M normal numbers would take longer than running them.
    block = (torch.randn(1 << 20, generator=generator) * 0.02).to(model.storage.dtype)
    with torch.device("meta"):
        model.create_parameters()
    for _, module in model.stored_modules():
        codes = module.random_parameters(block)
        for attribute, wanted in list(module.named_parameters(recurse=False)):
            tensor = codes.get(attribute)
            if tensor is None:
                tensor = torch.ones(wanted.shape, dtype=wanted.dtype, device=device)
                if wanted.dim() > 1:
                    _repeat(block.to(tensor), tensor.view(-1))
            module.set_parameter(attribute, tensor)
    model.tie()


def _repeat(block: Tensor, flat: Tensor) -> None:
    """Fill a flat tensor with repetitions of a block of numbers."""
    for piece in torch.split(flat, block.numel()):
        piece.copy_(block[: piece.numel()])
