"""/v1/videos: OpenAI's fields become a request of a pipeline, what has come of it the object of a job."""

import math
import time
from dataclasses import dataclass, field
from typing import Literal

from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest
from ridgeline.media.diffusion.geometry import PipelineLayout
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.media.diffusion.video_file import FORMATS, FPS, check_format, check_fps
from ridgeline.server.errors import ApiError, invalid
from ridgeline.server.images.diffusion_engine import DiffusionSubmission, Encode, WorkUnitReport
from ridgeline.server.images.image_service import InFlightImageRequest
from ridgeline.server.routes.diffusion_fields import NAMES, DiffusionFields, plan_of, prompt_of, size_of
from ridgeline.server.routes.generation import new_id

_FEWEST_POLLS, _MOST_POLLS = 0.1, 5.0  # seconds between two looks at a job

Status = Literal["queued", "in_progress", "completed", "failed"]


class VideoFields(DiffusionFields, kw_only=True, frozen=True):
    """The fields of a request, beside those of all that draw. OpenAI's client has seconds as text."""

    seconds: str | float | None = None
    num_frames: int | None = None
    fps: float = FPS
    guidance_scale_2: float | None = None
    output_format: Literal["mp4", "webp", "gif"] | None = None


@dataclass(eq=False, slots=True)
class VideoJob:
    """One clip that was asked for, and what has come of it.

    own: the pipeline's name. model: what answers call it. format_: of the file, one of clip_file.FORMATS. owner: the
    API key that asked; nobody else hears of the job. completed, expires: from when and until when its file is there, in
    Unix seconds. nbytes: of the file. error: why it failed. steps: of the denoiser that have run. seconds, predicted:
    of its strides so far, measured and by the price. left: priced seconds of those to come, None before the first.
    skipped: passes that its step cache cut short.
    """

    fields: VideoFields
    plan: DiffusionPlan
    pipeline: Pipeline
    own: str
    model: str
    format_: str
    owner: bytes | None = None
    id: str = field(default_factory=lambda: new_id("video_"))
    created: int = field(default_factory=lambda: int(time.time()))
    live: InFlightImageRequest = field(init=False)
    completed: int | None = None
    expires: int | None = None
    nbytes: int = 0
    error: ApiError | None = None
    steps: int = 0
    seconds: float = 0.0
    predicted: float = 0.0
    left: float | None = None
    skipped: int = 0

    def __post_init__(self) -> None:
        kept = self.pipeline.kept(self.plan)
        self.live = InFlightImageRequest(self.id, self.model, 1, self._held_bytes(), kept, clip=True)

    def _held_bytes(self) -> int:
        """Bytes of frames that are held until the last is there: MP4 is written as they come."""
        return 0 if self.format_ == "MP4" else self.plan.geometry.pixel_bytes

    @property
    def suffix(self) -> str:
        """Of the file's name."""
        return next(suffix for suffix, format_ in FORMATS.items() if format_ == self.format_)

    @property
    def status(self) -> Status:
        """As OpenAI has it."""
        if self.error is not None:
            return "failed"
        if self.completed is not None:
            return "completed"
        return "queued" if self.live.phase == "queue" else "in_progress"

    @property
    def progress(self) -> int:
        """Steps of the denoiser in 100; all of them only when the file is there."""
        if self.completed is not None:
            return 100
        return min(99, 100 * self.steps // self.plan.schedule.steps)

    @property
    def poll_after(self) -> float:
        """Seconds after which another look is worth while: a tenth of what the price says is left."""
        return min(_MOST_POLLS, max(_FEWEST_POLLS, (self.left or 0.0) / 10))

    def order(self, encode: Encode) -> DiffusionSubmission:
        """What is to be drawn. encode: takes the clip's parts."""
        return DiffusionSubmission(self.own, self.plan, encode)

    def take(self, told: WorkUnitReport) -> None:
        """Count a stride."""
        self.seconds += told.seconds
        self.predicted += told.predicted
        self.left = told.left
        self.skipped += told.skipped
        self.steps += told.stage == "denoise"

    def parameters(self) -> dict[str, str | int | float | None]:
        """What it is drawn from, as its file keeps it."""
        return {**self.pipeline.parameters(self.plan, 0), "fps": self.fields.fps}

    def body(self) -> dict[str, object]:
        """OpenAI's object of a job, and what SGLang and vLLM-Omni have it asked by."""
        plan, fields = self.plan, self.fields
        return {
            "id": self.id,
            "object": "video",
            "model": self.model,
            "status": self.status,
            "progress": self.progress,
            "created_at": self.created,
            "completed_at": self.completed,
            "expires_at": self.expires,
            "prompt": fields.prompt,
            "remixed_from_video_id": None,
            "size": str(plan.geometry.size),
            "seconds": f"{plan.geometry.frames / fields.fps:g}" if fields.seconds is None else str(fields.seconds),
            "error": None if self.error is None else self.error.body()["error"],
            "num_frames": plan.geometry.frames,
            "fps": fields.fps,
            "negative_prompt": plan.guidance.negative,
            "num_inference_steps": plan.schedule.steps,
            "guidance_scale": plan.scale,
            "seed": plan.seed,
            **({} if fields.step_cache is None else {"step_cache": fields.step_cache, "passes_skipped": self.skipped}),
            "output_format": self.format_.lower(),
            "bytes": self.nbytes or None,
            "inference_time_s": self.seconds,
            "predicted_time_s": self.predicted,
            "predicted_time_left_s": self.left,
        }


def format_of(fields: VideoFields, usual: str) -> str:
    """The format of a clip's file. usual: where nobody says it. Raises ApiError for one that is not installed."""
    format_ = usual if fields.output_format is None else fields.output_format.upper()
    try:
        check_format(format_)
    except ValueError as error:
        raise invalid(f"output_format: {error}", "output_format", code="unsupported_field") from None
    return format_


def plan_video(fields: VideoFields, pipeline: Pipeline) -> DiffusionPlan:
    """What a request comes to. Raises ApiError naming the field."""
    try:
        check_fps(fields.fps)
    except ValueError as error:
        raise invalid(str(error), "fps") from None
    drawing = DiffusionRequest(
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
    return plan_of(drawing, pipeline, {**NAMES, **timed})


def _frames(fields: VideoFields, layout: PipelineLayout) -> int | None:
    """How many frames are asked for; None for the model's own number. Seconds become the nearest number of frames that
    the VAE can make. Raises ApiError.
    """
    if fields.seconds is None:
        return fields.num_frames
    if fields.num_frames is not None:
        raise invalid("num_frames: seconds says it already; give one of the two", "num_frames")
    try:
        frames = float(fields.seconds) * fields.fps
    except ValueError:
        frames = math.nan
    if not 0 < frames <= 2 * layout.most_frames:
        most = layout.most_frames / fields.fps
        raise invalid(f"seconds: give a number above 0, at {fields.fps:g} frames a second {most:g} at most", "seconds")
    return 1 + layout.temporal * max(0, round((frames - 1) / layout.temporal))
