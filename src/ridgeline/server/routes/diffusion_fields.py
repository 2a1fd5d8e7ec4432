"""What requests to draw have in common, pictures and clips: fields, the plan that they come to, what is refused.

Beside OpenAI's fields those that SGLang and vLLM-Omni have under the same names, and a threshold of the step cache,
which they have as a switch or for all of a server. Nothing is ignored: a field that would have no effect is an error.
"""

from collections.abc import Iterable, Mapping

import msgspec

from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest, InvalidRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.server.errors import invalid

AUTO = "auto"

NAMES: Mapping[str, str] = {
    "negative": "negative_prompt",
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "second_guidance": "guidance_scale_2",
    "frames": "num_frames",
    "images": "n",
}
"""What fields of a pipeline's request are called over HTTP, where they have another name there."""


class DiffusionFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of a request. None is "not said": the model's own holds. Which numbers it takes `plan_of` says."""

    model: str = ""
    prompt: str | None = None
    size: str = AUTO

    negative_prompt: str | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    step_cache: float | None = None


Only = tuple[str, tuple[object, ...], str]
"""A field whose other values would have no effect: those that are taken, and why no others."""


def check_only(fields: DiffusionFields, only: Iterable[Only]) -> None:
    """Raises ApiError for a field with a value that would have no effect."""
    for name, taken, why in only:
        if getattr(fields, name) not in taken:
            raise invalid(f"{name}: {why}", name, code="unsupported_field")


def prompt_of(fields: DiffusionFields) -> str:
    """The prompt. Raises ApiError where there is none."""
    if fields.prompt is None:
        raise invalid("prompt: it is missing; say what is to be drawn", "prompt", code="missing_field")
    return fields.prompt


def size_of(fields: DiffusionFields) -> Size | None:
    """The size, None for the model's own. Raises ApiError for what is none."""
    try:
        return None if fields.size == AUTO else Size.parse(fields.size)
    except ValueError as error:
        raise invalid(str(error), "size") from None


def plan_of(drawing: DiffusionRequest, pipeline: Pipeline, names: Mapping[str, str] = NAMES) -> DiffusionPlan:
    """What a request comes to. Raises ApiError in the words of the pipeline, a size off the menu with the menu. names:
    as NAMES.
    """
    try:
        return pipeline.plan(drawing)
    except InvalidRequest as error:
        raise invalid(str(error), names.get(error.field, error.field)) from None
