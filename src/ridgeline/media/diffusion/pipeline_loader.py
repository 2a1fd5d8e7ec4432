"""Loader of diffusion pipelines: builds the parts of a folder and reads the defaults of requests from it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch

from ridgeline.backends.model_loader import load_autoencoder, load_denoiser, prepare_on_gpu, refuse_gpu_overflow
from ridgeline.core.checkpoint import ModelSource
from ridgeline.core.checkpoint.folder import open_checkpoint
from ridgeline.core.checkpoint.source import Component, as_source
from ridgeline.core.checkpoint.weight_loader import Progress, remaining_memory
from ridgeline.core.models import ModelRefused
from ridgeline.core.models.common.cross_denoiser import CrossDenoiser
from ridgeline.core.models.common.denoiser import Denoiser
from ridgeline.core.models.common.fields import Fields
from ridgeline.core.models.common.priced_module import PricedModule
from ridgeline.core.models.families.autoencoder_kl import AutoencoderKL
from ridgeline.media.diffusion.geometry import PipelineLayout, Size
from ridgeline.media.diffusion.pipeline import LowNoiseExpert, Pipeline
from ridgeline.media.diffusion.pipeline_class import PipelineClass, check_parts, pipeline_class_of
from ridgeline.media.diffusion.scheduler_config import DiffusionScheduler, read_scheduler
from ridgeline.media.diffusion.text_encoder import TextEncoder
from ridgeline.media.diffusion.video_autoencoder import VIDEO_AUTOENCODER as CLIPS
from ridgeline.media.diffusion.video_autoencoder import VideoAutoencoder, load_video_autoencoder
from ridgeline.media.diffusion.video_decode_price import VideoDecodePrice
from ridgeline.util.host import check_threads, threads_for

_WEIGHTED, _SECOND = ("text_encoder", "text_encoder_2", "transformer", "vae"), "transformer_2"
_DEFAULTS, _SCHEDULER = "generation_config.json", "scheduler_config.json"
_PROCESSOR = torch.device("cpu")


def load_pipeline(
    model: ModelSource | str,
    dtype: torch.dtype | None = None,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
    device: torch.device = _PROCESSOR,
) -> Pipeline:
    """Load the diffusion pipeline in a folder.

    Args:
        model: Source, or a name that `open_source` accepts.
        dtype: Dtype of the denoiser, fp32 or bf16; by default the stored one. The text encoder runs in its stored
            dtype, the VAE in fp32, in which the CPU is fastest.
        threads: Threads that torch uses from now on; by default all cores, or one for small models.
        progress: Function called with (bytes done, total bytes) while weights load.
        device: Device of all parts.

    Raises:
        ModelRefused: If the pipeline class is not supported, a part is missing, broken or does not fit the others, or
            the weights exceed the memory. The message is one line.
    """
    if threads is not None:
        check_threads(threads)
    source = as_source(model)
    kind = pipeline_class_of(source)
    check_parts(source, kind.parts)
    assert source.folder is not None
    scheduler = _scheduler(source, kind)
    boundary = _boundary(source)
    weighted = _WEIGHTED if boundary is None else (*_WEIGHTED, _SECOND)
    folders = {part: source.components[part].folder for part in (*kind.parts, _SECOND) if part in weighted}
    sizes = {part: open_checkpoint(folder).nbytes for part, folder in folders.items()}
    remaining_memory(source, sizes)
    beside = sizes.pop("text_encoder_2", 0)  # both text encoders report their progress as one part
    on_progress = _each({**sizes, "text_encoder": sizes["text_encoder"] + beside}, progress)
    encoder = kind.load_encoder(source, on_progress["text_encoder"])
    denoiser = load_denoiser(str(folders["transformer"]), dtype, progress=on_progress["transformer"])
    second = None
    if boundary is not None:
        second = LowNoiseExpert(load_denoiser(str(folders[_SECOND]), dtype, progress=on_progress[_SECOND]), boundary)
    autoencoder = _load_autoencoder(source.components["vae"], on_progress["vae"])
    _check_fits(source, encoder, denoiser, autoencoder)
    check_predicts(denoiser, scheduler, str(source.folder))
    kind, layout = requests_of(source, kind, denoiser, autoencoder)
    networks = (*encoder.models, denoiser, autoencoder, *([second.denoiser] if second else []))
    weights = sum(parameter.nbytes for network in networks for parameter in network.parameters())
    torch.set_num_threads(threads_for(weights, threads))
    _place(networks, device)
    return Pipeline(source.title, kind, encoder, denoiser, autoencoder, scheduler, layout, second)


def _place(networks: Iterable[PricedModule | VideoAutoencoder], device: torch.device) -> None:
    """Move the parts of a pipeline to their device.

    Raises:
        ModelRefused: If the GPU's memory is too small.
    """
    if device.type == "cpu":
        return
    torch.cuda.set_device(device)  # per thread, and Triton launches kernels from this one
    for network in networks:
        if isinstance(network, VideoAutoencoder):
            with refuse_gpu_overflow(device):
                network.theirs.to(device)
        else:
            prepare_on_gpu(network, device)


def _boundary(source: ModelSource) -> float | None:
    """Return the fraction of pure noise below which the second denoiser runs, from model_index.json; None without one.

    Raises:
        ModelRefused: If the boundary is not between 0 and 1, or if there is a boundary without a second denoiser, or
            the reverse.
    """
    assert source.folder is not None
    stated = Fields.read(source.folder / "model_index.json")
    if not stated.has("boundary_ratio"):
        if _SECOND in source.components:
            raise stated.refuse(f"boundary_ratio is missing; it is the noise level below which {_SECOND} runs")
        return None
    boundary = stated.positive("boundary_ratio")
    if boundary >= 1:
        raise stated.refuse(f"boundary_ratio is {boundary}; it must be between 0 and 1")
    if _SECOND not in source.components:
        raise stated.refuse(
            f"boundary_ratio is {boundary}, but model_index.json lists no {_SECOND} to run below it: add {_SECOND}, or "
            "remove boundary_ratio"
        )
    if not source.components[_SECOND].folder.is_dir():
        raise ModelRefused(f"{source.folder} lacks the folder {_SECOND}; fetch the pipeline again")
    return boundary


def _load_autoencoder(part: Component, progress: Progress | None) -> AutoencoderKL | VideoAutoencoder:
    """Load the VAE of an image or a video pipeline in fp32."""
    if part.kind == CLIPS:
        return load_video_autoencoder(str(part.folder))
    return load_autoencoder(str(part.folder), torch.float32, progress=progress)


def load_vae(
    model: ModelSource | str, *, threads: int | None = None, device: torch.device = _PROCESSOR
) -> AutoencoderKL | VideoAutoencoder:
    """Load only the VAE of a pipeline's folder, as `load_pipeline` does: to decode saved latents.

    Raises:
        ModelRefused: If the VAE is missing, broken or not supported.
    """
    if threads is not None:
        check_threads(threads)
    source = as_source(model)
    pipeline_class_of(source)
    check_parts(source, ["vae"])
    autoencoder = _load_autoencoder(source.components["vae"], None)
    torch.set_num_threads(threads_for(sum(parameter.nbytes for parameter in autoencoder.parameters()), threads))
    _place([autoencoder], device)
    return autoencoder


def _each(sizes: Mapping[str, int], progress: Progress | None) -> dict[str, Progress | None]:
    """Return a progress function for each part of a pipeline; together they report as if all were one part.

    `sizes` has the bytes of each part, in loading order.
    """
    every, reported, before = sum(sizes.values()), dict[str, Progress | None](), 0
    for part, nbytes in sizes.items():
        reported[part] = None
        if progress is not None:
            reported[part] = lambda done, _, before=before: progress(before + done, every)  # type: ignore[misc]
        before += nbytes
    return reported


def _check_fits(
    source: ModelSource, encoder: TextEncoder, denoiser: Denoiser, autoencoder: AutoencoderKL | VideoAutoencoder
) -> None:
    """Raise ModelRefused if the parts of a folder belong to different pipelines."""
    if encoder.width != denoiser.text_width:
        raise ModelRefused(
            f"{source.folder}: the text encoder's hidden states have {encoder.width} numbers, but the transformer "
            f"reads {denoiser.text_width}: the parts belong to different pipelines, so fetch the pipeline again"
        )
    if encoder.pooled_width != denoiser.pooled_width:
        given, wanted = (width or "no" for width in (encoder.pooled_width, denoiser.pooled_width))
        raise ModelRefused(
            f"{source.folder}: the pooled text vector has {given} numbers, but the transformer reads {wanted}: the "
            "parts belong to different pipelines, so fetch the pipeline again"
        )
    if autoencoder.channels != denoiser.channels:
        raise ModelRefused(
            f"{source.folder}: the transformer's latents have {denoiser.channels} channels, but the VAE's have "
            f"{autoencoder.channels}: the parts belong to different pipelines, so fetch the pipeline again"
        )


def _scheduler(source: ModelSource, kind: PipelineClass) -> DiffusionScheduler:
    """Read the scheduler of a pipeline's folder.

    Raises:
        ModelRefused: If the scheduler is not supported.
    """
    listed = source.components["scheduler"]
    return read_scheduler(listed.folder / _SCHEDULER, kind.timesteps, listed.kind)


def scheduler_refusal(source: ModelSource, kind: PipelineClass, denoiser: Denoiser) -> str:
    """Return the reason why `load_pipeline` would refuse the scheduler of a folder, or "" if it would not.

    A folder without a scheduler also gives "", because that is sufficient for a plan.
    """
    listed = source.components.get("scheduler")
    if listed is None or not (listed.folder / _SCHEDULER).is_file():
        return ""
    try:
        check_predicts(denoiser, _scheduler(source, kind), str(source.folder))
    except ModelRefused as refused:
        return str(refused)
    return ""


def check_predicts(denoiser: Denoiser, scheduler: DiffusionScheduler, called: str) -> None:
    """Raise ModelRefused if the scheduler would interpret the denoiser's predictions as another quantity."""
    wanted = scheduler.schedule(1, 1).prediction
    if denoiser.predicts != wanted:
        raise ModelRefused(
            f"{called}: the transformer predicts {denoiser.predicts}, but the scheduler expects {wanted}: set "
            "prediction_type and use_flow_sigmas in scheduler_config.json to the values of the transformer's release"
        )


