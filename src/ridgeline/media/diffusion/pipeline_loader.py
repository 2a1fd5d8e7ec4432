"""From the folder of a pipeline to what draws: its parts, and what the folder says of requests that leave it open."""

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
from ridgeline.media.diffusion.video_autoencoder import ARCHITECTURE as CLIPS
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
    """Load the folder of a pipeline (a source, or a name as `open_source` takes it).

    dtype: of the denoiser, fp32 or bf16; by default what it is stored in. The text encoder runs as it is stored, the
    VAE in fp32, in which the CPU is fastest. threads: that torch computes with from now on; by default all cores, one
    for small models. progress(bytes done, bytes in all): told while weights load. device: where all of it runs.

    Raises ModelRefused in one line: a class that is not built, a part that is missing, broken or does not fit the
    others, more weights than memory.
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
    beside = sizes.pop("text_encoder_2", 0)  # told of as one with the first
    told = _each({**sizes, "text_encoder": sizes["text_encoder"] + beside}, progress)
    encoder = kind.load_encoder(source, told["text_encoder"])
    denoiser = load_denoiser(str(folders["transformer"]), dtype, progress=told["transformer"])
    second = None
    if boundary is not None:
        second = LowNoiseExpert(load_denoiser(str(folders[_SECOND]), dtype, progress=told[_SECOND]), boundary)
    autoencoder = _load_autoencoder(source.components["vae"], told["vae"])
    _check_fits(source, encoder, denoiser, autoencoder)
    check_predicts(denoiser, scheduler, str(source.folder))
    kind, layout = requests_of(source, kind, denoiser, autoencoder)
    networks = (*encoder.models, denoiser, autoencoder, *([second.denoiser] if second else []))
    weights = sum(parameter.nbytes for network in networks for parameter in network.parameters())
    torch.set_num_threads(threads_for(weights, threads))
    _place(networks, device)
    return Pipeline(source.title, kind, encoder, denoiser, autoencoder, scheduler, layout, second)


def _place(networks: Iterable[PricedModule | VideoAutoencoder], device: torch.device) -> None:
    """Put the parts of a pipeline where they run. Raises ModelRefused where a card has no room for them."""
    if device.type == "cpu":
        return
    torch.cuda.set_device(device)  # of this thread, in which Triton launches
    for network in networks:
        if isinstance(network, VideoAutoencoder):
            with refuse_gpu_overflow(device):
                network.theirs.to(device)
        else:
            prepare_on_gpu(network, device)


def _boundary(source: ModelSource) -> float | None:
    """Below which part of all noise a second denoiser is asked, as model_index.json says; None for one denoiser. Raises
    ModelRefused for one without the other.
    """
    assert source.folder is not None
    stated = Fields.read(source.folder / "model_index.json")
    if not stated.has("boundary_ratio"):
        if _SECOND in source.components:
            raise stated.refuse(f"boundary_ratio is missing, below which {_SECOND} is asked")
        return None
    boundary = stated.positive("boundary_ratio")
    if boundary >= 1:
        raise stated.refuse(f"boundary_ratio is {boundary}; it must be between 0 and 1")
    if _SECOND not in source.components:
        raise stated.refuse(f"boundary_ratio is {boundary}, and it lists no {_SECOND} that would be asked below it")
    if not source.components[_SECOND].folder.is_dir():
        raise ModelRefused(f"{source.folder} lacks the folder {_SECOND}; fetch it again")
    return boundary


def _load_autoencoder(part: Component, progress: Progress | None) -> AutoencoderKL | VideoAutoencoder:
    """A VAE in fp32: of pictures, or that of clips."""
    if part.kind == CLIPS:
        return load_video_autoencoder(str(part.folder))
    return load_autoencoder(str(part.folder), torch.float32, progress=progress)


def load_vae(
    model: ModelSource | str, *, threads: int | None = None, device: torch.device = _PROCESSOR
) -> AutoencoderKL | VideoAutoencoder:
    """The VAE of a pipeline's folder alone, as `load_pipeline` has it: for latents that were saved. Raises
    ModelRefused.
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
    """What each part is given to tell of itself, so that `progress` hears of all parts as of one. sizes: bytes of each,
    in the order in which they are loaded.
    """
    every, told, before = sum(sizes.values()), dict[str, Progress | None](), 0
    for part, nbytes in sizes.items():
        told[part] = None
        if progress is not None:
            told[part] = lambda done, _, before=before: progress(before + done, every)  # type: ignore[misc]
        before += nbytes
    return told


