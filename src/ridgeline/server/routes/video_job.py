"""The conversion of /v1/videos requests into diffusion requests, and of their progress into OpenAI's job objects."""

import math
import time
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.geometry import PipelineLayout
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.video_file import FORMATS, FPS, check_format, check_fps
from ridgeline.price.error_interval import ErrorInterval
from ridgeline.server.errors import ApiError, as_invalid, invalid
from ridgeline.server.images.diffusion_engine import DiffusionSubmission, Encode, WorkUnitReport
from ridgeline.server.images.image_service import InFlightImageRequest
from ridgeline.server.routes.diffusion_fields import NAMES, DiffusionFields, plan_of, prompt_of, size_of
from ridgeline.server.routes.generation import new_id
from ridgeline.util.json_data import json_select

_FEWEST_POLLS, _MOST_POLLS = 0.1, 5.0  # bounds of the seconds between two polls

Status = Literal["queued", "in_progress", "completed", "failed"]


class VideoFields(DiffusionFields, kw_only=True, frozen=True):
    """The fields of a video request; `seconds` may be text, because OpenAI's client sends it so."""

    seconds: str | float | None = None
    num_frames: int | None = None
    fps: float = FPS
    guidance_scale_2: float | None = None
    output_format: Literal["mp4", "webp", "gif"] | None = None


