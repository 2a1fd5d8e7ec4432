"""The request fields that image and video generation share, and their checks.

Besides OpenAI's fields there are those of SGLang and vLLM-Omni under the same names, and a threshold of the step cache,
which those projects have as a switch or per server. No field is ignored: one that would have no effect is an error.
"""

from collections.abc import Iterable, Mapping

import msgspec

from ridgeline.media.diffusion.diffusion_request import DiffusionPlan, DiffusionRequest, InvalidRequest
from ridgeline.media.diffusion.geometry import Size
from ridgeline.media.diffusion.pipeline import Pipeline
from ridgeline.server.errors import as_invalid, invalid

AUTO = "auto"

NAMES: Mapping[str, str] = {
    "negative": "negative_prompt",
    "steps": "num_inference_steps",
    "guidance": "guidance_scale",
    "second_guidance": "guidance_scale_2",
    "frames": "num_frames",
    "images": "n",
}
"""The HTTP field names of those pipeline request fields that have another name over HTTP."""


class DiffusionFields(msgspec.Struct, kw_only=True, frozen=True):
    """The fields of an image or video request; None selects the model's default, and `plan_of` checks the numbers."""

    model: str = ""
    prompt: str | None = None
    size: str = AUTO

    negative_prompt: str | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    seed: int | None = None
    step_cache: float | None = None


Only = tuple[str, tuple[object, ...], str]
"""A field whose other values would have no effect: its name, the accepted values, and the reason."""


def check_only(fields: DiffusionFields, only: Iterable[Only]) -> None:
    """Raise ApiError if a field has a value that would have no effect."""
    for name, taken, why in only:
        if getattr(fields, name) not in taken:
            raise invalid(f"{name}: {why}", name, code="unsupported_field")


def prompt_of(fields: DiffusionFields) -> str:
    """Return the prompt, or raise ApiError if it is missing."""
    if fields.prompt is None:
        raise invalid("prompt: it is missing: describe what to generate", "prompt", code="missing_field")
    return fields.prompt


def size_of(fields: DiffusionFields) -> Size | None:
    """Return the requested size, or None for the model's default; raise ApiError if it is malformed."""
    with as_invalid("size"):
        return None if fields.size == AUTO else Size.parse(fields.size)


def plan_of(request: DiffusionRequest, pipeline: Pipeline, names: Mapping[str, str] = NAMES) -> DiffusionPlan:
    """Return the plan that a pipeline makes for a request.

    Args:
        request: The request.
        pipeline: The pipeline that will run it.
        names: The HTTP names of the pipeline's fields, as in `NAMES`.

    Raises:
        ApiError: If the pipeline rejects the request; for an unsupported size the message lists the supported ones.
    """
    try:
        return pipeline.plan(request)
    except InvalidRequest as error:
        raise invalid(str(error), names.get(error.field, error.field)) from None