# -- what the folder says of requests ---------------------------------------------------------------------------------


def requests_of(
    source: ModelSource,
    kind: PipelineClass,
    denoiser: Denoiser,
    autoencoder: AutoencoderKL | VideoAutoencoder | VideoDecodePrice,
) -> tuple[PipelineClass, PipelineLayout]:
    """Return the pipeline class with the defaults that a folder states, and the layout with the sizes that it supports.

    Raises:
        ModelRefused: If the parts cannot make one of the sizes.
    """
    released = kind.layout_of(denoiser) if kind.layout_of else kind.layout
    return _with_defaults(kind, source), _layout(source, released, denoiser, autoencoder)


def _with_defaults(kind: PipelineClass, source: ModelSource) -> PipelineClass:
    """Return the pipeline class with a folder's defaults: steps, guidance and the frames of a video.

    They are read from generation_config.json, which uses the names of diffusers' arguments.
    """
    stated = _stated(source)
    steps = stated.count("num_inference_steps", kind.steps)
    frames = stated.count("num_frames", kind.frames) if kind.frames > 1 else 1
    guidance = stated.number("guidance_scale", 0.0) if stated.has("guidance_scale") else kind.guidance
    return replace(kind, steps=steps, guidance=guidance, frames=frames)


def _layout(
    source: ModelSource,
    released: PipelineLayout,
    denoiser: Denoiser,
    autoencoder: AutoencoderKL | VideoAutoencoder | VideoDecodePrice,
) -> PipelineLayout:
    """Return the pixel and latent layout of a pipeline's folder, as its parts define it, with image sizes.

    Its parts define channels, patches and pixels per latent. The supported sizes are the `sizes` of its
    generation_config.json, which no other file of a pipeline contains; without them, the sizes of the class's releases.

    Raises:
        ModelRefused: If the parts cannot make one of the sizes.
    """
    sizes = _sizes(_stated(source)) or released.sizes
    grain = autoencoder.factor * denoiser.patch
    for size in sizes:
        if size.width % grain or size.height % grain:
            raise ModelRefused(
                f"{source.folder}: images of {size} do not divide into patches of {grain} x {grain} pixels: list other "
                f"`sizes` in {_DEFAULTS}"
            )
    patch = (1, denoiser.patch, denoiser.patch)
    temporal, most = _frames(released, denoiser, autoencoder)
    return PipelineLayout(denoiser.channels, sizes, autoencoder.factor, temporal, patch, most)


