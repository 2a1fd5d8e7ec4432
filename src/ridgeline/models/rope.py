"""The rotary embedding that a config asks for, in the old spelling (rope_theta + rope_scaling) and the new one."""

from ridgeline.models.fields import Fields
from ridgeline.ops.rotary import Linear, Llama3, Rope, Scaling, Yarn


def read_rope(fields: Fields, head_dim: int) -> Rope:
    """Raises ModelRefused for a scaling that is not built (dynamic, longrope) or a number that makes no sense."""
    new = fields.section("rope_parameters")  # transformers 5 keeps theta and scaling together
    section = new if new.values else fields.section("rope_scaling")
    theta = new.positive("rope_theta") if new.has("rope_theta") else fields.positive("rope_theta", 10_000.0)
    holder = new if new.has("partial_rotary_factor") else fields
    dim = int(head_dim * holder.positive("partial_rotary_factor", 1.0))
    if not 2 <= dim <= head_dim or dim % 2:
        raise fields.refuse(f"rotary dimension {dim} of head_dim {head_dim}; it must be even and at most head_dim")
    return Rope(dim, theta, _scaling(fields, section))


def _scaling(fields: Fields, section: Fields) -> Scaling | None:
    kind = section.text("rope_type", section.text("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return Linear(section.positive("factor"))
    context = fields.count("max_position_embeddings")
    if kind == "llama3":
        return Llama3(
            section.positive("factor"),
            section.positive("low_freq_factor"),
            section.positive("high_freq_factor"),
            section.count("original_max_position_embeddings", context),
        )
    if kind == "yarn":
        for name in ("mscale", "mscale_all_dim"):
            section.refuse_if(name)
        return Yarn(
            section.positive("factor"),
            section.count("original_max_position_embeddings", context),
            section.positive("beta_fast", 32.0),
            section.positive("beta_slow", 1.0),
            section.positive("attention_factor") if section.has("attention_factor") else None,
            section.flag("truncate", True),
        )
    raise fields.refuse(f"rope scaling {kind!r} is not supported; default, linear, llama3 and yarn are")
