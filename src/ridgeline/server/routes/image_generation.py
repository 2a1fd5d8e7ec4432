"""The conversion of /v1/images/generations requests into diffusion requests, and of images into responses or events."""

import base64
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta
from torch import Tensor

from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.image_file import encode_image
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.server.errors import invalid
from ridgeline.server.http.event_stream import StreamOutbox
from ridgeline.server.images.diffusion_engine import DiffusionSubmission, WorkUnitReport
from ridgeline.server.images.image_service import InFlightImageRequest
from ridgeline.server.routes.diffusion_fields import AUTO, DiffusionFields, Only, check_only, prompt_of, size_of
from ridgeline.server.routes.generation import new_id

_HEAD = 64 << 10
"""The bytes reserved besides the pixels, for the parameters stored in an image file and for other response fields."""

PROGRESS = "image_generation.progress"
PROGRESS_BYTES = 512
"""The most bytes of a progress event, except for the noise levels in the first: about 20 bytes per step."""

Format = Literal["png", "jpeg", "webp"]


class ImageFields(DiffusionFields, kw_only=True, frozen=True):
    """The fields of an image request: those of `DiffusionFields`, and those that video requests do not have."""

    n: Annotated[int, Meta(ge=1)] = 1
    response_format: str = "b64_json"
    output_format: Format = "png"
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    stream: bool = False
    partial_images: Annotated[int, Meta(ge=0, le=3)] = 0
    progress: bool = False
    background: str = AUTO
    quality: str = AUTO
    moderation: str = AUTO
    style: str | None = None


_ONLY: tuple[Only, ...] = (
    ("response_format", ("b64_json",), "the server stores no files, so it has no URLs: give b64_json"),
    ("background", (AUTO, "opaque"), "images have no transparency: give auto or opaque"),
    ("quality", (AUTO,), "there is only one quality: give auto, or more steps (num_inference_steps)"),
    ("moderation", (AUTO, "low"), "the server moderates nothing: give auto or low"),
    ("style", (None,), "the model has no styles: describe the style in the prompt"),
)


def check_fields(fields: ImageFields) -> DiffusionRequest:
    """Convert the fields of an image request into a diffusion request.

    Raises:
        ApiError: If fields are invalid or contradict each other; the error names the field.
    """
    check_only(fields, _ONLY)
    prompt = prompt_of(fields)
    if fields.output_compression is not None and fields.output_format == "png":
        message = (
            "output_compression: png is lossless: give jpeg or webp as output_format, or leave output_compression out"
        )
        raise invalid(message, "output_compression")
    if fields.partial_images and not fields.stream:
        raise invalid(
            "partial_images: they are sent only in a stream: set stream, or leave partial_images out", "partial_images"
        )
    if fields.progress and not fields.stream:
        raise invalid("progress: it is sent only in a stream: set stream, or leave progress out", "progress")
    if fields.stream and fields.n > 1:
        raise invalid("n: a stream can have only one image, because its events have no image index: give 1", "n")
    return DiffusionRequest(
        *(prompt, fields.negative_prompt, size_of(fields), fields.num_inference_steps, fields.guidance_scale),
        *(fields.seed, fields.n),
        step_cache=fields.step_cache,
    )


def preview_steps(steps: int, previews: int) -> frozenset[int]:
    """Return the steps after which a stream sends partial images: evenly spaced, and fewer if there are few steps."""
    even = (round(steps * (k + 1) / (previews + 1)) for k in range(previews))
    return frozenset(step for step in even if 0 < step < steps)