def _frames(
    released: PipelineLayout, denoiser: Denoiser, autoencoder: AutoencoderKL | VideoAutoencoder | VideoDecodePrice
) -> tuple[int, int]:
    """Return the frames per latent frame and the maximum frames of a video, limited by the denoiser's rotary positions.

    With an image autoencoder each frame is a latent frame of its own.
    """
    if not denoiser.generates_video:
        return 1, 1
    temporal = released.temporal
    if isinstance(autoencoder, VideoAutoencoder):
        temporal = autoencoder.shape.temporal
    elif isinstance(autoencoder, AutoencoderKL):
        temporal = 1
    places = denoiser.sizes.max_positions if isinstance(denoiser, CrossDenoiser) else None
    return temporal, released.max_frames if places is None else 1 + temporal * (places - 1)


def _sizes(stated: Fields) -> tuple[Size, ...]:
    """Return the image sizes that a folder states; () for none.

    Raises:
        ModelRefused: If `sizes` is not a list of valid sizes.
    """
    values = stated.value("sizes")
    if values is None:
        return ()
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        raise stated.refuse(f'sizes is {values!r}; it must be a list of sizes like "1024x768"')
    try:
        return tuple(Size.parse(value) for value in values)
    except ValueError as error:
        raise stated.refuse(str(error)) from None


def _stated(source: ModelSource) -> Fields:
    values: Mapping[str, Any] = source.generation
    return Fields(values, f"{source.folder}/{_DEFAULTS}")