@dataclass(eq=False, slots=True)
class VideoJob:
    """One requested video with its progress and result."""

    fields: VideoFields
    plan: DiffusionPlan
    pipeline: Pipeline
    own: str
    """The pipeline's own name."""
    model: str
    """The model name in responses."""
    format_: str
    """The format of the file, one of `video_file.FORMATS`."""
    owner: bytes | None = None
    """The digest of the API key that created the job; other keys cannot see it."""
    id: str = field(default_factory=lambda: new_id("video_"))
    created: int = field(default_factory=lambda: int(time.time()))
    """The creation time of the job, in Unix seconds."""
    live: InFlightImageRequest = field(init=False)
    """The job as an in-flight request of the image service."""
    completed: int | None = None
    """The time at which the file was complete, in Unix seconds; None until then."""
    expires: int | None = None
    """The time at which the file will be deleted, in Unix seconds."""
    nbytes: int = 0
    """The size of the video file in bytes; 0 until it is written."""
    error: ApiError | None = None
    """Why the job failed, or None."""
    steps: int = 0
    """The number of denoising steps that have run."""
    seconds: float = 0.0
    """The measured seconds of the job's work units so far."""
    predicted: float = 0.0
    """The predicted seconds of the job's work units so far."""
    interval: ErrorInterval | None = None
    """The interval in which 8 of 10 measured times of such work units lie; None before the first."""
    left: float | None = None
    """The predicted seconds of the job's remaining work units; None before the first."""
    skipped: int = 0
    """The number of denoiser passes that the step cache shortened."""

    def __post_init__(self) -> None:
        kept = self.pipeline.step_cache_bytes(self.plan)
        self.live = InFlightImageRequest(self.id, self.model, 1, self._held_bytes(), kept, is_video=True)

    def _held_bytes(self) -> int:
        """Return the bytes of frames held until the last is decoded; 0 for MP4, which is written as they come."""
        return 0 if self.format_ == "MP4" else self.plan.geometry.pixel_bytes

    @property
    def suffix(self) -> str:
        """The suffix of the video file's name."""
        return next(suffix for suffix, format_ in FORMATS.items() if format_ == self.format_)

    @property
    def status(self) -> Status:
        """The status of the job in OpenAI's terms."""
        if self.error is not None:
            return "failed"
        if self.completed is not None:
            return "completed"
        return "queued" if self.live.phase == "queue" else "in_progress"

    @property
    def progress(self) -> int:
        """The percentage of denoising steps that have run; 100 only once the file is complete."""
        if self.completed is not None:
            return 100
        return min(99, 100 * self.steps // self.plan.schedule.steps)

    @property
    def poll_after(self) -> float:
        """The seconds after which a client should poll again: a tenth of the predicted time left, within bounds."""
        return min(_MOST_POLLS, max(_FEWEST_POLLS, (self.left or 0.0) / 10))

    def order(self, encode: Encode) -> DiffusionSubmission:
        """Return the job as a submission to the diffusion engine, which passes decoded parts to `encode`."""
        return DiffusionSubmission(self.own, self.plan, encode)

    def take(self, report: WorkUnitReport) -> None:
        """Add a finished work unit to the job's progress."""
        self.seconds += report.seconds
        self.predicted += report.predicted
        self.interval = report.interval
        self.left = report.left
        self.skipped += report.skipped
        self.steps += report.stage == "denoise"

    def parameters(self) -> dict[str, str | int | float | None]:
        """Return the generation parameters that are stored in the video file."""
        return {**self.pipeline.parameters(self.plan, 0), "fps": self.fields.fps}

    def body(self) -> dict[str, object]:
        """Return OpenAI's job object, with the further parameters of SGLang and vLLM-Omni."""
        plan, fields = self.plan, self.fields
        return {
            "id": self.id,
            "object": "video",
            **json_select(self, "model", "status", "progress"),
            **json_select(self, "created_at=created", "completed_at=completed", "expires_at=expires"),
            "prompt": fields.prompt,
            "remixed_from_video_id": None,
            "size": str(plan.geometry.size),
            "seconds": f"{plan.geometry.frames / fields.fps:g}" if fields.seconds is None else str(fields.seconds),
            "error": None if self.error is None else self.error.body()["error"],
            "num_frames": plan.geometry.frames,
            "fps": fields.fps,
            "negative_prompt": plan.guidance.negative,
            **json_select(plan, "num_inference_steps=schedule.steps", "guidance_scale=scale", "seed"),
            **({} if fields.step_cache is None else {"step_cache": fields.step_cache, "passes_skipped": self.skipped}),
            "output_format": self.format_.lower(),
            "bytes": self.nbytes or None,
            **json_select(self, "inference_time_s=seconds", "predicted_time_s=predicted", "predicted_time_left_s=left"),
            "predicted_interval_s": None if self.interval is None else self.interval.around_time(self.predicted),
        }


def format_of(fields: VideoFields, usual: str) -> str:
    """Return the format of the video file, which is `usual` if the request sets none.

    Raises:
        ApiError: If the packages for the format are not installed.
    """
    format_ = usual if fields.output_format is None else fields.output_format.upper()
    try:
        check_format(format_)
    except ValueError as error:
        raise invalid(f"output_format: {error}", "output_format", code="unsupported_field") from None
    return format_


def plan_video(fields: VideoFields, pipeline: Pipeline) -> DiffusionPlan:
    """Return the plan that a pipeline makes for a video request.

    Raises:
        ApiError: If the request is invalid; the error names the field.
    """
    with as_invalid("fps"):
        check_fps(fields.fps)
    diffusion_request = DiffusionRequest(
        prompt_of(fields),
        fields.negative_prompt,
        size_of(fields),
        fields.num_inference_steps,
        fields.guidance_scale,
        fields.seed,
        frames=_frames(fields, pipeline.layout),
        second_guidance=fields.guidance_scale_2,
        step_cache=fields.step_cache,
    )
    timed = {} if fields.seconds is None else {"frames": "seconds"}
    return plan_of(diffusion_request, pipeline, {**NAMES, **timed})


def _frames(fields: VideoFields, layout: PipelineLayout) -> int | None:
    """Return the requested number of frames, or None for the model's default.

    Seconds become the nearest number of frames that the VAE can decode.

    Raises:
        ApiError: If both are given, or the seconds are out of range.
    """
    if fields.seconds is None:
        return fields.num_frames
    if fields.num_frames is not None:
        raise invalid("num_frames: seconds sets the number of frames already: give only one of the two", "num_frames")
    try:
        frames = float(fields.seconds) * fields.fps
    except ValueError:
        frames = math.nan
    if not 0 < frames <= 2 * layout.max_frames:
        most = layout.max_frames / fields.fps
        raise invalid(
            f"seconds: give a number above 0 and, at {fields.fps:g} frames per second, at most {most:g}", "seconds"
        )
    return 1 + layout.temporal * max(0, round((frames - 1) / layout.temporal))