def _check_fits(
    source: ModelSource, encoder: TextEncoder, denoiser: Denoiser, autoencoder: AutoencoderKL | VideoAutoencoder
) -> None:
    """Raises ModelRefused for parts of different pipelines."""
    if encoder.width != denoiser.text_width:
        raise ModelRefused(
            f"{source.folder}: the text encoder's states have {encoder.width} numbers, the transformer reads "
            f"{denoiser.text_width}; they are of two pipelines"
        )
    if encoder.pooled_width != denoiser.pooled_width:
        given, wanted = (width or "no" for width in (encoder.pooled_width, denoiser.pooled_width))
        raise ModelRefused(
            f"{source.folder}: the vector of a text has {given} numbers, the transformer reads {wanted}; they are of "
            "two pipelines"
        )
    if autoencoder.channels != denoiser.channels:
        raise ModelRefused(
            f"{source.folder}: the transformer's latents have {denoiser.channels} channels, the vae's "
            f"{autoencoder.channels}; they are of two pipelines"
        )


def _scheduler(source: ModelSource, kind: PipelineClass) -> DiffusionScheduler:
    """Read the scheduler of a pipeline's folder. Raises ModelRefused for one that is not supported."""
    listed = source.components["scheduler"]
    return read_scheduler(listed.folder / _SCHEDULER, kind.timesteps, listed.kind)


def scheduler_refusal(source: ModelSource, kind: PipelineClass, denoiser: Denoiser) -> str:
    """Return why `load_pipeline` would refuse the scheduler of a folder; "" if it would take it, or if the folder has
    none, which is enough for a plan.
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
    """Raises ModelRefused where the samples of a denoiser's predictions would be taken for something else."""
    wanted = scheduler.schedule(1, 1).prediction
    if denoiser.predicts != wanted:
        raise ModelRefused(
            f"{called}: the transformer predicts {denoiser.predicts}, the scheduler takes {wanted}; set "
            "prediction_type and use_flow_sigmas of scheduler_config.json as the transformer was released with"
        )


# -- what the folder says of requests ---------------------------------------------------------------------------------


def requests_of(
    source: ModelSource,
    kind: PipelineClass,
    denoiser: Denoiser,
    autoencoder: AutoencoderKL | VideoAutoencoder | VideoDecodePrice,
) -> tuple[PipelineClass, PipelineLayout]:
    """The class with what a folder states of requests that leave it open, and the sizes that it takes. Raises
    ModelRefused for sizes that the parts cannot make.
    """
    released = kind.layout_of(denoiser) if kind.layout_of else kind.layout
    return _with_defaults(kind, source), _layout(source, released, denoiser, autoencoder)


def _with_defaults(kind: PipelineClass, source: ModelSource) -> PipelineClass:
    """The class with the steps, the guidance and a clip's frames that the folder's generation_config.json states, under
    the names of diffusers' arguments.
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
    """The layout of a folder: channels, patches and pixels to a latent are those of its parts. The menu of sizes is
    what its generation_config.json states as `sizes`, which no other file of a pipeline does; else that of the class's
    releases. Raises ModelRefused for sizes that the parts cannot make.
    """
    sizes = _sizes(_stated(source)) or released.sizes
    grain = autoencoder.factor * denoiser.patch
    for size in sizes:
        if size.width % grain or size.height % grain:
            raise ModelRefused(
                f"{source.folder}: pictures of {size} do not divide into patches of {grain} x {grain} pixels; state "
                f"others as `sizes` in {_DEFAULTS}"
            )
    patch = (1, denoiser.patch, denoiser.patch)
    temporal, most = _frames(released, denoiser, autoencoder)
    return PipelineLayout(denoiser.channels, sizes, autoencoder.factor, temporal, patch, most)


def _frames(
    released: PipelineLayout, denoiser: Denoiser, autoencoder: AutoencoderKL | VideoAutoencoder | VideoDecodePrice
) -> tuple[int, int]:
    """Frames to one of latents, and the most of a clip: as many as the denoiser has places for. A picture's autoencoder
    makes each frame one by itself.
    """
    if not denoiser.clips:
        return 1, 1
    temporal = released.temporal
    if isinstance(autoencoder, VideoAutoencoder):
        temporal = autoencoder.shape.temporal
    elif isinstance(autoencoder, AutoencoderKL):
        temporal = 1
    places = denoiser.sizes.most if isinstance(denoiser, CrossDenoiser) else None
    return temporal, released.most_frames if places is None else 1 + temporal * (places - 1)


def _sizes(stated: Fields) -> tuple[Size, ...]:
    """The sizes that a folder states; () for none. Raises ModelRefused."""
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