@dataclass(slots=True)
class ImageGeneration:
    """One image request with its progress and results."""

    fields: ImageFields
    plan: DiffusionPlan
    pipeline: Pipeline
    own: str
    """The pipeline's own name."""
    model: str
    """The model name in the response."""
    id: str = field(default_factory=lambda: new_id("img_"))
    created: int = field(default_factory=lambda: int(time.time()))
    """The creation time of the response, in Unix seconds."""
    files: dict[int, bytes] = field(default_factory=dict)
    """The files of finished images, by index."""
    seconds: float = 0.0
    """The measured seconds of the request's work units so far."""
    predicted: float = 0.0
    """The predicted seconds of the request's work units so far."""
    interval: ErrorInterval | None = None
    """The interval in which 8 of 10 measured times of such work units lie; None before the first."""
    skipped: int = 0
    """The number of denoiser passes that the step cache shortened."""
    partials: int = 0
    """The number of partial images sent."""
    steps: int = 0
    """The number of denoising steps that have run."""

    @property
    def live(self) -> InFlightImageRequest:
        """A new in-flight request of the image service for this generation."""
        kept = self.pipeline.step_cache_bytes(self.plan)
        return InFlightImageRequest(self.id, self.model, self.fields.n, self.fields.n * self.file_bytes, kept)

    @property
    def file_bytes(self) -> int:
        """The most bytes of one image file in base64, assuming that noise does not compress."""
        return (self.plan.geometry.pixel_bytes + _HEAD) * 4 // 3

    @property
    def order(self) -> DiffusionSubmission:
        """The request as a submission to the diffusion engine."""
        previews = preview_steps(self.plan.schedule.steps, self.fields.partial_images)
        return DiffusionSubmission(self.own, self.plan, self._encode, previews)

    def _encode(self, pixels: Tensor, image: int) -> bytes:
        parameters = self.pipeline.parameters(self.plan, image)
        return encode_image(
            pixels, self.fields.output_format.upper(), parameters, quality=self.fields.output_compression
        )

    def take(self, report: WorkUnitReport) -> None:
        """Record a finished work unit, and store the file that it produced."""
        self.seconds += report.seconds
        self.predicted += report.predicted
        self.interval = report.interval
        self.skipped += report.skipped
        self.steps += report.stage == "denoise"
        if report.file is not None:
            assert report.image is not None
            self.files[report.image] = report.file

    def body(self) -> dict[str, object]:
        """Return the response body once all images are complete."""
        return {
            "created": self.created,
            "background": "opaque",
            "data": [
                {"b64_json": _base64(self.files[image]), "seed": self.plan.seed + image}
                for image in range(self.fields.n)
            ],
            "model": self.model,
            "output_format": self.fields.output_format,
            "size": str(self.plan.geometry.size),
            "usage": self.usage(),
            **self.times(),
        }

    def usage(self) -> dict[str, object]:
        """Return the token usage: the tokens of the prompts and the latent tokens of the images."""
        texts, drawn = sum(map(len, self.plan.token_ids)), self.plan.geometry.tokens * self.fields.n
        return {
            "input_tokens": texts,
            "input_tokens_details": {"text_tokens": texts, "image_tokens": 0},
            "output_tokens": drawn,
            "output_tokens_details": {"text_tokens": 0, "image_tokens": drawn},
            "total_tokens": texts + drawn,
        }

    def times(self) -> dict[str, object]:
        """Return the measured and predicted seconds of the request's own work units, and the skipped passes.

        The prediction assumes that the step cache skips no pass.
        """
        skipped = {} if self.fields.step_cache is None else {"passes_skipped": self.skipped}
        around = None if self.interval is None else self.interval.around_time(self.predicted)
        times = {"inference_time_s": self.seconds, "predicted_time_s": self.predicted}
        return {**times, "predicted_interval_s": around, **skipped}

    def events(self, outbox: StreamOutbox) -> Callable[[WorkUnitReport], None]:
        """Return a callback that writes the events of a stream for each work unit."""

        def take(report: WorkUnitReport) -> None:
            self.take(report)
            if self.fields.progress:
                outbox.put(self._progress(report))
            if report.preview is not None:
                partial_ = {"partial_image_index": self.partials}
                self.partials += 1
                outbox.put(self._event("image_generation.partial_image", report.preview, partial_))
            if report.file is not None:
                more = {"usage": self.usage(), "seed": self.plan.seed, **self.times()}
                outbox.put(self._event("image_generation.completed", report.file, more))

        return take

    def _progress(self, report: WorkUnitReport) -> bytes:
        """Return a progress event; the first one has the noise level before each denoising step."""
        schedule = self.plan.schedule
        value = {
            "type": PROGRESS,
            "stage": report.stage,
            "step": self.steps,
            "steps": schedule.steps,
            **self.times(),
            "predicted_time_left_s": report.left,
            **({"noise": [schedule.time(step) for step in range(schedule.steps)]} if report.number == 1 else {}),
        }
        return b"event: " + PROGRESS.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"

    def _event(self, kind: str, file: bytes, more: Mapping[str, object]) -> bytes:
        value = {
            "type": kind,
            "b64_json": _base64(file),
            "background": "opaque",
            "created_at": self.created,
            "output_format": self.fields.output_format,
            "quality": AUTO,
            "size": str(self.plan.geometry.size),
            **more,
        }
        return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode(value) + b"\n\n"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
