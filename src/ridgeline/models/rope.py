"""The rotary embedding that a config asks for, in the old spelling (rope_theta + rope_scaling) and the new one."""

import torch

from ridgeline.models.fields import Fields
from ridgeline.ops.rotary import LinearScaling, Llama3, Rope, Scaling, Yarn

_ALWAYS = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}
_NUMBERS = {
    "default": set[str](),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
    "yarn": {"factor", "beta_fast", "beta_slow", "attention_factor", "truncate", "finetuned"},
}


def read_rope(fields: Fields, head_dim: int, theta: float = 10_000.0, *, partial: bool = False) -> Rope:
    """`theta`: the base where none is stated. `partial`: whether `partial_rotary_factor` may be less than 1.

    Raises ModelRefused for a scaling that is not built (dynamic, longrope) or a number that makes no sense.
    """
    old = fields.section("rope_scaling")
    # transformers 5 keeps base and scaling together, under a new name.
    new = fields.section("rope_parameters")
    section = old if old.values else new
    # Where the section says them too, what it says counts.
    fields.passed_over("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
    holder = section if section.has("rope_theta") else fields
    theta = holder.positive("rope_theta", theta)
    holder = section if section.has("partial_rotary_factor") else fields
    share = holder.positive("partial_rotary_factor", 1.0)
    if share > 1 or (share < 1 and not partial):
        raise fields.refuse(f"partial_rotary_factor {share:g} is not supported; {'at most ' * partial}1 is")
    dim = int(head_dim * share)
    if dim < 2 or dim % 2:
        raise fields.refuse(f"rotary dimension {dim} of head_dim {head_dim}; it must be even and at least 2")
    rope = Rope(dim, theta, _scaling(fields, section))
    if not _finite(rope):
        raise fields.refuse(f"rope_theta {theta:g} and the rope's scaling give frequencies that are not finite")
    return rope


def _finite(rope: Rope) -> bool:
    try:
        return bool(torch.isfinite(rope.frequencies()).all())
    except (ArithmeticError, ValueError):
        return False


def _scaling(fields: Fields, section: Fields) -> Scaling | None:
    kind = section.text("rope_type", section.text("type", "default"))
    if kind not in _NUMBERS:
        raise fields.refuse(f"rope scaling {kind!r} is not supported; {', '.join(_NUMBERS)} are")
    for name in section.values.keys() - _NUMBERS[kind] - _ALWAYS:
        section.refuse_if(name)
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(section.positive("factor"))
    # Where the config states it outside the scaling too, that one counts.
    holder = fields if fields.has("original_max_position_embeddings") else section
    context = holder.count("original_max_position_embeddings", fields.count("max_position_embeddings"))
    if kind == "llama3":
        return Llama3(
            section.positive("factor"),
            section.positive("low_freq_factor"),
            section.positive("high_freq_factor"),
            context,
        )
    return Yarn(
        section.positive("factor"),
        context,
        section.positive("beta_fast", 32.0),
        section.positive("beta_slow", 1.0),
        section.positive("attention_factor") if section.has("attention_factor") else None,
        section.flag("truncate", True),
    )
