"""Loading of models with their weights, and preparation for the device that executes them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch

from ridgeline.backends import backend_of
from ridgeline.core.checkpoint.checkpoint_matching import match_to_source
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.source import ModelSource, as_source
from ridgeline.core.checkpoint.weight_loader import Progress, load_tensors, load_weights, remaining_memory, weight_bytes
from ridgeline.core.models.building import build_denoiser, build_to_run
from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.core.models.common.family import Family
from ridgeline.core.models.common.fields import Fields, ModelRefused
from ridgeline.core.models.common.image_autoencoder import ImageAutoencoder
from ridgeline.core.models.common.model import Model
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.common.storage import StorageConfig
from ridgeline.core.models.families import autoencoder_kl, vq_autoencoder
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.core.models.families.vq_autoencoder import VQAutoencoder
from ridgeline.core.models.registry import denoiser_of, family_of, image_generator_of
from ridgeline.core.ops.matrix.operands import DTYPES
from ridgeline.core.ops.shard import WHOLE, Shard
from ridgeline.util.host import check_threads, threads_for


def load_model(
    model: ModelSource | str,
    *,
    shard: Shard = WHOLE,
    dummy_weights: bool = False,
    progress: Progress | None = None,
    draws: bool = False,
    weights: str | None = None,
    kv: str | None = None,
) -> Model:
    """Build the model of a source and load its weights, memory-mapped if they need no conversion, or random weights.

    Args:
        model: Source, or a name for `open_source`.
        shard: Part of the model that this tensor-parallel rank holds.
        dummy_weights: Whether to use random weights.
        progress: Receives the bytes done and the total bytes.
        draws: Whether to load the model as a generator of image tokens, which its architecture must support.
        weights: Format to which plain weights are quantised, as in `build_to_run`.
        kv: Format to which keys and values are quantised, as in `build_to_run`.

    Raises:
        ModelRefused: If the source cannot be loaded as a model. The message is one line.
        ValueError: If weights, or keys and values, cannot be stored in the requested format.
    """
    source = as_source(model)
    family = image_generator_of(source.config) if draws else family_of(source.config)
    built = build_to_run(source.config, shard=shard, family=family, weights=weights, kv=kv)
    if not dummy_weights:
        match_to_source(built, family, source)
    remaining_memory(source, {"weights": weight_bytes(built)})
    load_weights(built, source, dummy_weights=dummy_weights, progress=progress, family=family)
    prepare_on_cpu(built)
    return built


def load_denoiser(
    model: ModelSource | str,
    dtype: torch.dtype | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Denoiser:
    """Build the denoiser of a folder, such as the `transformer` of a pipeline, and load its weights.

    The weights are memory-mapped if they need no conversion.

    Args:
        model: Source or name of the denoiser.
        dtype: fp32 or bf16. The default is the dtype of the stored weights, as for language models.
        threads: Number of threads that PyTorch uses from now on. The default is all cores, or one for small models, as
            in `load_pipeline`.
        progress: Receives the bytes done and the total bytes.

    Raises:
        ModelRefused: If the source cannot be loaded, as in `load_model`.
        ValueError: If the dtype is not supported or there are more threads than cores.
    """
    if threads is not None:
        check_threads(threads)
    if dtype not in (None, *DTYPES):
        raise ValueError(f"a denoiser cannot run in {dtype}; give torch.float32 or torch.bfloat16")
    source = as_source(model)
    family = denoiser_of(source.config)
    if source.folder is None:
        raise ModelRefused(f"{source.name} is a catalogue config without weights; give a checkpoint folder")
    checkpoint = open_checkpoint(source.folder)
    built = build_denoiser(source.config, dtype or checkpoint.dtype)
    remaining_memory(source, {"weights": sum(op.stored_bytes() for _, op in built.weighted_ops())})
    load_tensors(built, checkpoint, family, progress)
    torch.set_num_threads(threads_for(sum(parameter.nbytes for parameter in built.parameters()), threads))
    bind_on_cpu(built)
    return built


def load_autoencoder(
    model: ModelSource | str, dtype: torch.dtype | None = None, *, progress: Progress | None = None
) -> AutoencoderKL:
    """Build the autoencoder of a folder and load its weights, memory-mapped if they need no conversion.

    Args:
        model: Source or name of the autoencoder.
        dtype: fp32 or bf16. The default is the dtype of the stored weights if it is one of these. It is fp32 for fp16,
            whose range the activations of some releases exceed.
        progress: Receives the bytes done and the total bytes.

    Raises:
        ModelRefused: If the source cannot be loaded. The message is one line.
        ValueError: If the dtype is not supported.
    """
    return _load(model, autoencoder_kl.build, autoencoder_kl.FAMILY, dtype, progress)


def load_vq_autoencoder(model: ModelSource | str, dtype: torch.dtype | None = None) -> VQAutoencoder:
    """Build an image tokenizer (an autoencoder whose latents are tokens) and load its weights.

    The folder is that of a Janus model, whose other parts are ignored, or contains only the autoencoder.
    """
    return _load(model, vq_autoencoder.build, vq_autoencoder.FAMILY, dtype)


_Built = TypeVar("_Built", bound=ImageAutoencoder)


def _load(
    model: ModelSource | str,
    build: Callable[[Fields, StorageConfig], _Built],
    family: Family,
    dtype: torch.dtype | None,
    progress: Progress | None = None,
) -> _Built:
    """Build an autoencoder of images and load its weights."""
    if dtype not in (None, *DTYPES):
        raise ValueError(f"an autoencoder cannot run in {dtype}; give torch.float32 or torch.bfloat16")
    source = as_source(model)
    if source.folder is None:
        raise ModelRefused(f"{source.name} is a config without weights; give a checkpoint folder")
    checkpoint = open_checkpoint(source.folder)
    if dtype is None:
        dtype = checkpoint.dtype if checkpoint.dtype in DTYPES else torch.float32
    built = build(source.config, StorageConfig(dtype))
    remaining_memory(source, {"weights": sum(op.stored_bytes() for _, op in built.weighted_ops())})
    load_tensors(built, checkpoint, family, progress)
    bind_on_cpu(built)
    return built


@contextmanager
def refuse_gpu_overflow(device: torch.device) -> Iterator[None]:
    """Raise ModelRefused if the GPU's memory does not suffice for weights that are moved inside this context."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise ModelRefused(
            f"the weights do not fit in the free memory of {torch.cuda.get_device_name(device)}; stop other processes "
            "on the GPU, or use a smaller model or format (--weights int8)"
        ) from None


