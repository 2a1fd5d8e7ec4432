"""The models that `ridgeline image` and `ridgeline video` accept and suggest for unknown names."""

import shlex

from ridgeline.cli.image_files import IMAGE_MEDIUM, Medium, video_medium
from ridgeline.core.checkpoint import ModelSource, open_source
from ridgeline.core.checkpoint.hub_cache import cached_ids, hub_cache
from ridgeline.core.checkpoint.source import UnknownModel, builtin_names, did_you_mean
from ridgeline.core.models import ModelRefused
from ridgeline.media.diffusion.pipeline_class import check_parts, pipeline_class_of
from ridgeline.media.images.image_generator import generates_image_tokens


def open_media_source(model: str, medium: Medium, *, has_prompt: bool = True) -> ModelSource:
    """Open a model for image or video generation.

    Args:
        model: The name of the model.
        medium: What it shall generate.
        has_prompt: Whether a prompt was given too; if not, an unknown model may be the prompt.

    Raises:
        ModelRefused: If it does not exist. The message suggests models that generate this medium.
    """
    try:
        return open_source(model)
    except UnknownModel as unknown:
        built_in = [name for name in builtin_names() if _draws(name, medium)]
        nearest = did_you_mean(model, [*built_in, *(name for name in cached_ids(hub_cache()) if _draws(name, medium))])
        if not has_prompt:
            example = f"ridgeline {medium.command} {built_in[0]} {shlex.quote(model)}"
            raise ModelRefused(
                f"{unknown.what}{nearest} if this is the prompt, MODEL comes before it: {example}; if not, give a "
                f"prompt too, and as MODEL the folder of a pipeline or a built-in model ({', '.join(built_in)})"
            ) from None
        raise ModelRefused(
            f"{unknown.what}{nearest} nothing is downloaded; give the folder of a pipeline (with a model_index.json), "
            f"an id in the Hugging Face cache, or a built-in model ({', '.join(built_in)})"
        ) from None


def check_medium(source: ModelSource, medium: Medium) -> None:
    """Raise ValueError for a model that generates another medium, before it is loaded."""
    other = _drawn_by(source)
    if other.command != medium.command:
        raise ValueError(f"{source.name} generates {other.command}s; use ridgeline {other.command}")


def _drawn_by(source: ModelSource) -> Medium:
    """Return the medium that a model generates.

    Raises:
        ModelRefused: If it generates none.
    """
    if generates_image_tokens(source):
        return IMAGE_MEDIUM
    return video_medium(1.0) if pipeline_class_of(source).frames > 1 else IMAGE_MEDIUM


def _draws(name: str, medium: Medium) -> bool:
    try:
        source = open_source(name)
        own_medium = _drawn_by(source)
        if source.pipeline:
            check_parts(source, pipeline_class_of(source).parts)
    except ModelRefused:  # not a generation model, or incomplete
        return False
    return own_medium.command == medium.command