def prepare_on_cpu(model: PricedModule) -> None:
    """Prepare a loaded model for the CPU: bind its ops to a backend and lay out its weights.

    Raises:
        ModelRefused: If the system refuses memory for the layout of the weights.
    """
    try:
        backend_of(torch.device("cpu")).prepare(model)
    except OSError as error:
        raise ModelRefused(
            f"the system refused memory to lay out weights for this CPU ({error}); "
            "use a smaller model, or free some memory"
        ) from None


def prepare_on(model: PricedModule, device: torch.device) -> None:
    """Prepare a model that is loaded in CPU memory for the device that will execute it.

    Raises:
        ModelRefused: If the memory of the device does not suffice.
    """
    if device.type == "cpu":
        prepare_on_cpu(model)
    else:
        prepare_on_gpu(model, device)


def bind_on_cpu(network: PricedModule) -> None:
    """Bind a loaded part of a pipeline to the CPU kernels, without changing the layout of its weights.

    `prepare_on_gpu` can still move the weights to a GPU.
    """
    backend_of(torch.device("cpu")).bind(network)


def prepare_on_gpu(model: PricedModule, device: torch.device) -> None:
    """Move a loaded model to a GPU, one tensor at a time, and prepare it there.

    Raises:
        ModelRefused: If the GPU's memory does not suffice.
    """
    with refuse_gpu_overflow(device):
        model.to(device)
        model.tie()
        backend_of(device).prepare(model)
